"""The machines themselves: each fault does what it says, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, base_environ
from tests.multinode.netns import Node, child_of, network

LISTEN = """
import socket, sys
sockets = [socket.create_server(("", int(port))) for port in sys.argv[1:]]
print("ready", flush=True)
while True:
    sockets[0].accept()[0].close()
"""
TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=0.5).close()
    print("open")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def pair(namespaces: None) -> Iterator[tuple[Node, Node]]:
    with network(2) as (one, two):
        server = two.popen([sys.executable, "-c", LISTEN, "6379", "10500"], stdout=subprocess.PIPE)
        assert server.stdout
        server.stdout.readline()
        yield one, two
        two.clear()
        server.wait(30)


def outcome(source: Node, target: Node, port: int) -> str:
    return source.python("-c", TRY, target.address, str(port)).stdout.strip()


def test_each_is_a_machine_of_its_own(pair: tuple[Node, Node]) -> None:
    one, two = pair
    boots = {node.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout for node in pair}
    assert len(boots) == 2
    assert one.run(["hostname"]).stdout == "node1\n"
    assert one.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
    assert outcome(one, two, 6379) == "open"
    assert outcome(one, two, 6380) == "ConnectionRefusedError"


@pytest.mark.usefixtures("firewall")
def test_faults_are_what_they_say_and_are_taken_back(pair: tuple[Node, Node]) -> None:
    one, two = pair
    with two.drop(6379):
        assert outcome(one, two, 6379) == "TimeoutError"
        assert outcome(two, two, 10500) == "open"
    with two.reject(6379):
        assert outcome(one, two, 6379) == "ConnectionRefusedError"
    with two.drop("10002:19999"):
        assert outcome(one, two, 10500) == "TimeoutError"
        assert outcome(one, two, 6379) == "open"
    with one.refuse_connections_of(two):
        assert outcome(one, two, 6379) == "open"
    with two.refuse_connections_of(one):
        assert outcome(one, two, 6379) == "TimeoutError"
    with two.link_down():
        assert outcome(one, two, 6379) in ("TimeoutError", "OSError")
    assert outcome(one, two, 6379) == "open"


def test_a_bridge_with_the_same_address_everywhere(pair: tuple[Node, Node]) -> None:
    one, two = pair
    with one.add_bridge(), two.add_bridge():
        assert outcome(one, two, 6379) == "open"
        assert "172.17.0.1/16" in one.run(["ip", "addr", "show", "docker0"]).stdout


def test_nothing_outlives_the_test_process(tmp_path: Path) -> None:
    """Killed with SIGKILL, it leaves neither processes nor namespaces behind."""
    script = """
import sys, time
from tests.multinode.netns import child_of, network
with network(1) as (node,):
    print(node.pid, child_of(node.popen(["sleep", "600"])), flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(
        command, cwd=ROOT, env=base_environ({"TMPDIR": str(tmp_path)}), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/ns").exists() and _alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_signals_reach_the_command_inside(pair: tuple[Node, Node]) -> None:
    process = pair[0].popen(["sleep", "600"])
    os.kill(child_of(process), signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM


@pytest.mark.usefixtures("firewall")
def test_a_throttled_link_is_slow_in_that_direction(pair: tuple[Node, Node]) -> None:
    """2 MB go through at once; above the rate they are lost and sent again."""
    one, two = pair
    quick = _seconds_to_send(one, two)
    with two.throttle(one, 1):
        assert _seconds_to_send(one, two) > max(0.5, 3 * quick)


def _seconds_to_send(source: Node, target: Node) -> float:
    receive = (
        "import socket\ns = socket.create_server(('', 7000))\nprint('ready', flush=True)\nc = s.accept()[0]\nn = 0\n"
    )
    receive += "while n < 6_000_000: n += len(c.recv(1 << 16))\nc.send(b'x')"
    send = "import socket, sys, time\nc = socket.create_connection((sys.argv[1], 7000))\nt = time.monotonic()\n"
    send += "c.sendall(bytes(6_000_000)); c.recv(1)\nprint(time.monotonic() - t)"
    server = target.popen([sys.executable, "-c", receive], stdout=subprocess.PIPE)
    assert server.stdout
    server.stdout.readline()
    seconds = float(source.python("-c", send, target.address).stdout)
    server.wait(10)
    server.stdout.close()
    return seconds
