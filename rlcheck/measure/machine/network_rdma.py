"""Reads RDMA devices (InfiniBand, RoCE, EFA) from sysfs, without ibverbs and without root.

Some attributes answer EINVAL on restricted functions and make the driver write to the kernel log each time. So a port
is left alone after the first such answer, and no more of a GID table is read than decides anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing, value_or
from rlcheck.facts.network import Gid, RdmaDevice, RdmaPort
from rlcheck.measure.machine.context import ProbeContext

_RDMA = "/sys/class/infiniband"
_DEVICE_LIMIT = 64
_PORT_LIMIT = 8
GID_LIMIT = 16
_GID_INDEX_LIMIT = 256
_ATTRIBUTES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
_RATE = re.compile(r"\s*([\d.]+)\s*Gb/sec(?:\s*\(([^)]*)\))?")
_ZERO = re.compile(r"[0:]*")


def read_word(ctx: ProbeContext, path: str) -> str:
    """The text of a one-line sysfs file, or "" when it cannot be read."""
    return value_or(ctx.read_text(path, 4096), "").strip()


def read_int(ctx: ProbeContext, path: str, default: int = 0) -> int:
    """The decimal number in a sysfs file, or `default`."""
    return _number(read_word(ctx, path), 10, default)


def _number(text: str, base: int, default: int = 0) -> int:
    try:
        return int(text, base) if len(text) <= 20 else default
    except ValueError:
        return default


def collect_rdma(ctx: ProbeContext) -> Fact[tuple[RdmaDevice, ...]]:
    """Every RDMA device; absent when the kernel lists none."""
    names = ctx.list_dir(_RDMA)
    if names.value is None and names.missing is not None and names.missing.kind is not MissingKind.ABSENT:
        return missing(names.missing.kind, names.missing.reason)
    if not names.value:
        return absent("no RDMA device (InfiniBand, RoCE, EFA) on this machine")
    nodes = _verbs_nodes(ctx)
    return known(tuple(_device(ctx, name, nodes.get(name, "")) for name in names.value[:_DEVICE_LIMIT]))


def _verbs_nodes(ctx: ProbeContext) -> dict[str, str]:
    """The uverbs node of every device: `/sys/class/infiniband_verbs/uverbs0/ibdev` holds the device's name."""
    base = "/sys/class/infiniband_verbs"
    nodes = [name for name in value_or(ctx.list_dir(base), []) if name.startswith("uverbs")]
    return {read_word(ctx, f"{base}/{node}/ibdev"): node for node in nodes}


def _device(ctx: ProbeContext, name: str, node: str) -> RdmaDevice:
    base = f"{_RDMA}/{name}"
    place = value_or(ctx.read_link(f"{base}/device"), "")
    ports = [int(port) for port in value_or(ctx.list_dir(f"{base}/ports"), []) if port.isdecimal() and len(port) < 4]
    pci = os.path.basename(place)
    return RdmaDevice(
        name=name,
        ports=tuple(_port(ctx, f"{base}/ports/{number}", number) for number in sorted(ports)[:_PORT_LIMIT]),
        driver=os.path.basename(value_or(ctx.read_link(f"{base}/device/driver"), "")),
        model=" ".join(filter(None, (read_word(ctx, f"{base}/hca_type"), read_word(ctx, f"{base}/board_id")))),
        uverbs=node,
        uverbs_usable=bool(node) and ctx.access(f"/dev/infiniband/{node}", os.R_OK | os.W_OK),
        pci=pci if pci.count(":") == 2 else "",
        numa_node=read_int(ctx, f"{base}/device/numa_node", -1),
        netdevs=tuple(value_or(ctx.list_dir(f"{base}/device/net"), [])),
    )


def _port(ctx: ProbeContext, base: str, number: int) -> RdmaPort:
    texts: dict[str, str] = {}
    refused: list[str] = []
    for name in _ATTRIBUTES:
        fact = ctx.read_text(f"{base}/{name}", 4096)
        if fact.value is None:
            refused.append(name)
            if fact.missing is not None and fact.missing.kind is MissingKind.ERROR:
                break
        else:
            texts[name] = fact.value.strip()
    rate = _RATE.match(texts.get("rate", ""))
    gids, read_to = ((), 0) if refused else _gids(ctx, base)
    return RdmaPort(
        number=number,
        state=_state(texts, "state"),
        phys_state=_state(texts, "phys_state"),
        link_layer=texts.get("link_layer", ""),
        rate_gbps=_rate(rate[1]) if rate else 0.0,
        width=(rate[2] or "") if rate else "",
        lid=_number(texts.get("lid", ""), 0),
        sm_lid=_number(texts.get("sm_lid", ""), 0),
        gids=gids,
        gids_read_to=read_to,
        unreadable=tuple(refused),
    )


def _state(texts: dict[str, str], name: str) -> str:
    """`4: ACTIVE` without its number."""
    return texts.get(name, "").rpartition(":")[2].strip()


def _rate(text: str) -> float:
    try:
        return float(text) if len(text) < 12 else 0.0
    except ValueError:
        return 0.0


def _gids(ctx: ProbeContext, base: str) -> tuple[tuple[Gid, ...], int]:
    """The entries that are not zero, and the first index not looked at.

    Past the entries in use the table is zeros: it is not read to its end (up to 256) once a run of them has gone by.
    """
    indexes: Sequence[int] = sorted(
        int(name) for name in value_or(ctx.list_dir(f"{base}/gids"), []) if name.isdecimal() and len(name) < 4
    )
    found: list[Gid] = []
    zeros = read_to = 0
    for index in indexes[:_GID_INDEX_LIMIT]:
        read_to = index + 1
        gid = read_word(ctx, f"{base}/gids/{index}")
        zeros = zeros + 1 if _ZERO.fullmatch(gid) else 0
        if not zeros:
            attributes = f"{base}/gid_attrs"
            type_ = read_word(ctx, f"{attributes}/types/{index}")
            found.append(Gid(index=index, gid=gid, type=type_, netdev=read_word(ctx, f"{attributes}/ndevs/{index}")))
        if len(found) >= GID_LIMIT or zeros >= 16:
            break
    else:
        read_to = _GID_INDEX_LIMIT if indexes else 0
    return tuple(found), read_to
