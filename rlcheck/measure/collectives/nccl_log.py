"""What NCCL (or RCCL) says it does, read from NCCL_DEBUG=INFO texts of the ranks of one group.

Understands the lines of 2.18 to 2.32: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlcheck.facts.collectives import Transport

_MAX_WARNINGS, _MAX_WARNING_CHARS = 20, 200
_VERSION = re.compile(r"\b([NR]CCL) version(?: :)? ?(\d[\w.+:-]*)")
_NETWORK = re.compile(r"Using network (\S.*?)\s*$")
# An interface or device list: [0]mlx5_0:1/IB, [1]={mlx5_1:1/RoCE+mlx5_2:1/RoCE}, [0]eth0:10.0.0.1<0>
_LIST = re.compile(r"NET/(\w+)\s?: Using\s?(\[.*)")
_ENTRY = re.compile(r"\[(\d+)\]=?\{?([^\s;}]+)")
_BOOTSTRAP = re.compile(r"Bootstrap\s?: Using (?:\[\d+\])?([^\s:]+):")
_CHANNEL = re.compile(r"Channel (\d+)(?:/\w+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(send|receive)\] )?via (\S.*)")
_VIA_NET = re.compile(r"NET/([^/]+)/(\d+)(?:\(\d+\))?((?:/\w+|\(PCI\))*)")
_RING = re.compile(r"Channel \d+/(\d+) : +\d+(?: +\d+)*\s*$")
_TREES = re.compile(r"\bTrees? \[\d+\]")
_SUMMARY = re.compile(r"(\d+) coll channels,(?: \d+ collnet channels,)? (\d+) nvls channels")
_PLUGIN = re.compile(r"NET/Plugin\s?: (?:Loaded net plugin|Plugin name set by env to) (\S.*?)(?: \(v\d+\))?\s*$")
_WARN = re.compile(r"NCCL WARN (.*\S)|NCCL DIAG \[INFO\] (.*\S)")


@dataclass
class _Reading:
    """What is gathered while the lines pass by."""

    versions: Counter[str] = field(default_factory=Counter[str])
    networks: Counter[str] = field(default_factory=Counter[str])
    links: Counter[str] = field(default_factory=Counter[str])
    interfaces: dict[int, str] = field(default_factory=dict[int, str])
    listed: dict[int, dict[int, str]] = field(default_factory=dict[int, dict[int, str]])
    used: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    warnings: dict[str, None] = field(default_factory=dict[str, None])
    rings: int = 0
    trees: int = 0
    nvls: bool = False
    plugin: str = ""


def parse(texts: Mapping[int, str]) -> Transport:
    """What was used, from the log of each rank (rank to text). Lines that mean nothing here are passed over."""
    reading = _Reading()
    for rank, text in sorted(texts.items()):
        for line in text.splitlines():
            _read(reading, rank, line)
    return _transport(reading)


def _transport(reading: _Reading) -> Transport:
    nics = {rank: reading.used.get(rank) or set(listed.values()) for rank, listed in reading.listed.items()}
    nics |= {rank: used for rank, used in reading.used.items() if rank not in nics}
    return Transport(
        library=_most(reading.versions),
        network=_most(reading.networks),
        links=dict(sorted(reading.links.items())),
        nics=tuple(sorted({nic for found in nics.values() for nic in found})),
        interface=_most(Counter(reading.interfaces.values())),
        rings=reading.rings,
        trees=reading.trees,
        nvls=reading.nvls,
        gdr=any("GDRDMA" in kind for kind in reading.links),
        plugin=reading.plugin,
        warnings=tuple(reading.warnings),
        rank_nics={str(rank): tuple(sorted(found)) for rank, found in sorted(nics.items())},
        rank_interfaces={str(rank): name for rank, name in sorted(reading.interfaces.items())},
    )


def _most(counts: Counter[str]) -> str:
    return max(counts, key=lambda name: (counts[name], name), default="")


def _read(reading: _Reading, rank: int, line: str) -> None:
    if "WARN" in line or "NCCL DIAG" in line:
        _read_warning(reading, rank, line)
    elif " via " in line:
        _read_channel(reading, rank, line)
    elif "Using" in line:
        _read_choice(reading, rank, line)
    elif found := _VERSION.search(line):
        reading.versions[f"{found[1]} {found[2]}"] += 1
    elif found := _RING.search(line):
        reading.rings = max(reading.rings, int(found[1]))
    elif found := _SUMMARY.search(line):
        reading.rings = max(reading.rings, int(found[1]))
        reading.nvls = reading.nvls or int(found[2]) > 0
    elif found := _TREES.search(line):
        reading.trees = max(reading.trees, line.count("[", found.start()))
    elif found := _PLUGIN.search(line):
        reading.plugin = found[1]


def _read_warning(reading: _Reading, rank: int, line: str) -> None:
    found = _WARN.search(line)
    if found and len(reading.warnings) < _MAX_WARNINGS:
        reading.warnings.setdefault(f"rank {rank}: {found[1] or found[2]}"[:_MAX_WARNING_CHARS])


def _read_choice(reading: _Reading, rank: int, line: str) -> None:
    if found := _BOOTSTRAP.search(line):
        reading.interfaces[rank] = found[1]
    elif found := _NETWORK.search(line):
        reading.networks[found[1]] += 1
    elif found := _LIST.search(line):
        devices = _ENTRY.findall(found[2].partition("; OOB")[0])
        reading.listed[rank] = {int(index): _device(found[1], name) for index, name in devices}
    elif found := _PLUGIN.search(line):
        reading.plugin = found[1]


def _device(network: str, entry: str) -> str:
    """`mlx5_0` of `mlx5_0:1/IB`, `eth0` of `eth0:10.0.0.1<0>`; bonded devices keep all their names."""
    if network == "Socket":
        return entry.partition(":")[0]
    return "+".join(part.partition(":")[0] for part in entry.split("+"))


def _read_channel(reading: _Reading, rank: int, line: str) -> None:
    found = _CHANNEL.search(line)
    if not found:
        return
    network = _VIA_NET.match(found[3])
    if network is None:
        reading.links[_kind(found[3])] += 1
        return
    index = int(network[2])
    name = reading.listed.get(rank, {}).get(index, f"{network[1]}/{index}")
    reading.used.setdefault(rank, set()).add(name)
    if found[2] != "receive":  # Each connection is reported by both of its ends.
        reading.links[f"NET/{network[1]}" + ("/GDRDMA" if "/GDRDMA" in network[3] else "")] += 1


def _kind(via: str) -> str:
    """`P2P/CUMEM` of `P2P/CUMEM/read`, `SHM` of `SHM/direct/direct`, `P2P/direct` of `P2P/direct pointer`."""
    words = via.split(maxsplit=1)[0].split("/")
    return "SHM" if words[0] == "SHM" else "/".join(words[:2])
