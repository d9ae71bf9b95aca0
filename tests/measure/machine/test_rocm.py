"""The AMD probe on made-up machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.base import Fact, MissingKind, why_missing
from rlcheck.facts.gpu import RocmFacts
from rlcheck.measure.machine import rocm
from rlcheck.measure.machine.context import ProbeContext

NODES = "/sys/class/kfd/kfd/topology/nodes"


def put(root: Path, path: str, text: str = "") -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def machine(root: Path, num_gpus: int = 2) -> Path:
    """A fake tree of an MI300X machine: one CPU node and the GPUs."""
    put(root, "/dev/kfd")
    put(root, "/sys/module/amdgpu/version", "6.16.13\n")
    put(root, "/opt/rocm/.info/version", "7.2.1-48\n")
    put(root, f"{NODES}/0/properties", "cpu_cores_count 96\nsimd_count 0\n")
    for n in range(num_gpus):
        minor = 128 + n
        put(root, f"/dev/dri/renderD{minor}")
        text = f"simd_count 1216\ngfx_target_version 90402\nlocation_id {(n + 1) << 8}\ndomain 0\ndevice_id 29857\n"
        put(root, f"{NODES}/{n + 1}/properties", f"{text}drm_render_minor {minor}\n")
        base = f"/sys/class/drm/renderD{minor}/device"
        put(root, f"{base}/mem_info_vram_total", "206141652992\n")
        put(root, f"{base}/mem_info_vram_used", "311222272\n")
        put(root, f"{base}/current_compute_partition", "spx\n")
        put(root, f"{base}/current_memory_partition", "NPS1\n")
        put(root, f"{base}/ras/umc_err_count", "ue: 2\nce: 5\n")
        put(root, f"{base}/ras/gfx_err_count", "ue: 1\nce: 0\n")
        pci = f"/sys/bus/pci/devices/0000:0{n + 1}:00.0"
        put(root, f"{pci}/vendor", "0x1002\n")
        put(root, f"{pci}/class", "0x120000\n")
        put(root, f"{pci}/device", "0x74a1\n")
    return root


def collect(root: Path, **environ: str) -> RocmFacts:
    found = rocm.collect(ProbeContext(root=root, environ=environ))
    assert isinstance(found, RocmFacts)
    return found


def kind(fact: Fact[Any]) -> MissingKind | None:
    reason = why_missing(fact)
    return None if reason is None else reason.kind


def test_no_amd_gpu_is_absent(tmp_path: Path) -> None:
    found = rocm.collect(ProbeContext(root=tmp_path, environ={}))
    assert isinstance(found, Fact)
    assert kind(found) is MissingKind.ABSENT


def test_healthy_machine(tmp_path: Path) -> None:
    found = collect(machine(tmp_path))
    assert (found.rocm_version.value, found.driver_version.value, found.driver_loaded) == ("7.2.1", "6.16.13", True)
    assert found.kfd.value is not None
    assert found.kfd.value.usable
    assert [node.path for node in found.render_nodes.value or ()] == ["/dev/dri/renderD128", "/dev/dri/renderD129"]
    first, second = found.devices.value or ()
    assert (first.gfx, first.device_id, second.bus_id) == ("gfx942", "74a1", "0000:02:00.0")
    assert (first.memory_total_bytes.value, first.memory_used_bytes.value) == (206141652992, 311222272)
    assert (first.compute_partition.value, first.memory_partition.value) == ("SPX", "NPS1")
    assert first.ras_uncorrected.value == 3
    assert [(gpu.device_id, gpu.pci_class) for gpu in found.pci.value or ()] == [("74a1", "1200")] * 2


def test_gpu_on_the_bus_without_a_driver(tmp_path: Path) -> None:
    pci = "/sys/bus/pci/devices/0000:01:00.0"
    for name, text in (("vendor", "0x1002"), ("class", "0x120000"), ("device", "0x74a1")):
        put(tmp_path, f"{pci}/{name}", text)
    found = collect(tmp_path)
    assert not found.driver_loaded
    assert len(found.pci.value or ()) == 1
    assert (kind(found.devices), kind(found.kfd)) == (MissingKind.ABSENT, MissingKind.ABSENT)


@pytest.mark.parametrize(
    ("number", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201"), (0, "")],
)
def test_gfx_names(number: int, name: str) -> None:
    assert rocm.gfx_name(number) == name


def test_f72_closed_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user outside the groups; root may open everything, so the answer of access(2) is given."""
    monkeypatch.setattr(ProbeContext, "access", lambda *_: False)
    found = collect(machine(tmp_path))
    assert found.kfd.value is not None
    assert not found.kfd.value.usable
    assert not any(node.usable for node in found.render_nodes.value or ())


def test_hidden_topology_nodes_are_passed_over(tmp_path: Path) -> None:
    """In a container the nodes of other GPUs cannot be read: a directory in the file's place gives an error as well."""
    root = machine(tmp_path)
    (root / f"{NODES}/2/properties".lstrip("/")).unlink()
    (root / f"{NODES}/2/properties".lstrip("/")).mkdir()
    assert len(collect(root).devices.value or ()) == 1


def test_all_topology_nodes_hidden_is_not_none(tmp_path: Path) -> None:
    root = machine(tmp_path)
    for n in range(3):
        file = root / f"{NODES}/{n}/properties".lstrip("/")
        file.unlink()
        file.mkdir()
    assert kind(collect(root).devices) is MissingKind.ERROR


def test_garbage_everywhere(tmp_path: Path) -> None:
    root = machine(tmp_path, num_gpus=1)
    for file in [path for path in root.rglob("*") if path.is_file()]:
        file.write_bytes(b"\xff\x00 simd_count x\nsimd_count 99999999999999999999999999\ngfx_target_version -1 ue: z\n")
    found = collect(root)
    assert found.devices.value == ()
    assert (kind(found.rocm_version), found.driver_loaded) == (MissingKind.ERROR, True)


def test_rocm_elsewhere(tmp_path: Path) -> None:
    root = machine(tmp_path)
    put(root, "/opt/rocm-6.4.1/.info/version", "6.4.1-83\n")
    assert collect(root, ROCM_PATH="/opt/rocm-6.4.1").rocm_version.value == "6.4.1"
