"""Every GPU check fires on its case, with the numbers in its message, and stays quiet on the other."""

from __future__ import annotations

import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.base import MissingKind, missing
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.gpu import Fabric, NvLinks
from tests.checks.gpu.cases import CASES, devices, doc, gpus, h200, nvidia, pci, torch
from tests.checks.gpu.judging import LIBRARY, judge

CHECKS = family_checks("GPU")

# What each finding must say: status, and words of its message.
FIRES = {
    "GPU001": ("fail", "1 NVIDIA GPU(s) on the PCI bus and no NVIDIA driver"),
    "GPU002": ("fail", "no GPU device node"),
    "GPU003": ("fail", "libnvidia-ml.so 580.173.02"),
    "GPU004": ("fail", "NVML error UNKNOWN"),
    "GPU005": ("fail", "GPU 7: GPU_IS_LOST"),
    "GPU006": ("fail", "found none"),
    "GPU007": ("fail", "NVIDIA GeForce RTX 4090"),
    "GPU008": ("fail", "driver 570.86.10 with CUDA 12.8 (reported as 12080)"),
    "GPU009": ("fail", "compute capability 7.0"),
    "GPU010": ("warn", "GPU 0 (Tesla T4): 7.5"),
    "GPU011": ("fail", "'0,1,8'"),
    "GPU012": ("warn", "expected 8 GPU(s) visible"),
    "GPU013": ("info", "set it to PCI_BUS_ID"),
    "GPU014": ("warn", "GPU 7 (H200): 3"),
    "GPU015": ("warn", "off on GPU 7"),
    "GPU016": ("warn", "pending on GPU 7"),
    "GPU017": ("fail", "failed (8 rows"),
    "GPU018": ("warn", "pending on GPU 0"),
    "GPU019": ("fail", "GPU 7 (H200): GPU reset"),
    "GPU020": ("fail", "Xid 79 (1x) on 0000:00:0d"),
    "GPU021": ("warn", "hardware slowdown and hardware thermal slowdown"),
    "GPU022": ("warn", "400 of 700 W"),
    "GPU023": ("warn", "x8 of x16"),
    "GPU024": ("warn", "expected 18 NVLink ports up on every GPU, found GPU 7 (H200): 16"),
    "GPU025": ("fail", "GPU 7 (H200): in_progress"),
    "GPU026": ("warn", "between 2 SXM GPUs"),
    "GPU027": ("warn", "1 GPU(s) in a multi-node NVLink domain"),
    "GPU028": ("warn", "2 slices on GPU 7"),
    "GPU029": ("warn", "70.0 GiB of 140.4 GiB"),
    "GPU030": ("warn", "7 x NVIDIA H200, 1 x NVIDIA H100"),
    "GPU031": ("warn", "GPU 7 (H200): exclusive_process"),
    "GPU032": ("info", "persistence mode is off on GPU 7"),
    "GPU033": ("fail", "expected 8 GPUs started by the driver, found 7; not started: 0000:00:0d.0"),
    "GPU034": ("info", "NUMA node 1"),
    "GPU035": ("warn", "without compute"),
    "GPU036": ("fail", "8 Instinct GPU(s)"),
    "GPU037": ("fail", "for 8 AMD Instinct GPU(s), found torch 2.11.0, a cuda build"),
    "GPU039": ("warn", "triton 3.7.1"),
    "GPU040": ("warn", "expected ROCm 7.2, with which torch 2.12.0+rocm7.2 was built, found ROCm 6.4.1"),
    "GPU041": ("fail", "with code for gfx942, found only gfx1100, gfx90a"),
    "GPU042": ("fail", "ROCm 7.0 or newer for gfx950"),
    "GPU043": ("fail", "import ray ends in AssertionError"),
    "GPU044": ("fail", "Ray ends in RuntimeError"),
    "GPU045": ("fail", "indices from 0 to 7"),
    "GPU046": ("warn", "RCCL_MSCCL_ENABLE=0 on ROCm 6.4, found not set"),
    "GPU047": ("warn", "HSA_NO_SCRATCH_RECLAIM=1 for gfx90a"),
    "GPU048": ("warn", "NCCL_MIN_NCHANNELS=112"),
    "GPU049": ("warn", "HSA_OVERRIDE_GFX_VERSION='9.4.2'"),
    "GPU050": ("warn", "PYTORCH_TUNABLEOP_ENABLED=1"),
    "GPU051": ("warn", "CPX, NPS4"),
    "GPU038": ("warn", "(gfx942): 2"),
    "GPU052": ("warn", "100.0 GiB of 192.0 GiB"),
}


def test_every_check_has_its_line_here() -> None:
    assert set(FIRES) == {check.id for check in CHECKS} == set(CASES)
    assert sorted(FIRES) == [f"GPU{n:03}" for n in range(1, len(CHECKS) + 1)]


@pytest.mark.parametrize("check_id", sorted(FIRES))
def test_fires(check_id: str) -> None:
    finding = judge(check_id, CASES[check_id][0])
    status, words = FIRES[check_id]
    assert (finding.status, words in finding.message) == (status, True), f"{finding.status}: {finding.message}"
    assert not any("{{" in fix.command for fix in finding.fixes)


@pytest.mark.parametrize("check_id", sorted(FIRES))
def test_stays_quiet(check_id: str) -> None:
    finding = judge(check_id, CASES[check_id][1])
    assert finding.status in {"pass", "skip"}, finding.message


def worst(facts: Facts) -> dict[str, str]:
    """ID and message of every problem."""
    findings = judging.judge(decode(encode((facts,)))[0], CHECKS, LIBRARY)
    return {f.id: f.message for f in findings if f.status in {"fail", "warn", "error", "unknown"}}


def test_the_healthy_h200_machine_has_no_problem() -> None:
    assert worst(gpus()) == {}


def test_one_passed_through_h200_has_no_problem() -> None:
    """As seen in a virtual machine with one GPU of an eight-GPU board: no NVLink, no fabric, CUDA 13."""
    alone = h200(nvlinks=NvLinks(), fabric=Fabric(state="not_supported"))
    assert worst(doc(nvidia(alone), torch(), {"CUDA_VISIBLE_DEVICES": "0"}, container="docker")) == {}


def test_a_machine_without_gpus_has_no_problem() -> None:
    assert worst(doc(python=torch("2.13.0+cpu", cuda=""))) == {}


def test_a_desktop_card_has_no_problem() -> None:
    """No ECC, no NVLink, no recovery action: what NVML does not support is not a problem."""
    no = missing(MissingKind.ABSENT, "this GPU does not have it (NVML: NOT_SUPPORTED)")
    card = h200(name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), ecc_enabled=no, ecc_uncorrected=no,
                remapped_rows=no, nvlinks=no, fabric=no, mig_enabled=no, mig_uuids=no, recovery_action=no,
                memory_total_bytes=24 << 30, memory_used_bytes=600 << 20)  # fmt: skip
    assert worst(doc(nvidia(card), torch())) == {}


def test_an_unreadable_value_is_unknown_and_not_a_pass() -> None:
    broken = missing(MissingKind.ERROR, "NVML: UNKNOWN")
    finding = judge("GPU014", gpus(ecc_uncorrected=broken))
    assert finding.status == "unknown"
    assert "GPU 7: NVML: UNKNOWN" in finding.message
    every = doc(nvidia(*(h200(i, ecc_uncorrected=broken) for i in range(2))))
    assert judge("GPU014", every).status == "unknown"


def test_a_problem_is_told_even_when_another_gpu_cannot_be_read() -> None:
    facts = doc(
        nvidia(h200(0, ecc_uncorrected=missing(MissingKind.ERROR, "NVML: UNKNOWN")), h200(1, ecc_uncorrected=2))
    )
    assert judge("GPU014", facts).status == "warn"


def test_a_dead_driver_makes_nothing_pass() -> None:
    """NVML that fails is one failure; the rest could not be looked at."""
    refused = missing(MissingKind.ERROR, "NVML: LIB_RM_VERSION_MISMATCH")
    facts = doc(nvidia(source="", init_error="LIB_RM_VERSION_MISMATCH", devices=refused, cuda_driver=refused), torch())
    statuses = {f.id: f.status for f in judging.judge(facts, CHECKS, LIBRARY)}
    assert statuses["GPU004"] == "fail"
    assert {statuses[f"GPU{n:03}"] for n in (5, 9, 11, 14, 19, 24, 29)} <= {"unknown", "skip"}


def test_hostile_facts_break_no_check() -> None:
    """Huge numbers, empty names, strange strings: every check still has an answer."""
    big = 1 << 62
    weird = h200(name="", uuid="", bus_id="", compute_capability=(-1, 99), memory_total_bytes=-5, memory_used_bytes=big,
                 clock_events=big, pcie_width=-1, pcie_width_max=big, nvlinks=NvLinks(num_active=-1, num_inactive=big),
                 fabric=Fabric(state="\x00", status=-1), compute_mode="", recovery_action=-7, power_limit_w=float(big),
                 power_default_w=0.0, numa_node=-big)  # fmt: skip
    python = torch("not a version", cuda="?.x", archs=("sm_", "gfx", "", "sm_99999", "compute_9"), dists={"ray": "??"})
    variables = {"CUDA_VISIBLE_DEVICES": "9" * 5000 + ",GPU-,MIG-,,\x00", "ROCR_VISIBLE_DEVICES": ",,,",
                 "HIP_VISIBLE_DEVICES": "-", "NVIDIA_DRIVER_CAPABILITIES": ",", "SLURM_JOB_ID": ""}  # fmt: skip
    facts = doc(nvidia(weird, weird, cuda_driver=missing(MissingKind.ERROR, "?")), python, variables, "docker")
    findings = judging.judge(facts, CHECKS, LIBRARY)
    assert [f.message for f in findings if f.status == "error"] == []


def test_an_empty_machine_is_unknown_everywhere() -> None:
    assert {f.status for f in judging.judge(Facts(), CHECKS, LIBRARY)} == {"unknown"}


def test_a_driver_without_its_gpus_is_skipped_once_said() -> None:
    facts = doc(nvidia(devices=missing(MissingKind.ABSENT, "the driver is not loaded"), pci=nvidia().pci))
    assert judge("GPU019", facts).status == "skip"
    assert judge("GPU033", doc(nvidia(*devices(8), pci=nvidia(*devices(8)).pci), container="docker")).status == "skip"
    assert pci("0000:00:06.0").driver == "nvidia"
