"""A machine on which every file, directory, tool and child process answers something odd, and always the same."""

from __future__ import annotations

import ast
import functools
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.process import CommandResult
from tests.conftest import ROOT
from tests.property.trees import STRINGS, Maker, variables, words

# What such files really hold, by the end of their path; the rest is read from the machine that runs the tests.
CONTENTS = {
    "/vendor": "0x10de\n",
    "/device": "0x2335\n",
    "/class": "0x030200\n",
    "/uevent": "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2335\nPCI_SLOT_NAME=0000:0f:00.0\n",
    "/numa_node": "-1\n",
    "/state": "4: ACTIVE\n",
    "/phys_state": "5: LinkUp\n",
    "/rate": "400 Gb/sec (4X NDR)\n",
    "/link_layer": "InfiniBand\n",
    "/sm_lid": "0x1\n",
    "/operstate": "up\n",
    "/mtu": "1500\n",
    "/speed": "100000\n",
    "/flags": "0x1003\n",
    "/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
    "/properties": "gfx_target_version 90402\nsimd_count 1216\ndrm_render_minor 128\nvendor_id 4098\ndomain 0\n",
    "/mem_info_vram_total": "206141652992\n",
    "/.info/version": "7.2.4-15\n",
    "/proc/modules": "nvidia 9 1 - Live 0x0 (POE)\namdgpu 1 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\n",
    "/proc/net/route": "Iface\tDestination\tGateway\neth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\n",
    "/memory.max": "max\n",
    "/cpu.max": "400000 100000\n",
    "/memory.limit_in_bytes": "9223372036854771712\n",
    "/ray_current_cluster": "10.0.0.1:6379\n",
    "/nccl.conf": "NCCL_DEBUG=INFO\n# c\nNCCL_SOCKET_IFNAME = eth0\n=\n",
    "/cmdline": "/x/raylet\0--gcs_address=10.0.0.1:6379\0--session-name=session_2026\0--temp-dir=/tmp/ray\0",
}
NAMES = {
    "/devices": ("0000:0f:00.0", "0000:10:00.0", "garbage"),
    "/nodes": ("0", "1", "x"),
    "/infiniband": ("mlx5_0", "mlx5_bond_0", "uverbs0"),
    "/ports": ("1", "2", "x"),
    "/gids": ("0", "1", "3"),
    "/net": ("lo", "eth0", "docker0", "ib0"),
    "/proc": ("1", "42", "4194304", "self"),
    "/dev": ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "kfd"),
    "/dri": ("card0", "renderD128"),
    "/gpus": ("0000:0f:00.0",),
    "/fd": ("0", "99"),
}
LINKS = (
    "../../../bus/pci/drivers/nvidia",
    "../../devices/pci0000:00/0000:0f:00.0",
    "/dev/null",
    "/tmp/ray/session_2026",
    "loop",
    "",
)


@functools.cache
def literals() -> tuple[str, ...]:
    """The string literals of the probes and of their children: keys that they look for, among other things."""
    found: set[str] = set()
    for package in ("probes", "remote"):
        for path in (ROOT / "rlcheck" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
                    found.add(node.value)
    return tuple(sorted(found))


class OddMachine(ProbeContext):
    """Answers by chance, the same question always alike. `calm` is how often an answer is as on a real machine."""

    def __init__(self, seed: int, calm: float, root: str, python: Sequence[str] = (), deep: bool = False) -> None:
        super().__init__(root, _environ(seed), python, deep)
        self.seed = seed
        self.calm = calm

    def _chance(self, *question: object) -> random.Random:
        return random.Random(zlib.crc32(repr((self.seed, *question)).encode("utf-8", "replace")))

    def read_text(self, path: str, limit: int = 4 << 20) -> Fact[str]:
        chance = self._chance("read", path)
        if chance.random() < (0.1 if self.calm > 0.5 else 0.3):
            return _failure(chance)
        return known(_spoiled(_usual(path), chance, self.calm)[:limit])

    def list_dir(self, path: str) -> Fact[list[str]]:
        chance = self._chance("list", path)
        if chance.random() < 0.15:
            return _failure(chance)
        usual = next((names for end, names in NAMES.items() if path.rstrip("/").endswith(end)), ("0", "a", "x.conf"))
        odd = [name for name in (chance.choice(STRINGS), chance.choice(literals())) if chance.random() > self.calm]
        return known(
            sorted({*chance.sample(usual, chance.randrange(len(usual) + 1)), *(n for n in odd if "/" not in n and n)})
        )

    def read_link(self, path: str) -> Fact[str]:
        chance = self._chance("link", path)
        return (
            _failure(chance)
            if chance.random() < 0.3
            else known(_spoiled(chance.choice(LINKS), chance, self.calm)[:200])
        )

    def exists(self, path: str) -> bool:
        return self._chance("exists", path).random() < 0.5

    def access(self, path: str, mode: int) -> bool:
        return self._chance("access", path, mode).random() < 0.5

    def find_command(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if self._chance("find", name).random() < 0.7 else None

    def run(self, argv: Sequence[str], timeout_s: float = 5.0, stdin: str | None = None) -> Fact[CommandResult]:
        chance = self._chance("run", tuple(argv))
        if chance.random() < 0.2:
            return _failure(chance)
        output = _spoiled(chance.choice((*STRINGS, *TOOLS)), chance, self.calm)
        return known(
            CommandResult(
                returncode=chance.choice((0, 0, 0, 1, -11, 127)), stdout=output, stderr=chance.choice(STRINGS)
            )
        )

    def child(self, script: str, payload: Any = None, timeout_s: float = 5.0) -> list[Any]:
        chance = self._chance("child", script)
        maker = Maker(chance.randrange(2**32))
        if script == "nvml_child.py" and chance.random() < 0.7:
            return _nvml(maker, chance, self.calm)
        return [_line(maker) for _ in range(chance.randrange(6))]


TOOLS = (
    "0, NVIDIA H200, 580.65.06, 00000000:0F:00.0, GPU-deadbeef, 143771 MiB, 9.0, [N/A]\n",
    "[  12.3] NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
    "00:01.0 PCI bridge: X\n\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+\n",
    "{\"card0\": {\"GFX Version\": \"gfx942\"}}\n",
    "gcc (Ubuntu 13.2.0) 13.2.0\n",
    "\tlibc.so.6 (libc6,x86-64) => /lib/libc.so.6\n",
)  # fmt: skip


NVML: dict[str, Any] = {
    "handle": True,
    "uuid": "GPU-deadbeef-0000",
    "name": "NVIDIA H200",
    "bus_id": "00000000:0F:00.0",
    "compute_capability": [9, 0],
    "memory": {"total": 150754820096, "used": 1 << 30, "reserved": None},
    "mig_enabled": False,
    "mig_uuids": [],
    "compute_mode": 0,
    "persistence": 1,
    "ecc_enabled": True,
    "ecc_uncorrected": 0,
    "retired_pages_pending": 0,
    "recovery_action": 0,
    "clock_events": 4,
    "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "fabric": {"state": 3, "status": 0, "cluster_uuid": ""},
    "temperature_c": 30,
    "nvlinks": {"active": 18, "inactive": 0},
    "power_w": 75.5,
    "power_limit_w": 700.0,
    "power_default_w": 700.0,
    "numa_node": 0,
    "processes": [{"pid": 42, "used": None}],
}


def _nvml(maker: Maker, chance: random.Random, calm: float) -> list[Any]:
    """What the NVML child prints about two GPUs, with lines spoiled, lost or out of place."""
    lines: list[Any] = [{"init": {"error": "", "driver_version": "580.65.06", "cuda_driver": 13000, "count": 2}}]
    for device in (0, 1, -1 if chance.random() < 0.1 else 1):
        for item, value in NVML.items():
            odd = chance.random() > max(calm, 0.6)
            line = {"device": device, "item": item, "value": _line(maker) if odd else value}
            lines.append({"device": device, "item": item, "error": maker.text()} if chance.random() < 0.1 else line)
    kept = [line for line in lines if chance.random() < 0.95]
    return kept if chance.random() < 0.5 else [*kept, {"end": True}]


def _environ(seed: int) -> Mapping[str, str]:
    chance = random.Random(seed)
    names = chance.sample(variables(), min(len(variables()), chance.randrange(12)))
    base = {"PATH": "/usr/bin", "HOME": chance.choice(("/home/u", "", "/", "relative", "/\udcff", "~"))}
    return {**base, **{name: Maker(chance.randrange(2**32)).text().replace("\0", "") for name in names}}


def _failure(chance: random.Random) -> Fact[Any]:
    return (
        absent("not there") if chance.random() < 0.5 else missing(chance.choice(list(MissingKind)), "Invalid argument")
    )


@functools.cache
def _usual(path: str) -> str:
    for end, content in CONTENTS.items():
        if path.endswith(end):
            return content
    fact = ProbeContext().read_text(path, 4096) if path.startswith(("/proc/", "/sys/", "/etc/")) else absent("")
    return fact.value or "1\n"


def _spoiled(text: str, chance: random.Random, calm: float) -> str:
    """The text with something wrong with it, or another one altogether."""
    if chance.random() < calm:
        return text
    kind = chance.randrange(6)
    if kind == 0:
        return chance.choice(STRINGS)
    if kind == 1:
        return text[: chance.randrange(len(text) + 1)]
    if kind == 2:
        return text * chance.choice((2, 50))
    if kind == 3:
        fields = text.split(" ")
        fields[chance.randrange(len(fields))] = chance.choice(STRINGS)
        return " ".join(fields)
    if kind == 4:
        return "".join(chance.choice(STRINGS) if c.isdigit() and chance.random() < 0.3 else c for c in text[:2000])
    return "".join(c if chance.random() < 0.9 else chr(chance.randrange(0x20, 0x3000)) for c in text[:4000])


def _line(maker: Maker, depth: int = 0) -> Any:
    """A line of a child process: objects with the keys that the probes look for, wrong values under them."""
    if depth > 3 or maker.random.random() < 0.3:
        return maker.random.choice((*words(), *STRINGS, None, True, 0, -1, 1.5, 2**40, 10**30))
    if maker.random.random() < 0.3:
        return [_line(maker, depth + 1) for _ in range(maker.random.randrange(4))]
    return {maker.random.choice(literals()): _line(maker, depth + 1) for _ in range(maker.random.randrange(12))}
