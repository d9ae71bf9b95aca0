"""Device nodes and hardware: what a container or a job was given, against what the kernel shows."""

from __future__ import annotations

import os
import re
import stat

from rlcheck.facts.system import Device, DeviceFacts, Hardware
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.kernel_text import read_int, read_word

_NODES = (
    ("/dev", re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-nvswitch\w*)|kfd")),
    ("/dev/dri", re.compile(r"renderD\d+")),
    ("/dev/infiniband", re.compile(r"uverbs\d+|rdma_cm")),
    ("/dev/nvidia-caps-imex-channels", re.compile(r"channel\d+")),
)
_KINDS = {
    "0x10de": ("nvidia", ("0x0300", "0x0302", "0x0380")),
    "0x1002": ("amd", ("0x0300", "0x0302", "0x0380", "0x1200")),
    "0x15b3": ("net", ("0x0200", "0x0207")),
}
_MOST_DEVICES = 4096


def collect_devices(context: ProbeContext) -> DeviceFacts:
    """Nodes with access, and accelerators on the PCI bus."""
    groups = _group_names(context)
    nodes: list[Device] = []
    for directory, pattern in _NODES:
        names = [name for name in context.list_dir(directory).value or () if pattern.fullmatch(name)]
        nodes += [_node(context, f"{directory}/{name}", groups) for name in names[:_MOST_DEVICES]]
    return DeviceFacts(
        nodes=tuple(nodes),
        hardware=_hardware(context),
        infiniband=tuple(context.list_dir("/sys/class/infiniband").value or ()),
        nvidia_driver=context.exists("/proc/driver/nvidia/version"),
        amd_driver=context.exists("/sys/class/kfd/kfd"),
    )


def _node(context: ProbeContext, path: str, groups: dict[int, str]) -> Device:
    usable = context.access(path, os.R_OK | os.W_OK)
    try:
        status = os.stat(context.path(path))
    except (OSError, ValueError):
        return Device(path=path, usable=usable)
    return Device(
        path=path,
        usable=usable,
        gid=status.st_gid,
        group=groups.get(status.st_gid, ""),
        mode=oct(stat.S_IMODE(status.st_mode))[2:],
    )


def _group_names(context: ProbeContext) -> dict[int, str]:
    rows = (line.split(":") for line in (context.read_text("/etc/group").value or "").splitlines())
    return {int(row[2]): row[0] for row in rows if len(row) >= 3 and row[2].isdecimal() and len(row[2]) < 20}


def _hardware(context: ProbeContext) -> tuple[Hardware, ...]:
    found: list[Hardware] = []
    for address in (context.list_dir("/sys/bus/pci/devices").value or ())[:_MOST_DEVICES]:
        directory = f"/sys/bus/pci/devices/{address}"
        kind, classes = _KINDS.get(read_word(context, f"{directory}/vendor", 64).value or "", ("", ()))
        if not kind or not (read_word(context, f"{directory}/class", 64).value or "").startswith(classes):
            continue
        node = read_int(context, f"{directory}/numa_node").value
        found.append(Hardware(kind=kind, address=address, numa_node=-1 if node is None else node))
    return tuple(found)
