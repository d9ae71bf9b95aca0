"""The NVIDIA probe on made-up machines: no GPU, no driver, containers, NVML in every mood, nvidia-smi as the second."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.base import Fact, MissingKind, why_missing
from rlcheck.facts.gpu import NvidiaDevice, NvidiaFacts
from rlcheck.measure.machine import nvidia
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.nvidia_devices import read_devices, read_init, short_uuid
from tests.measure.machine import fake_nvml

VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder@host)\n"
    "GCC version:  gcc version 13.3.0\n"
)


def put(root: Path, path: str, text: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def pci_gpu(root: Path, bus: str = "0000:01:00.0", vendor: str = "0x10de", pci_class: str = "0x030200") -> None:
    base = f"/sys/bus/pci/devices/{bus}"
    put(root, f"{base}/vendor", f"{vendor}\n")
    put(root, f"{base}/class", f"{pci_class}\n")
    put(root, f"{base}/device", "0x2335\n")


def machine(root: Path, num_gpus: int = 2) -> Path:
    """A fake tree with driver, GPUs on the bus, device nodes and libraries."""
    put(root, "/proc/driver/nvidia/version", VERSION)
    put(root, "/proc/uptime", "10000.00 5000.00\n")
    put(root, "/dev/nvidiactl")
    put(root, "/dev/nvidia-uvm")
    for n in range(num_gpus):
        put(root, f"/dev/nvidia{n}")
        put(root, f"/proc/driver/nvidia/gpus/0000:0{n + 1}:00.0/information")
        pci_gpu(root, f"0000:0{n + 1}:00.0")
    lib = root / "usr/lib64"
    lib.mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (lib / f"{name}.580.65.06").touch()
        (lib / f"{name}.1").symlink_to(f"{name}.580.65.06")
    return root


def tool(directory: Path, name: str, body: str) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(directory)


def collect(
    root: Path, monkeypatch: pytest.MonkeyPatch, nvml: Path | None = None, path: str = "", **environ: str
) -> NvidiaFacts:
    monkeypatch.setattr(sys, "path", [str(nvml)] if nvml else [])
    found = nvidia.collect(ProbeContext(root=root, environ={"PATH": path or str(root / "bin"), **environ}))
    assert isinstance(found, NvidiaFacts)
    return found


def kind(fact: Fact[Any]) -> MissingKind | None:
    reason = why_missing(fact)
    return None if reason is None else reason.kind


def test_no_gpu_is_absent_at_once_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", forbidden)
    put(tmp_path, "/proc/bus/pci/devices", "0008\t1af41041\t0\n")
    pci_gpu(tmp_path, vendor="0x8086")
    context = ProbeContext(root=tmp_path, environ={})
    started = time.process_time()
    found = nvidia.collect(context)
    assert time.process_time() - started < 0.2
    assert isinstance(found, Fact)
    assert kind(found) is MissingKind.ABSENT


def test_an_empty_root_is_absent(tmp_path: Path) -> None:
    found = nvidia.collect(ProbeContext(root=tmp_path, environ={}))
    assert isinstance(found, Fact)
    assert kind(found) is MissingKind.ABSENT


@pytest.mark.parametrize("pci_class", ["0x040300", "0x068000", ""])
def test_sound_chips_and_switches_are_no_gpus(tmp_path: Path, pci_class: str) -> None:
    pci_gpu(tmp_path, pci_class=pci_class)
    assert isinstance(nvidia.collect(ProbeContext(root=tmp_path, environ={})), Fact)


def test_gpu_on_the_bus_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "/proc/bus/pci/devices", "0100\t10de2335\t0\n")
    pci_gpu(tmp_path)
    found = collect(tmp_path, monkeypatch)
    assert [gpu.device_id for gpu in found.pci.value or ()] == ["2335"]
    assert (kind(found.devices), kind(found.kernel_module)) == (MissingKind.ABSENT, MissingKind.ABSENT)
    assert (found.source, found.init_error) == ("", "")


def test_container_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's driver shows in /proc, but nothing is in /dev."""
    put(tmp_path, "/proc/driver/nvidia/version", VERSION)
    found = collect(tmp_path, monkeypatch)
    assert found.kernel_module.value is not None
    assert (found.kernel_module.value.version, found.kernel_module.value.flavour) == ("580.65.06", "open")
    assert kind(found.devices) is MissingKind.ABSENT
    assert "container" in (found.devices.missing.reason if found.devices.missing else "")


def test_proprietary_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    put(tmp_path, "/proc/driver/nvidia/version", text)
    module = collect(tmp_path, monkeypatch).kernel_module.value
    assert module is not None
    assert (module.version, module.flavour) == ("535.183.01", "proprietary")


def test_garbage_in_the_version_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "/proc/driver/nvidia/version", "\x00\xff garbage\n" * 100)
    assert kind(collect(tmp_path, monkeypatch).kernel_module) is MissingKind.ERROR


def test_healthy_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path / "root")
    found = collect(root, monkeypatch, fake_nvml.write(tmp_path / "py"))
    assert (found.source, found.init_error, found.cuda_driver.value) == ("nvml", "", 13000)
    assert found.driver_version.value == "580.65.06"
    assert found.devices.value is not None
    assert len(found.devices.value) == 2
    second = found.devices.value[1]
    assert (second.uuid.value, second.name.value, second.bus_id.value) == (
        "GPU-00000001",
        "NVIDIA H200",
        "0000:02:00.0",
    )
    assert second.compute_capability.value == (9, 0)
    assert (second.memory_used_bytes.value, second.memory_reserved_bytes.value) == (1 << 30, 600 << 20)
    assert second.remapped_rows.value is not None
    assert (second.remapped_rows.value.pending, second.remapped_rows.value.failed) == (True, False)
    assert second.nvlinks.value is not None
    assert (second.nvlinks.value.num_active, second.nvlinks.value.num_inactive) == (17, 1)
    assert second.fabric.value is not None
    assert (second.fabric.value.state, second.fabric.value.cluster) == ("completed", False)
    assert (second.recovery_action.value, second.clock_events.value, second.power_w.value) == (1, 4, 85.0)
    assert kind(second.numa_node) is MissingKind.ABSENT
    processes = second.processes.value or ()
    assert [(p.pid, p.name, p.used_bytes.value) for p in processes] == [(7, "python3", 1 << 30), (8, "", None)]


@pytest.mark.parametrize("code", fake_nvml.ERRORS)
def test_every_error_of_init_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    py = fake_nvml.write(tmp_path / "py", fake_nvml.raising(code))
    found = collect(machine(tmp_path / "root"), monkeypatch, py)
    assert found.init_error == fake_nvml.ERRORS[code]
    assert fake_nvml.ERRORS[code] in (found.devices.missing.reason if found.devices.missing else "")
    assert found.driver_version.value == "580.65.06"  # from the kernel module


@pytest.mark.parametrize("code", [*fake_nvml.ERRORS, 4711])
def test_every_error_of_every_call_is_a_missing_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    working = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    py = fake_nvml.write(tmp_path / "py", fake_nvml.raising(code, but=working))
    found = collect(machine(tmp_path / "root"), monkeypatch, py)
    name = fake_nvml.ERRORS.get(code, f"CODE_{code}")
    assert found.devices.value is not None
    assert len(found.devices.value) == 2
    for device in found.devices.value:
        for field in NvidiaDevice.__struct_fields__[2:]:
            reason = why_missing(getattr(device, field))
            if field == "nvlinks" and code in (2, 3):  # these two end the list of ports
                assert reason is None
            else:
                assert reason is not None, field
                assert name in reason.reason
    assert name in (found.cuda_driver.missing.reason if found.cuda_driver.missing else "")


def test_one_lost_gpu_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
def nvmlDeviceGetHandleByIndex(index):
    if index == 0: raise NVMLError(15)
    return index
"""
    found = collect(machine(tmp_path / "root"), monkeypatch, fake_nvml.write(tmp_path / "py", more))
    first, second = found.devices.value or ()
    assert (first.handle_error, second.handle_error) == ("GPU_IS_LOST", "")
    assert (kind(first.name), second.name.value) == (MissingKind.ERROR, "NVIDIA H200")


def test_a_hanging_gpu_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "_NVML_TIMEOUT_S", 1.5)
    more = """
def nvmlDeviceGetRemappedRows(h):
    if h == 0: time.sleep(600)
    return (0, 0, 0, 0)
"""
    found = collect(machine(tmp_path / "root"), monkeypatch, fake_nvml.write(tmp_path / "py", more))
    first, second = found.devices.value or ()
    assert first.name.value == "NVIDIA H200"
    assert kind(first.remapped_rows) is MissingKind.TIMEOUT
    assert kind(first.processes) is MissingKind.TIMEOUT
    assert second.remapped_rows.value is not None
    assert second.processes.value is not None


def test_a_hanging_init_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "_NVML_TIMEOUT_S", 1.0)
    py = fake_nvml.write(tmp_path / "py", "\ndef nvmlInit(): time.sleep(600)\n")
    smi = tool(tmp_path / "bin", "nvidia-smi", "echo must not be asked; exit 1")
    found = collect(machine(tmp_path / "root"), monkeypatch, py, smi)
    assert (found.init_error, kind(found.devices)) == ("TIMEOUT", MissingKind.TIMEOUT)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("\nraise SystemError('half an installation')\n", "NO_BINDINGS"),
        ("\ndef nvmlInit(): import os; os.kill(os.getpid(), 11)\n", "CRASHED"),
        ("\ndef nvmlInit(): print('[not json'); raise ValueError('x')\n", "ValueError"),
    ],
)
def test_bindings_that_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, error: str) -> None:
    found = collect(machine(tmp_path / "root"), monkeypatch, fake_nvml.write(tmp_path / "py", more))
    assert found.init_error == error
    assert found.devices.value is None


def test_bindings_that_give_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """
def nvmlDeviceGetName(h): return None
def nvmlDeviceGetComputeMode(h): return 77
def nvmlDeviceGetTemperature(h, s): return "warm"
def nvmlDeviceGetCount(): return 10 ** 9
def nvmlDeviceGetPciInfo(h): return Bag()
"""
    found = collect(machine(tmp_path / "root"), monkeypatch, fake_nvml.write(tmp_path / "py", more))
    assert found.devices.value is not None
    assert len(found.devices.value) == 128
    assert found.devices.value[0].compute_mode.value == "77"
    assert kind(found.devices.value[0].temperature_c) is MissingKind.ERROR
    assert kind(found.devices.value[0].bus_id) is MissingKind.ERROR


SMI_ROW = (
    "0, 580.65.06, GPU-aaaaaaaa-1111-2222-3333-444444444444, NVIDIA H200, 00000000:01:00.0, 9.0, 143771, 70000, 616,"
    " Enabled, 0, 0x0000000000000008, 5, 5, 8, 16, Disabled, Default, Enabled, 36, 121.61, 700.00, 700.00"
)


def test_nvidia_smi_when_the_bindings_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tool(tmp_path / "bin", "nvidia-smi", f"echo '{SMI_ROW}'")
    found = collect(machine(tmp_path / "root"), monkeypatch, None, path)
    assert (found.source, found.init_error, found.driver_version.value) == ("nvidia-smi", "", "580.65.06")
    (device,) = found.devices.value or ()
    assert (device.uuid.value, device.bus_id.value) == ("GPU-aaaaaaaa", "0000:01:00.0")
    assert (device.memory_total_bytes.value, device.clock_events.value) == (143771 << 20, 8)
    assert (device.pcie_width.value, device.pcie_width_max.value, device.power_w.value) == (8, 16, 121.61)
    assert (device.compute_mode.value, device.persistence.value) == ("default", True)
    assert kind(device.nvlinks) is MissingKind.UNSUPPORTED
    assert kind(found.cuda_driver) is MissingKind.UNSUPPORTED


def test_nvidia_smi_of_an_older_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 535 the field had another name, and memory.reserved did not exist: asked for otherwise, or not at all."""
    row = SMI_ROW.replace(" 616,", "").replace("580.65.06", "470.57.02")
    script = f"""
case "$1" in
  *clocks_event_reasons.active*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
  *memory.reserved*) echo 'Field "memory.reserved" is not a valid field to query.'; exit 2 ;;
  *clocks_throttle_reasons.active*) echo '{row}' ;;
esac"""
    found = collect(machine(tmp_path / "root"), monkeypatch, None, tool(tmp_path / "bin", "nvidia-smi", script))
    (device,) = found.devices.value or ()
    assert (found.driver_version.value, device.clock_events.value) == ("470.57.02", 8)
    assert kind(device.memory_reserved_bytes) is MissingKind.UNSUPPORTED


def test_nvidia_smi_cells_that_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SMI_ROW.replace("Enabled, 0,", "[N/A], [Unknown Error],", 1).replace("121.61", "121,61 W")
    readable = row.replace("121,61 W", "viel")  # the row before it has a cell too many and does not count
    path = tool(tmp_path / "bin", "nvidia-smi", f"echo '{row}'; echo '{readable}'")
    found = collect(machine(tmp_path / "root"), monkeypatch, None, path)
    (device,) = found.devices.value or ()
    assert kind(device.ecc_enabled) is MissingKind.ABSENT
    assert kind(device.ecc_uncorrected) is MissingKind.ERROR
    assert kind(device.power_w) is MissingKind.ERROR
    assert device.power_limit_w.value == 700.0


@pytest.mark.parametrize(
    "body",
    [
        "echo 'NVIDIA-SMI hat versagt, weil kein Treiber da ist.'; exit 9",
        "echo 'Field \"index\" is not a valid field to query.'; exit 2",
        "exit 0",
        "head -c 100000 /dev/zero",
        "echo 'a,b,c'",
    ],
)
def test_nvidia_smi_that_prints_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    path = tool(tmp_path / "bin", "nvidia-smi", body) + ":/usr/bin:/bin"
    found = collect(machine(tmp_path / "root"), monkeypatch, None, path)
    assert (found.source, found.init_error) == ("", "NO_BINDINGS")


def test_xids_are_counted_with_their_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[    1.000000] NVRM: loading NVIDIA UNIX Open Kernel Module\n"
        "[ 9000.500000] NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"
        "[ 9400.500000] NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.\n"
        "NVRM: Xid (PCI:0000:02:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008, MMU Fault\n"
        "[ nonsense ] NVRM: Xid (PCI): x, y\n" + "[12.0] NVRM: Xid (PCI:0000:02:00): 999999999999999999999999, z\n"
    )
    path = tool(tmp_path / "bin", "dmesg", f"cat {log}") + ":/usr/bin:/bin"
    found = collect(machine(tmp_path / "root"), monkeypatch, fake_nvml.write(tmp_path / "py"), path)
    xids = {xid.code: xid for xid in found.xids.value or ()}
    assert (xids[79].count, xids[79].bus_id, xids[79].last_age_s.value) == (2, "0000:01:00", 599.5)
    assert kind(xids[31].last_age_s) is MissingKind.UNSUPPORTED
    assert "MMU Fault" in xids[31].text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1", MissingKind.PERMISSION),
        ("sleep 60", MissingKind.TIMEOUT),
        (None, MissingKind.UNSUPPORTED),
    ],
)
def test_a_kernel_log_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, expected: MissingKind
) -> None:
    path = tool(tmp_path / "bin", "dmesg", body) + ":/usr/bin:/bin" if body else str(tmp_path / "none")
    found = collect(machine(tmp_path / "root"), monkeypatch, fake_nvml.write(tmp_path / "py"), path)
    assert kind(found.xids) is expected


def test_libraries_in_the_linkers_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path / "root")
    for directory, version in (("opt/cuda/compat", "590.44.01"), ("usr/lib/i386-linux-gnu", "580.65.06")):
        (root / directory).mkdir(parents=True)
        (root / directory / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    put(
        root,
        "/etc/ld.so.cache",
        "glibc-ld.so.cache1.1\0/usr/lib/i386-linux-gnu/libcuda.so.1\0/usr/lib64/libcuda.so.1\0",
    )
    found = collect(root, monkeypatch, fake_nvml.write(tmp_path / "py"), LD_LIBRARY_PATH="/opt/cuda/compat:relative:")
    shown = [(lib.name, lib.directory, lib.version, lib.kind) for lib in found.libraries]
    assert shown == [
        ("libcuda.so", "/opt/cuda/compat", "590.44.01", "compat"),
        ("libcuda.so", "/usr/lib64", "580.65.06", "system"),
        ("libnvidia-ml.so", "/usr/lib64", "580.65.06", "system"),
    ]


def test_lines_of_a_hostile_child() -> None:
    lines: list[Any] = [None, 7, [], {"device": "x"}, {"device": 10**30, "item": "name", "value": 1}, {"init": 3},
                        {"device": 0, "item": "handle", "value": 1}, {"device": 0, "item": "nosuch", "value": 1},
                        {"device": 0, "item": "name", "value": {"a": 1}}]  # fmt: skip
    assert read_init(lines) is None
    (device,) = read_devices(lines, 1, "silent")
    assert kind(device.name) is MissingKind.ERROR
    assert kind(device.uuid) is MissingKind.TIMEOUT


@pytest.mark.parametrize(
    ("uuid", "short"),
    [
        ("GPU-238e3c5b-4071-151f-f4c4-78b68ea0699f", "GPU-238e3c5b"),
        ("MIG-238e3c5b-4071-151f-f4c4-78b68ea0699f", "MIG-238e3c5b"),
        ("MIG-GPU-238e3c5b-4071-151f-f4c4-78b68ea0699f/1/0", "MIG-GPU-238e3c5b/1/0"),
        ("something else entirely", "something el"),
    ],
)
def test_short_uuid(uuid: str, short: str) -> None:
    assert short_uuid(uuid) == short
