"""AMD: Ray's matrix of visible devices (F23), settings by release (F55), device nodes (F72)."""

from __future__ import annotations

import pytest

from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.gpu import RocmFacts
from tests.checks.gpu.cases import amd, doc, hip, mi300x, pci, rocm, torch, with_ray
from tests.checks.gpu.judging import judge

BOTH = {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}
DIFFER = {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2,3"}
ONLY_CUDA = {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.row("F23")
@pytest.mark.parametrize(
    ("ray", "only_cuda", "both", "differ"),
    [
        ("2.44.1", "warn", "pass", "warn"),
        ("2.46.0", "fail", "pass", "fail"),
        ("2.48.0", "pass", "fail", "fail"),
        ("2.54.0", "pass", "pass", "fail"),
        ("2.60.0", "warn", "pass", "warn"),
        ("", "pass", "pass", "warn"),
    ],
)
def test_f23_ray_and_the_two_variables(ray: str, only_cuda: str, both: str, differ: str) -> None:
    more = with_ray(ray) if ray else {}
    found = tuple(judge("GPU043", amd(variables, **more)).status for variables in (ONLY_CUDA, BOTH, DIFFER))
    assert found == (only_cuda, both, differ)


@pytest.mark.parametrize(("ray", "status"), [("2.44.1", "pass"), ("2.45.0", "fail"), ("2.60.0", "fail"), ("", "pass")])
def test_rocr_alone(ray: str, status: str) -> None:
    facts = amd({"ROCR_VISIBLE_DEVICES": "4,5"}, **(with_ray(ray) if ray else {}))
    assert judge("GPU044", facts).status == status


def test_rocr_and_hip_filter_twice() -> None:
    beyond = amd({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5"}, **with_ray("2.60.0"))
    finding = judge("GPU044", beyond)
    assert (finding.status, "left 2" in finding.message) == ("fail", True)
    within = amd({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "0,1"}, **with_ray("2.60.0"))
    assert judge("GPU044", within).status == "warn"
    assert (
        judge("GPU044", amd({"ROCR_VISIBLE_DEVICES": "4", "HIP_VISIBLE_DEVICES": "0"}, **with_ray("2.46.0"))).status
        == "fail"
    )


def test_duplicate_hip_index() -> None:
    assert judge("GPU045", amd({"HIP_VISIBLE_DEVICES": "1,1"})).status == "fail"
    assert judge("GPU045", amd({"HIP_VISIBLE_DEVICES": "9", "ROCR_VISIBLE_DEVICES": "0"})).status == "skip"


@pytest.mark.row("F55")
@pytest.mark.parametrize(
    ("hip_version", "value", "status"),
    [("6.4.43482", None, "warn"), ("6.4.43482", "0", "pass"), ("6.4.43482", "1", "warn"), ("7.0.1", None, "pass"),
     ("7.14.0", "0", "info"), ("7.14.0", None, "pass")],
)  # fmt: skip
def test_f55_msccl(hip_version: str, value: str | None, status: str) -> None:
    variables = {} if value is None else {"RCCL_MSCCL_ENABLE": value}
    assert judge("GPU046", amd(variables, hip_version=hip_version)).status == status


@pytest.mark.row("F55")
@pytest.mark.parametrize(("hip_version", "gfx", "status"), [("7.13.0", "gfx90a", "warn"), ("7.2.0", "gfx90a", "skip"),
                                                            ("7.14.0", "gfx942", "skip")])  # fmt: skip
def test_f55_scratch_reclaim(hip_version: str, gfx: str, status: str) -> None:
    section = rocm(mi300x(2, gfx), mi300x(3, gfx))
    assert judge("GPU047", amd(section=section, hip_version=hip_version)).status == status


@pytest.mark.parametrize(("hip_version", "status"), [("6.4.1", "skip"), ("7.0.0", "warn"), ("7.14.0", "warn")])
def test_f55_channels(hip_version: str, status: str) -> None:
    assert judge("GPU048", amd({"NCCL_MIN_NCHANNELS": "112"}, hip_version=hip_version)).status == status


def test_rocm_versions_compare_as_numbers() -> None:
    """7.14 is newer than 7.2, and the same major is a remark only."""
    finding = judge("GPU040", amd(section=rocm(rocm_version=known("7.14.0"))))
    assert (finding.status, "7.14" in finding.message) == ("info", True)
    assert judge("GPU042", amd(section=rocm(mi300x(2, "gfx950")), hip_version="7.14.0")).status == "pass"


def test_a_laptops_display_adapter_raises_no_question() -> None:
    laptop = RocmFacts(
        driver_loaded=True,
        pci=known((pci("0000:04:00.0", "amdgpu", "15bf", "0300"),)),
        devices=known((mi300x(1, "gfx1103"),)),
        kfd=absent("there is no /dev/kfd"),
        rocm_version=absent("no ROCm"),
    )
    for number in range(36, 53):
        finding = judge(f"GPU{number:03}", doc(laptop, torch(), {"CUDA_VISIBLE_DEVICES": "0"}))
        assert finding.status in {"skip", "pass"}, f"{finding.id}: {finding.message}"


def test_unsupported_display_adapter_beside_instinct_is_a_remark() -> None:
    section = rocm(mi300x(2), mi300x(3, "gfx1036"))
    assert judge("GPU041", amd(section=section)).status == "info"


def test_forced_target_is_not_judged_twice() -> None:
    facts = amd({"HSA_OVERRIDE_GFX_VERSION": "9.0.10"}, archs=("gfx90a",))
    assert judge("GPU041", facts).status == "skip"


def test_plain_triton_alone_is_a_remark() -> None:
    assert judge("GPU039", amd(dists={"triton": "3.7.1"})).status == "info"
    assert judge("GPU039", amd(dists={"triton": "3.7.1+rocm7.2"})).status == "pass"


def test_unreadable_topology_is_unknown() -> None:
    closed = missing(MissingKind.PERMISSION, "properties: Permission denied")
    facts = doc(rocm(devices=closed), hip())
    assert {judge(f"GPU0{n}", facts).status for n in (38, 41, 42, 51, 52)} == {"unknown"}
