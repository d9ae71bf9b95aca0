"""The NCCL probe on made-up machines: libraries, the linker's choice, configuration files, named files, plug-ins."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.base import MissingKind
from rlcheck.facts.nccl import NcclFacts
from rlcheck.measure.machine import nccl
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.nccl import parse_conf
from rlcheck.measure.machine.nccl_library import version_in_file
from rlcheck.remote.scan.elf import Elf
from tests.conftest import ROOT

SITE = "/venv/lib/python3.12/site-packages"
RPATH = "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN"


def put(root: Path, name: str, data: str | bytes = "") -> Path:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def elf(needed: tuple[str, ...] = (), rpath: str = "", runpath: str = "") -> bytes:
    """A 64-bit ELF file with one loaded segment that holds a dynamic section and its strings."""
    strings = b"\0"
    entries: list[tuple[int, int]] = []
    for tag, text in (*((1, name) for name in needed), (15, rpath), (29, runpath)):
        if text:
            entries.append((tag, len(strings)))
            strings += text.encode() + b"\0"
    start = 64 + 2 * 56
    dynamic_size = (len(entries) + 2) * 16
    entries += [(5, start + dynamic_size), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    size = start + len(dynamic) + len(strings)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    table = struct.pack("<IIQQQQQQ", 2, 4, start, start, start, len(dynamic), len(dynamic), 8)
    return header + load + table + dynamic + strings


def library(version: str) -> bytes:
    return b"\x7fELF" + bytes(5000) + b"NCCL version %s\0" + bytes(10) + f"NCCL version {version}+cuda12.9\0".encode()


def collect(root: Path, environ: dict[str, str] | None = None) -> NcclFacts:
    return nccl.collect(ProbeContext(root, environ=environ or {}, python=("/venv/bin/python",)))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """torch from a wheel with NCCL 2.28.9, a system copy 2.28.3, another copy in /opt/nccl."""
    put(tmp_path, f"{SITE}/torch/lib/libtorch_cuda.so", elf(("libc10.so", "libnccl.so.2"), rpath=RPATH))
    put(tmp_path, f"{SITE}/nvidia/nccl/lib/libnccl.so.2", library("2.28.9"))
    put(tmp_path, "/usr/lib/libnccl.so.2.28.3", library("0.0.0"))
    (tmp_path / "usr/lib/libnccl.so.2").symlink_to("libnccl.so.2.28.3")
    put(tmp_path, "/opt/nccl/lib/libnccl.so.2", library("2.21.5"))
    return tmp_path


def test_wheel_with_rpath_ignores_ld_library_path(machine: Path) -> None:
    facts = collect(machine, {"LD_LIBRARY_PATH": "/opt/nccl/lib:relative:"})
    linkage = facts.torch.value
    assert linkage is not None
    assert (linkage.search, linkage.loaded_by, linkage.loaded_version) == ("rpath", "rpath", "2.28.9")
    assert linkage.loaded == f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
    assert [(found.origin, found.version) for found in facts.libraries] == [
        ("bundled", "2.28.9"),
        ("LD_LIBRARY_PATH", "2.21.5"),
        ("system", "2.28.3"),
    ]


def test_runpath_loses_against_ld_library_path(machine: Path) -> None:
    put(machine, f"{SITE}/torch/lib/libtorch_cuda.so", elf(("libnccl.so.2",), runpath=RPATH))
    linkage = collect(machine, {"LD_LIBRARY_PATH": "/opt/nccl/lib"}).torch.value
    assert linkage is not None
    assert (linkage.search, linkage.loaded_by, linkage.loaded_version) == ("runpath", "LD_LIBRARY_PATH", "2.21.5")
    linkage = collect(machine).torch.value
    assert linkage is not None
    assert (linkage.loaded_by, linkage.loaded_version) == ("runpath", "2.28.9")


def test_preload_wins_over_all(machine: Path) -> None:
    linkage = collect(machine, {"LD_PRELOAD": "libfoo.so /opt/nccl/lib/libnccl.so.2"}).torch.value
    assert linkage is not None
    assert (linkage.loaded_by, linkage.loaded_version) == ("LD_PRELOAD", "2.21.5")


def test_static_and_missing_library(machine: Path) -> None:
    put(machine, f"{SITE}/torch/lib/libtorch_cuda.so", elf(("libc10.so",)))
    linkage = collect(machine).torch.value
    assert linkage is not None
    assert not linkage.needs_nccl
    put(machine, f"{SITE}/torch/lib/libtorch_cuda.so", elf(("libnccl.so.9",)))
    linkage = collect(machine).torch.value
    assert linkage is not None
    assert (linkage.loaded, linkage.loaded_by) == ("", "")


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 300, b"#!/bin/sh\n", elf()[:150]]
)
def test_damaged_torch_library(machine: Path, data: bytes) -> None:
    put(machine, f"{SITE}/torch/lib/libtorch_cuda.so", data)
    found = collect(machine).torch
    assert found.value is None
    assert found.missing is not None
    assert found.missing.kind is MissingKind.ERROR


def test_elf_reader(tmp_path: Path) -> None:
    path = put(tmp_path, "x.so", elf(("a.so", "b.so"), rpath="/one:/two"))
    with Elf(str(path)) as file:
        assert (file.needed, file.rpath, file.runpath) == (["a.so", "b.so"], ["/one:/two"], [])


@pytest.mark.parametrize("reads", range(6))
def test_a_library_that_is_cut_short_between_two_reads_is_a_reason(
    machine: Path, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    path = put(machine, f"{SITE}/torch/lib/libtorch_cuda.so", elf(("libc10.so", "libnccl.so.2"), rpath=RPATH))
    read, left = os.pread, [reads]

    def pread(file: int, size: int, offset: int) -> bytes:
        if not left[0]:
            os.truncate(path, 70)
        left[0] -= 1
        return read(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    found = collect(machine).torch
    assert left[0] < 0, "it is read more often than that"
    assert found.value is not None or (found.missing is not None and str(SITE) in found.missing.reason)


CUT_WHILE_READ = """
import os, sys, threading, time
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine import nccl
root, *paths = sys.argv[1:]
whole = [open(path, "rb").read() for path in paths]
ended = threading.Event()
def cut():
    while not ended.is_set():
        for path, data in zip(paths, whole):
            os.truncate(path, 0)
            with open(path, "r+b") as file:
                file.write(data)
thread = threading.Thread(target=cut)
thread.start()
until, rounds = time.monotonic() + 3, 0
while time.monotonic() < until:
    nccl.collect(ProbeContext(root, environ={}, python=("/venv/bin/python",)))
    rounds += 1
ended.set()
thread.join()
print(rounds)
"""


def test_libraries_that_are_replaced_while_they_are_read_do_not_end_the_process(machine: Path) -> None:
    """A mapped file would: SIGBUS at the first byte behind its new end."""
    torch = machine / f"{SITE}/torch/lib/libtorch_cuda.so".lstrip("/")
    nccl_library = put(machine, f"{SITE}/nvidia/nccl/lib/libnccl.so.2", bytes(6 << 20) + library("2.28.9"))
    torch.write_bytes(torch.read_bytes() + bytes(1 << 16))
    command = [sys.executable, "-c", CUT_WHILE_READ, str(machine), str(torch), str(nccl_library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


@pytest.mark.parametrize(("data", "version"), [(library("2.32.3"), "2.32.3"), (b"", ""), (b"NCCL version 2.x", "2")])
def test_version_in_a_file(tmp_path: Path, data: bytes, version: str) -> None:
    assert version_in_file(str(put(tmp_path, "libnccl.so.2", data))) == version


def test_version_beyond_the_first_chunk_and_on_its_border(tmp_path: Path) -> None:
    text = b"NCCL version 2.27.5+cuda12.9\0"
    for offset in ((4 << 20) - 5, (4 << 20) + 100):
        path = put(tmp_path, "libnccl.so.2", bytes(offset) + text + bytes(100))
        assert version_in_file(str(path), budget_s=5.0) == "2.27.5"


def test_configuration_files(tmp_path: Path) -> None:
    put(tmp_path, "/etc/passwd", f"a:x:{os.getuid() + 1}:1::/no:\nme:x:{os.getuid()}:1::/users/me:/bin/sh\nbroken\n")
    put(tmp_path, "/users/me/.nccl.conf", "# comment\nNCCL_NET = IB\n\nnonsense\nNCCL_PSK=top-secret-value\n")
    put(tmp_path, "/etc/nccl.conf", "NCCL_SOCKET_IFNAME==eth0\n")
    home, system = collect(tmp_path).conf_files
    assert [(s.name, s.value, s.line) for s in home.settings.value or ()] == [
        ("NCCL_NET ", " IB", 2),
        ("NCCL_PSK", "***", 5),
    ]
    assert home.skipped == (4,)
    assert [(s.name, s.value) for s in system.settings.value or ()] == [("NCCL_SOCKET_IFNAME", "=eth0")]


def test_named_configuration_file_replaces_the_one_at_home(tmp_path: Path) -> None:
    put(tmp_path, "/etc/passwd", "")
    put(tmp_path, "/home/me/.nccl.conf", "NCCL_NET=IB\n")
    environ = {"NCCL_CONF_FILE": "/missing.conf", "HOME": "/home/me"}
    (only,) = collect(tmp_path, environ).conf_files
    assert only.origin == "NCCL_CONF_FILE"
    assert only.settings.missing is not None
    assert only.settings.missing.kind is MissingKind.ABSENT
    assert [file.origin for file in collect(tmp_path, {"HOME": "/home/me"}).conf_files] == ["home"]


def test_huge_configuration_file_is_cut() -> None:
    file = parse_conf("/etc/nccl.conf", "system", "NCCL_X=" + "y" * 5000 + "\n" + "A=1\n" * 5000)
    settings = file.settings.value or ()
    assert len(settings) == 500
    assert len(settings[0].value) == 1023


def test_named_files_and_log_file(tmp_path: Path) -> None:
    put(tmp_path, "/opt/topo.xml", "<system/>")
    put(tmp_path, "/etc/nccl.conf", "NCCL_GRAPH_FILE=/opt/graph.xml\n")
    environ = {
        "NCCL_TOPO_FILE": "/opt/topo.xml", "NCCL_TUNER_CONFIG_PATH": "~/tuner", "VLLM_NCCL_SO_PATH": "lib/x.so",
        "NCCL_DEBUG_FILE": "/opt/nccl.%p.log",
    }  # fmt: skip
    facts = collect(tmp_path, environ)
    found = {file.variable: file for file in facts.named_files}
    assert found["NCCL_TOPO_FILE"].exists.value is True
    assert found["NCCL_TOPO_FILE"].readable
    assert found["NCCL_GRAPH_FILE"].exists.value is False
    assert found["NCCL_TUNER_CONFIG_PATH"].tilde
    assert found["VLLM_NCCL_SO_PATH"].exists.value is None
    log = facts.debug_file.value
    assert log is not None
    assert log.directory == "/opt"
    assert log.writable.value is True
    assert (log.free_bytes.value or 0) > 0


def test_network_file_system_is_asked_by_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "/proc/self/mounts", "server:/x /scratch nfs4 rw 0 0\ntmpfs /scratch/local tmpfs rw 0 0\nbad\n")
    asked: list[Any] = []

    def child(self: ProbeContext, script: str, payload: Any = None, timeout_s: float = 5.0) -> list[Any]:
        asked.append((script, payload))
        return ["noise", {"path": 7}]

    monkeypatch.setattr(ProbeContext, "child", child)
    facts = collect(tmp_path, {"NCCL_TOPO_FILE": "/scratch/topo.xml", "NCCL_DEBUG_FILE": "/scratch/local/n.%p"})
    assert asked == [("path_facts.py", {"paths": ["/scratch/topo.xml"]})]
    late = facts.named_files[0].exists.missing
    assert late is not None
    assert late.kind is MissingKind.TIMEOUT
    log = facts.debug_file.value
    assert log is not None
    assert log.writable.value is False


def test_the_child_answers(tmp_path: Path) -> None:
    lines = ProbeContext(environ={}).child("path_facts.py", {"paths": [str(tmp_path), str(tmp_path / "no")]})
    assert [(line["exists"], line["free_bytes"] > 0) for line in lines] == [(True, True), (False, False)]


def test_plugins(tmp_path: Path) -> None:
    put(tmp_path, "/opt/p/libnccl-net-ofi.so")
    put(tmp_path, "/opt/p/libnccl-tuner.so.1")
    put(tmp_path, "/opt/p/libnccl-netx.so")
    put(tmp_path, "/etc/ld.so.conf.d/efa.conf", "# EFA\n/opt/amazon/x/lib\n")
    put(tmp_path, "/opt/amazon/x/lib/libnccl-net.so")
    found = collect(tmp_path, {"LD_LIBRARY_PATH": "/opt/p"}).plugins
    assert [(plugin.kind, plugin.suffix) for plugin in found] == [("net", "ofi"), ("tuner", ""), ("net", "")]


def test_empty_machine_and_hostile_environment(tmp_path: Path) -> None:
    environ = {
        "LD_LIBRARY_PATH": ":".join(f"/x{number}" for number in range(5000)), "LD_PRELOAD": "\0/libnccl.so.2 : ",
        "NCCL_TOPO_FILE": "/a\0b", "NCCL_CONF_FILE": "/a\0b", "NCCL_DEBUG_FILE": "/\0/x",
    }  # fmt: skip
    facts = collect(tmp_path, environ)
    assert facts.libraries == ()
    assert facts.torch.missing is not None
    assert facts.torch.missing.kind is MissingKind.ABSENT
    assert facts.named_files[0].exists.value is False
