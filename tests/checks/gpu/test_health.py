"""Health, links and sharing: the finer distinctions."""

from __future__ import annotations

import msgspec
import pytest

from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.gpu import Fabric, GpuProcess, NvLinks, Xid
from rlcheck.facts.platform import PlatformFacts
from tests.checks.gpu.cases import GIB, devices, doc, gpus, h200, nvidia
from tests.checks.gpu.judging import judge


def with_xid(code: int, age_s: float = 60.0, bus: str = "0000:00:06", **changes: object) -> object:
    xid = Xid(code=code, bus_id=bus, count=2, last_age_s=known(age_s), text="text")
    return doc(nvidia(*devices(2, **changes), xids=known((xid,))))


@pytest.mark.parametrize(
    ("code", "age_s", "status", "words"),
    [
        (79, 60, "warn", "Xid 79 (2x)"),
        (13, 60, "info", "Xid 13"),
        (31, 60, "info", "Xid 31"),
        (63, 60, "pass", "none grave"),
        (92, 60, "pass", "none grave"),
        (154, 60, "pass", "none grave"),
        (9999, 60, "info", "need looking up: Xid 9999"),
    ],
)
def test_xid_severity_when_the_driver_needs_nothing(code: int, age_s: float, status: str, words: str) -> None:
    finding = judge("GPU020", with_xid(code, age_s))
    assert (finding.status, words in finding.message) == (status, True), finding.message


@pytest.mark.parametrize(("code", "command"), [(79, "poweroff"), (48, "nvidia-smi --gpu-reset -i 0000:00:06.0")])
def test_the_fix_is_what_nvidia_asks_for_after_this_number(code: int, command: str) -> None:
    commands = [fix.command for fix in judge("GPU020", with_xid(code)).fixes if fix.command]
    assert commands == [command]


def test_recent_xid_on_a_gpu_that_needs_recovery_fails_and_names_the_action() -> None:
    xid = Xid(code=119, bus_id="0000:00:07", last_age_s=known(60.0), text="Timeout")
    facts = doc(nvidia(*devices(2, recovery_action=1), xids=known((xid,))))
    finding = judge("GPU020", facts)
    assert finding.status == "fail"
    assert "to do: reset the GPU" in finding.details[0]
    assert any("Xid 119" in fix.title for fix in finding.fixes)


def test_old_xid_is_a_warning() -> None:
    xid = Xid(code=119, bus_id="0000:00:07", last_age_s=known(86400.0))
    assert judge("GPU020", doc(nvidia(*devices(2, recovery_action=1), xids=known((xid,))))).status == "warn"


def test_xid_of_a_gpu_that_was_not_handed_out_is_left_out() -> None:
    assert judge("GPU020", with_xid(79, bus="0000:99:00")).status == "pass"


def test_unreadable_kernel_log_is_unknown() -> None:
    facts = doc(nvidia(*devices(), xids=missing(MissingKind.PERMISSION, "the kernel log cannot be read")))
    assert judge("GPU020", facts).status == "unknown"


def test_uncorrected_error_fails_when_the_driver_asks_for_an_action() -> None:
    no_action = missing(MissingKind.UNSUPPORTED, "NVML: FUNCTION_NOT_FOUND")
    assert judge("GPU014", gpus(1, ecc_uncorrected=1, recovery_action=no_action)).status == "warn"
    assert judge("GPU014", gpus(1, ecc_uncorrected=1, recovery_action=1)).status == "fail"


@pytest.mark.parametrize(("action", "status"), [(1, "fail"), (2, "fail"), (3, "warn"), (4, "warn"), (7, "fail"),
                                                (99, "fail")])  # fmt: skip
def test_recovery_actions(action: int, status: str) -> None:
    assert judge("GPU019", gpus(recovery_action=action)).status == status


@pytest.mark.parametrize(("mask", "status"), [(0, "pass"), (1, "pass"), (4, "pass"), (8, "warn"), (0x20, "warn"),
                                              (0x40, "warn"), (0x80, "warn"), (0x102, "pass")])  # fmt: skip
def test_clock_event_bits(mask: int, status: str) -> None:
    assert judge("GPU021", gpus(clock_events=mask)).status == status


def test_unequal_power_limits_are_told_even_at_the_default() -> None:
    facts = doc(nvidia(h200(0), h200(1, power_limit_w=650.0, power_default_w=650.0)))
    assert judge("GPU022", facts).status == "warn"


def test_a_gpu_shut_out_of_nvlink_fails() -> None:
    assert judge("GPU024", gpus(nvlinks=NvLinks(num_inactive=18))).status == "fail"


def test_fewer_ports_on_every_gpu_are_the_model_and_no_fault() -> None:
    same = (h200(i, name="NVIDIA A800-SXM4-80GB", nvlinks=NvLinks(num_active=8, num_inactive=4)) for i in range(8))
    assert judge("GPU024", doc(nvidia(*same))).status == "pass"


def test_mig_switches_nvlink_off_by_design() -> None:
    assert judge("GPU024", gpus(mig_enabled=True, nvlinks=NvLinks(num_inactive=18))).status == "pass"


def test_a_single_gpu_with_an_unfinished_fabric_is_a_warning() -> None:
    assert judge("GPU025", gpus(1, fabric=Fabric(state="not_started"))).status == "warn"
    assert judge("GPU025", gpus(8, fabric=Fabric(state="completed", status=999))).status == "fail"


def test_pcie_cards_without_nvlink_are_a_remark() -> None:
    cards = (h200(i, name="NVIDIA A100-PCIE-40GB", nvlinks=NvLinks()) for i in range(2))
    assert judge("GPU026", doc(nvidia(*cards))).status == "info"


def test_grace_hopper_does_not_depend_on_pcie() -> None:
    assert judge("GPU023", gpus(1, name="NVIDIA GH200 480GB", pcie_width=1)).status == "skip"


def test_memory_in_use_names_the_holder() -> None:
    process = GpuProcess(pid=77, name="python3", used_bytes=known(30 * GIB))
    finding = judge("GPU029", gpus(memory_used_bytes=30 * GIB, processes=(process,)))
    assert "python3 (pid 77, 30.0 GiB)" in finding.details[0]
    assert any("kill 77" in fix.command for fix in finding.fixes)
    hidden = judge("GPU029", gpus(memory_used_bytes=30 * GIB))
    assert "no process that can be seen" in hidden.details[0]


def test_older_drivers_count_their_reserve_as_used() -> None:
    reserve = missing(MissingKind.UNSUPPORTED, "counted as used")
    assert judge("GPU029", gpus(1, memory_used_bytes=GIB, memory_reserved_bytes=reserve)).status == "pass"


def test_prohibited_mode_fails() -> None:
    assert judge("GPU031", gpus(compute_mode="prohibited")).status == "fail"


def test_a_lost_gpu_is_left_to_its_own_check() -> None:
    facts = gpus(handle_error="GPU_IS_LOST")
    assert judge("GPU005", facts).status == "fail"
    assert judge("GPU014", facts).status == "pass"


def test_seven_gpus_are_a_remark() -> None:
    assert judge("GPU033", gpus(7)).status == "info"


@pytest.mark.parametrize(
    ("name", "virtual", "all_of_them", "status"),
    [
        ("NVIDIA H200", "", False, "warn"),
        ("NVIDIA H200", "", True, "warn"),
        ("NVIDIA A10G", "kvm", True, "info"),
        ("NVIDIA A10G", "kvm", False, "warn"),
        ("NVIDIA GeForce RTX 4090", "", True, "info"),
    ],
)
def test_narrow_links_that_machines_are_built_with(name: str, virtual: str, all_of_them: bool, status: str) -> None:
    cards = tuple(h200(i, name=name, pcie_width=8 if i or all_of_them else 16) for i in range(2))
    facts = msgspec.structs.replace(doc(nvidia(*cards)), platform=known(PlatformFacts(virtualization=virtual)))
    assert judge("GPU023", facts).status == status


def test_makers_of_consumer_cards_choose_their_own_default_power() -> None:
    cards = [
        h200(i, name="NVIDIA GeForce RTX 4090", power_limit_w=w, power_default_w=w) for i, w in ((0, 450.0), (1, 480.0))
    ]
    assert judge("GPU022", doc(nvidia(*cards))).status == "pass"


def test_power_fix_names_the_lowered_gpus_only() -> None:
    assert judge("GPU022", gpus(power_limit_w=500.0)).fixes[0].command == "nvidia-smi -i 7 -pl 700"


def test_xid_without_a_time_is_no_failure_and_its_reset_names_one_gpu() -> None:
    xid = Xid(code=119, bus_id="0000:00:07", text="Timeout")
    finding = judge("GPU020", doc(nvidia(*devices(2, recovery_action=1), xids=known((xid,)))))
    assert finding.status == "warn"
    assert finding.fixes[0].command == "nvidia-smi --gpu-reset -i 0000:00:07.0"


def test_a_process_that_cannot_be_named_is_not_to_be_killed() -> None:
    hidden = (GpuProcess(pid=4242), GpuProcess(pid=0, name="x"))
    finding = judge("GPU029", gpus(memory_used_bytes=90 * GIB, processes=hidden))
    assert "4242" not in finding.fixes[0].command


def test_cluster_on_x86_wants_no_imex_channel() -> None:
    facts = gpus(1, fabric=Fabric(state="completed", cluster=True))
    assert judge("GPU027", facts).status == "warn"
    x86 = msgspec.structs.replace(facts, platform=known(PlatformFacts(machine="x86_64")))
    assert judge("GPU027", x86).status == "skip"
