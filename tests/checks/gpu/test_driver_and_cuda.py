"""Drivers, torch's CUDA and architectures: the borders of each rule (F03)."""

from __future__ import annotations

import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.checks.gpu.cuda import decoded, runs_on
from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.gpu import DeviceNodes, KernelModule, NvidiaFacts
from rlcheck.playbook import Library
from tests.checks.gpu.cases import devices, doc, h200, library, nvidia, pci, rocm, torch
from tests.checks.gpu.judging import judge


@pytest.mark.parametrize(("number", "text"), [(12080, "12.8"), (13000, "13.0"), (11040, "11.4"), (12090, "12.9")])
def test_decodes_the_drivers_number(number: int, text: str) -> None:
    assert decoded(number) == text


@pytest.mark.parametrize(
    ("driver", "number", "cuda", "status"),
    [
        ("570.86.10", 12080, "13.0", "fail"),
        ("535.183.01", 12020, "12.8", "pass"),
        ("525.60.13", None, "12.4", "pass"),
        ("520.61.05", None, "12.4", "fail"),
        ("450.80.02", None, "11.8", "pass"),
        ("580.65.06", None, "13.2", "pass"),
        ("575.57.08", 13000, "13.0", "pass"),  # with cuda-compat the library, not the driver, sets the number
        ("580.65.06", None, "14.0", "unknown"),
        ("580.65.06", 13000, "14.0", "fail"),
        ("garbage", None, "12.8", "unknown"),
    ],
)
def test_f03_driver_floor(driver: str, number: int | None, cuda: str, status: str) -> None:
    cuda_driver = missing(MissingKind.UNSUPPORTED, "not said") if number is None else known(number)
    facts = doc(nvidia(h200(), driver_version=known(driver), cuda_driver=cuda_driver), torch(cuda=cuda))
    assert judge("GPU008", facts).status == status


@pytest.mark.row("F03")
def test_f03_says_what_torch_says_and_the_way_out() -> None:
    facts = doc(nvidia(h200(), driver_version=known("570.86.10"), cuda_driver=known(12080)), torch())
    finding = judge("GPU008", facts)
    assert "found version 12080" in finding.details[0]
    assert any("whl/cu129" in fix.command for fix in finding.fixes)
    assert any("580" in fix.title for fix in finding.fixes)


@pytest.mark.parametrize(
    ("arch", "capability", "way"),
    [
        ("sm_90", (9, 0), "binary"),
        ("sm_80", (8, 6), "binary"),
        ("sm_86", (8, 0), ""),
        ("sm_90", (10, 0), ""),
        ("sm_90a", (9, 0), "binary"),
        ("sm_100a", (10, 3), ""),
        ("sm_100f", (10, 3), "binary"),
        ("sm_100", (10, 3), "binary"),
        ("sm_120", (12, 1), "binary"),
        ("compute_90", (10, 0), "ptx"),
        ("compute_90a", (10, 0), ""),
        ("compute_100f", (12, 0), ""),
        ("compute_90", (8, 0), ""),
        ("9.0+PTX", (12, 0), "ptx"),
        ("9.0", (9, 0), "binary"),
        ("gfx942", (9, 0), ""),
        ("", (9, 0), ""),
    ],
)
def test_architecture_rules(arch: str, capability: tuple[int, int], way: str) -> None:
    assert runs_on(arch, capability) == way


def test_only_ptx_is_a_remark() -> None:
    facts = doc(nvidia(h200(compute_capability=(12, 0))), torch(archs=("sm_90", "compute_90")))
    assert judge("GPU009", facts).status == "info"


def test_no_architecture_list_is_unknown() -> None:
    assert judge("GPU009", doc(nvidia(h200()), torch(archs=()))).status == "unknown"


def test_a_cpu_torch_is_told_once() -> None:
    assert judge("GPU037", doc(nvidia(*devices()), torch("2.13.0+cpu", cuda=""))).status == "skip"
    facts = doc(nvidia(*devices()), torch("2.13.0+cpu", cuda=""))
    told = [f for f in judging.judge(facts, family_checks("ENV"), Library()) if f.status == "fail"]
    assert [finding.id for finding in told] == ["ENV014"]


def test_rocm_torch_on_nvidia_fails() -> None:
    assert judge("GPU037", doc(nvidia(*devices()), torch("2.12.0+rocm7.2", cuda="", hip="7.2.1"))).status == "fail"


def test_cuda_torch_on_amd_names_the_rocm_index() -> None:
    finding = judge("GPU037", doc(rocm(), torch("2.11.0")))
    assert any("whl/rocm7.2" in fix.command for fix in finding.fixes)


def test_a_gpu_given_to_a_virtual_machine_needs_no_driver() -> None:
    facts = doc(NvidiaFacts(pci=known((pci("0000:01:00.0", driver="vfio-pci"),)), kernel_module=absent("no")))
    assert judge("GPU001", facts).status == "skip"


def test_without_a_cuda_torch_a_missing_driver_is_only_a_warning() -> None:
    bare = NvidiaFacts(pci=known((pci("0000:01:00.0", driver="nouveau"),)), kernel_module=absent("no"))
    finding = judge("GPU001", doc(bare, torch(cuda="")))
    assert (finding.status, "nouveau" in finding.message) == ("warn", True)


@pytest.mark.parametrize(
    ("container", "can_create", "status"),
    [("", True, "pass"), ("", False, "warn"), ("docker", True, "fail")],
)
def test_missing_uvm_node(container: str, can_create: bool, status: str) -> None:
    nodes = DeviceNodes(numbers=(0,), control=True, uvm=False, can_create=can_create)
    assert judge("GPU002", doc(nvidia(h200(), nodes=nodes), torch(), container=container)).status == status


def test_libraries_of_another_version_beside_the_right_one_are_a_warning() -> None:
    libraries = (library("libcuda.so", "575.57.08", "/opt/old"), library("libcuda.so"))
    assert judge("GPU003", doc(nvidia(h200(), libraries=libraries))).status == "warn"


def test_a_working_nvml_is_not_contradicted_by_a_file_name() -> None:
    facts = doc(nvidia(h200(), libraries=(library("libnvidia-ml.so", "575.57.08"), library("libcuda.so"))))
    assert judge("GPU003", facts).status == "pass"


@pytest.mark.parametrize(
    ("error", "status"),
    [("LIB_RM_VERSION_MISMATCH", "fail"), ("GPU_IS_LOST", "fail"), ("DRIVER_NOT_LOADED", "fail"), ("TIMEOUT", "warn"),
     ("NO_BINDINGS", "unknown"), ("CODE_4711", "fail")],
)  # fmt: skip
def test_nvml_errors(error: str, status: str) -> None:
    finding = judge("GPU004", doc(nvidia(source="", init_error=error)))
    assert finding.status == status
    assert error in finding.message or status == "unknown"


def test_a_stub_before_the_driver_fails() -> None:
    stub = library("libcuda.so", "", "/usr/local/cuda/lib64/stubs", "stub")
    facts = doc(nvidia(h200(), libraries=(stub, library("libcuda.so"))))
    assert judge("GPU006", facts).status == "fail"


@pytest.mark.parametrize(("version", "status"), [("590.44.01", "info"), ("575.57.08", "warn")])
def test_compat_on_a_data_center_gpu(version: str, status: str) -> None:
    compat = library("libcuda.so", version, "/usr/local/cuda/compat", "compat")
    assert judge("GPU007", doc(nvidia(h200(), libraries=(compat,)))).status == status


def test_a_proprietary_module_is_as_good() -> None:
    module = known(KernelModule(version="580.159.04", flavour="proprietary"))
    assert judge("GPU003", doc(nvidia(h200(), kernel_module=module))).status == "pass"


def test_gpus_of_other_jobs_are_told() -> None:
    facts = doc(nvidia(*devices(2, handle_error="NO_PERMISSION")))
    assert judge("GPU005", facts).status == "info"
    assert judge("GPU005", doc(nvidia(h200(0, handle_error="NO_PERMISSION")))).status == "warn"


@pytest.mark.parametrize(("name", "status"), [
    ("NVIDIA GeForce RTX 4090", "fail"), ("NVIDIA A10G", "info"), ("NVIDIA RTX 6000 Ada Generation", "info"),
])  # fmt: skip
def test_forward_compatibility_by_card(name: str, status: str) -> None:
    compat = library("libcuda.so", "590.44.01", "/usr/local/cuda/compat", "compat")
    assert judge("GPU007", doc(nvidia(h200(0, name=name), libraries=(compat,)))).status == status


def test_forward_compatibility_leaves_the_driver_question_open() -> None:
    compat = library("libcuda.so", "590.44.01", "/usr/local/cuda/compat", "compat")
    old = nvidia(h200(), libraries=(compat,), driver_version=known("535.1.2"), cuda_driver=absent("nvidia-smi"))
    assert judge("GPU008", doc(old, torch())).status == "unknown"


def test_old_display_card_beside_the_gpus_is_a_warning() -> None:
    assert judge("GPU009", doc(nvidia(h200(0), h200(1, compute_capability=(3, 5))), torch())).status == "warn"


@pytest.mark.parametrize(("asked", "status"), [("void", "warn"), ("all", "fail")])
def test_container_that_was_meant_to_have_no_gpu(asked: str, status: str) -> None:
    bare = nvidia(nodes=DeviceNodes(), devices=absent("no GPU is handed to this container"))
    facts = doc(bare, torch(), {"NVIDIA_VISIBLE_DEVICES": asked}, container="kubernetes")
    assert judge("GPU002", facts).status == status
