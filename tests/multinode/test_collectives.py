"""`rlcheck nccl` with gloo between machines: one fault of each kind, in one place each.

tests/bench/bench_placements.py puts the same faults into random places.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.multinode.debs import require
from tests.multinode.netns import Node
from tests.multinode.reports import Examined, examine
from tests.multinode.ssh import Ssh, sshd
from tests.multinode.strikes import WRONG_SUM, ranks, strike

pytest.importorskip("torch", reason="needs torch (pip install 'rlcheck[train]')")
STEP_S = 5


@pytest.fixture
def ssh(trio: tuple[Node, ...], tmp_path: Path) -> Iterator[Ssh]:
    """sshds, with what a test has put into `environ` of the nodes by then."""
    require("sshd", "ssh", "ssh-keygen")
    with sshd(trio[0], trio, tmp_path) as made:
        yield made


def measure(ssh: Ssh, nodes: tuple[Node, ...]) -> Examined:
    arguments = ("--hosts", ssh.hosts_file(nodes), "--python", sys.executable, "--backend", "gloo")
    return examine(ssh.client, "nccl", *arguments, "--quick", "--step-timeout", str(STEP_S), timeout=110)


def test_healthy(ssh: Ssh, trio: tuple[Node, ...]) -> None:
    examined = measure(ssh, trio)
    assert examined.failed() == set(), examined.problems()
    assert examined.seconds < 60


@pytest.mark.row("F54")
@pytest.mark.parametrize(
    ("number", "id"), [(signal.SIGSTOP, "NCL035"), (signal.SIGKILL, "NCL034")], ids=["hangs", "dies"]
)
def test_a_rank_is_lost(ssh: Ssh, trio: tuple[Node, ...], number: signal.Signals, id: str) -> None:
    """The rank on host2, as soon as it is connected to another one."""
    struck = strike(trio[1], number)
    examined = measure(ssh, trio)
    struck.join(5)
    trio[1].kill(signal.SIGKILL, sys.executable)
    examined.names(id, trio[1].address)
    # A rank that is struck while it works with one other is named with that one.
    found = re.sub(rf"\S+ ↔ {trio[1].address}|{trio[1].address} ↔ [^\s:]+", "", examined.findings[id]["found"])
    assert trio[0].address not in found, found
    assert trio[2].address not in found, found


@pytest.mark.row("F54")
@pytest.mark.usefixtures("firewall")
def test_a_slow_pair(ssh: Ssh, trio: tuple[Node, ...]) -> None:
    _, second, third = trio
    with second.throttle(third, 4), third.throttle(second, 4):
        examined = measure(ssh, trio)
    examined.names("NCL043", f"{second.address} ↔ {third.address}")


@pytest.mark.usefixtures("firewall")
def test_large_packets_lost_between_a_pair(ssh: Ssh, trio: tuple[Node, ...]) -> None:
    _, second, third = trio
    with third.lose_large(second):
        examined = measure(ssh, trio)
    examined.names("RAY067", f"{second.address} does not reach {third.address}")
    for id in examined.failed() - {"RAY067"}:
        assert examined.findings[id]["caused_by"], (id, examined.findings[id])


@pytest.mark.row("F54")
def test_a_wrong_sum(trio: tuple[Node, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG_SUM)
    trio[2].environ["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    require("sshd", "ssh", "ssh-keygen")
    (tmp_path / "ssh").mkdir()
    try:
        with sshd(trio[0], trio, tmp_path / "ssh") as ssh:
            examined = measure(ssh, trio)
    finally:
        trio[2].environ.clear()
    examined.names("NCL037", f"to blame: {trio[2].address}")


@pytest.mark.row("F54")
def test_an_interface_that_does_not_exist(trio: tuple[Node, ...], tmp_path: Path) -> None:
    trio[1].environ["GLOO_SOCKET_IFNAME"] = "docker0"
    require("sshd", "ssh", "ssh-keygen")
    try:
        with sshd(trio[0], trio, tmp_path) as ssh:
            examined = measure(ssh, trio)
    finally:
        trio[1].environ.clear()
    said = " ".join(examined.problems().values())
    assert "docker0" in said, examined.problems()
    assert trio[1].address in said


def test_nothing_is_left(ssh: Ssh, trio: tuple[Node, ...]) -> None:
    """Interrupted while ranks run: none of them stays, on any machine."""
    command = [sys.executable, "-m", "rlcheck", "nccl", "--hosts", ssh.hosts_file(trio), "--python", sys.executable]
    process = trio[0].popen([*command, "--backend", "gloo"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not ranks(trio[1]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    trio[0].kill(signal.SIGINT, "rlcheck nccl")
    process.wait(20)
    deadline = time.monotonic() + 15
    while any(node.pids("python") for node in trio) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [node.pids("python") for node in trio] == [[], [], []]
