"""AMD GPUs and the ROCm stack, from sysfs and version files alone: no tool is started."""

from __future__ import annotations

import os
import re
from typing import Any

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.gpu import AccelNode, AmdDevice, RocmFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.gpu_pci import AMD, pci_gpus

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_VERSION = re.compile(r"\d+(?:\.\d+){1,3}")
_ERRORS = re.compile(r"^ue:\s*(\d+)", re.M)


def collect(ctx: ProbeContext) -> RocmFacts | Fact[Any]:
    """Everything about the AMD side; absent on a machine that has no AMD GPU and no amdgpu driver."""
    loaded = ctx.exists("/sys/module/amdgpu")
    kfd = ctx.exists("/dev/kfd")
    pci = pci_gpus(ctx, AMD)
    if not loaded and not kfd and not pci.value:
        return absent("there is no AMD GPU in this machine")
    return RocmFacts(
        rocm_version=_rocm_version(ctx),
        driver_version=_first_version(ctx, "/sys/module/amdgpu/version"),
        driver_loaded=loaded,
        pci=pci,
        devices=_devices(ctx),
        kfd=_node(ctx, "/dev/kfd"),
        render_nodes=_render_nodes(ctx),
    )


def _rocm_version(ctx: ProbeContext) -> Fact[str]:
    root = ctx.environ.get("ROCM_PATH") or "/opt/rocm"
    return _first_version(ctx, f"{root}/.info/version")


def _first_version(ctx: ProbeContext, path: str) -> Fact[str]:
    text = ctx.read_text(path, limit=256)
    if text.value is None:
        return Fact(missing=text.missing)
    match = _VERSION.search(text.value)
    return known(match.group(0)) if match else missing(MissingKind.ERROR, f"{path} has no version in it")


def _devices(ctx: ProbeContext) -> Fact[tuple[AmdDevice, ...]]:
    names = ctx.list_dir(_NODES)
    if names.value is None:
        return Fact(missing=names.missing)
    devices: list[AmdDevice] = []
    unreadable: Fact[str] | None = None
    for name in sorted((n for n in names.value if n.isdecimal()), key=int)[:1024]:
        properties = ctx.read_text(f"{_NODES}/{name}/properties", limit=1 << 16)
        if properties.value is None:
            # A device cgroup hides the nodes of GPUs that were not handed to this container.
            unreadable = properties
        elif (device := _device(ctx, int(name), _numbers(properties.value))) is not None:
            devices.append(device)
    if not devices and unreadable is not None:
        return Fact(missing=unreadable.missing)
    return known(tuple(devices))


def _numbers(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal() and len(pair[1]) < 25}


def _device(ctx: ProbeContext, node: int, numbers: dict[str, int]) -> AmdDevice | None:
    if not numbers.get("simd_count"):
        return None
    location = numbers.get("location_id", 0)
    address = f"{numbers.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    minor = numbers.get("drm_render_minor", -1)
    base = f"/sys/class/drm/renderD{minor}/device"
    return AmdDevice(
        node=node,
        gfx=gfx_name(numbers.get("gfx_target_version", 0)),
        render_minor=minor,
        bus_id=address,
        device_id=f"{numbers.get('device_id', 0):04x}",
        memory_total_bytes=_integer(ctx, f"{base}/mem_info_vram_total"),
        memory_used_bytes=_integer(ctx, f"{base}/mem_info_vram_used"),
        compute_partition=_word(ctx, f"{base}/current_compute_partition"),
        memory_partition=_word(ctx, f"{base}/current_memory_partition"),
        ras_uncorrected=_ras_uncorrected(ctx, f"{base}/ras"),
    )


def gfx_name(version: int) -> str:
    """The target's name from KFD's number: 90402 is gfx942, 90010 is gfx90a; "" for none."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version > 0 else ""


def _integer(ctx: ProbeContext, path: str) -> Fact[int]:
    text = ctx.read_text(path, limit=64)
    if text.value is None:
        return Fact(missing=text.missing)
    word = text.value.strip()
    return known(int(word)) if word.isdecimal() else missing(MissingKind.ERROR, f"{path}: not a number")


def _word(ctx: ProbeContext, path: str) -> Fact[str]:
    text = ctx.read_text(path, limit=64)
    return Fact(missing=text.missing) if text.value is None else known(text.value.strip().upper())


def _ras_uncorrected(ctx: ProbeContext, directory: str) -> Fact[int]:
    names = ctx.list_dir(directory)
    if names.value is None:
        return Fact(missing=names.missing)
    total = 0
    for name in names.value:
        if name.endswith("_err_count"):
            text = ctx.read_text(f"{directory}/{name}", limit=4096).value or ""
            total += sum(int(number[:18]) for number in _ERRORS.findall(text))
    return known(total)


def _node(ctx: ProbeContext, path: str) -> Fact[AccelNode]:
    if not ctx.exists(path):
        return absent(f"there is no {path}")
    return known(AccelNode(path=path, usable=ctx.access(path, os.R_OK | os.W_OK)))


def _render_nodes(ctx: ProbeContext) -> Fact[tuple[AccelNode, ...]]:
    names = ctx.list_dir("/dev/dri")
    if names.value is None:
        return Fact(missing=names.missing)
    paths = [f"/dev/dri/{name}" for name in names.value if name.startswith("renderD")]
    return known(tuple(AccelNode(path=path, usable=ctx.access(path, os.R_OK | os.W_OK)) for path in paths))
