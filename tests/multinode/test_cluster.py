"""`rlcheck ray` on a node of a real cluster: what every node says, and what each fault between them looks like."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.multinode.netns import Node
from tests.multinode.raycluster import RayCluster
from tests.multinode.reports import Examined, examine_ray, words

OTHER_PYTHON = Path("/usr/bin/python3")
# Of the check itself: a firewall that drops costs its deadlines.
HEALTHY_S = 15.0
# TCP sends again after up to this long, once packets get through.
RECOVERED_S = 60.0


def at(cluster: RayCluster, node: Node) -> Examined:
    return examine_ray(node, "--head-ip", cluster.head.address)


def at_last_passes(cluster: RayCluster, id: str) -> None:
    """Ray's own connections, stalled by the fault, recover by TCP's retries: until then the cluster may not answer."""
    end, said = time.monotonic() + RECOVERED_S, ""
    while time.monotonic() < end:
        examined = at(cluster, cluster.head)
        if examined.findings[id]["status"] == "pass":
            return
        said = f"{examined.findings[id]['status']}: {words(examined.findings[id])}; {examined.problems()}"
    raise AssertionError(f"{id} does not pass {RECOVERED_S:.0f} s after the fix: {said}")


def test_healthy(cluster: RayCluster) -> None:
    examined = at(cluster, cluster.nodes[1])
    assert examined.failed() == set()
    for id in ("RAY045", "RAY046", "RAY047", "RAY062", "RAY063"):
        assert examined.findings[id]["status"] == "pass", (id, examined.findings[id])
    assert examined.seconds < HEALTHY_S
    shown = str(examined.exhibits)
    assert all(node.name in shown for node in cluster.nodes), shown


@pytest.mark.usefixtures("firewall")
def test_one_direction_blocked(cluster: RayCluster) -> None:
    _, second, third = cluster.nodes
    with second.refuse_connections_of(third):
        examined = at(cluster, cluster.head)
    examined.names("RAY062", "node3 does not reach node2", "filtered")


@pytest.mark.usefixtures("firewall")
def test_large_packets_lost_at_a_node(cluster: RayCluster) -> None:
    """From the node itself the head looks overloaded, from the head the node looks dead: it is neither."""
    third = cluster.nodes[2]
    with third.lose_large():
        there = at(cluster, third)
        here = at(cluster, cluster.head)
    there.names("RAY066", f"what {cluster.head.address}:6379 sends arrives here in packets of 576 bytes only")
    assert there.findings["RAY036"]["status"] == "pass"
    here.names("RAY066", f"node3 ({third.address}) gets small packets from here and no large ones")
    for id, finding in here.findings.items():
        assert id == "RAY066" or finding["status"] != "fail" or finding["caused_by"], (id, finding)


@pytest.mark.usefixtures("firewall")
def test_large_packets_lost_between_two_nodes(cluster: RayCluster) -> None:
    _, second, third = cluster.nodes
    with third.lose_large(second):
        at(cluster, cluster.head).names("RAY067", "node2 does not reach node3")
        second.run(["sysctl", "-w", "net.ipv4.tcp_mtu_probing=2"])  # the fix
        try:
            at_last_passes(cluster, "RAY067")
        finally:
            second.run(["sysctl", "-w", "net.ipv4.tcp_mtu_probing=0"])


@pytest.mark.usefixtures("firewall")
def test_worker_ports_blocked_between_two_nodes(cluster: RayCluster) -> None:
    _, second, third = cluster.nodes
    with third.drop("10002:19999", source=second):
        examined = at(cluster, cluster.head)
    examined.names("RAY063", "worker ports", "node2", "node3", "filtered")
    assert examined.findings["RAY062"]["status"] == "pass"


@pytest.mark.usefixtures("firewall")
def test_worker_ports_of_a_node_blocked_for_all(cluster: RayCluster) -> None:
    """No task can run there, and so no agent either: the node is named all the same."""
    with cluster.nodes[2].drop("10002:19999"):
        examined = at(cluster, cluster.head)
    examined.names("RAY045", "node3")
    examined.names("RAY065", "node3", "filtered")
    assert not [text for text in examined.problems().values() if "node2" in text], examined.problems()


def test_a_run_that_does_not_fit(cluster: RayCluster, spare: Node) -> None:
    arguments = ("--head-ip", cluster.head.address, "--nodes", "4", "--gpus-per-node", "8")
    examined = examine_ray(spare, *arguments)
    said = " ".join(examined.problems().values())
    assert "4" in said, examined.problems()
    assert "8" in said


@pytest.fixture
def odd_member(cluster: RayCluster, spare: Node, tmp_path: Path) -> Iterator[Node]:
    """node4 in the cluster, with another patch version of Python, a clock 300 s ahead and an interface of its own."""
    (tmp_path / "sitecustomize.py").write_text("import time\n_time = time.time\ntime.time = lambda: _time() + 300\n")
    site = sysconfig.get_path("purelib")
    environ = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}:{site}",
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "GLOO_SOCKET_IFNAME": "docker0",
    }
    if not _another_patch():
        pytest.skip(f"{OTHER_PYTHON} is no other patch version of {sys.version.split()[0]}")
    cluster.start_worker(spare, python=(str(OTHER_PYTHON),), env=environ).wait_started()
    yield spare
    spare.clear()
    cluster.wait_members(3)


def _another_patch() -> bool:
    if not OTHER_PYTHON.exists():
        return False
    command = [OTHER_PYTHON, "-c", "import sys; print(*sys.version_info[:3])"]
    other = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    own = [str(part) for part in sys.version_info[:3]]
    return other[:2] == own[:2] and other != own


@pytest.mark.row("F05")
def test_a_member_that_differs(cluster: RayCluster, odd_member: Node) -> None:
    examined = at(cluster, cluster.head)
    examined.names("RAY047", "node4", sys.version.split()[0])
    examined.names("RAY046", "node4", "5 min", status="warn")
    examined.names("RAY059", "node4", "docker0")


def test_a_worker_without_cpus_that_joined_twice(cluster: RayCluster, spare: Node) -> None:
    for _ in range(2):
        cluster.start_worker(spare, "--num-cpus=0").wait_started()
    examined = at(cluster, cluster.head)
    spare.clear()
    cluster.wait_members(3)
    examined.names("RAY053", "registered 0 CPUs", status="warn")
    examined.names("RAY068", "5 nodes", f"node4 ({spare.address}) joined 2 times", status="warn")
    assert "0 CPU and 0 GPU" in str(examined.exhibits)


@pytest.fixture
def member(cluster: RayCluster, spare: Node) -> Iterator[Node]:
    """node4 as a fourth node of the cluster, to be lost."""
    cluster.start_worker(spare).wait_started()
    yield spare
    spare.clear()
    cluster.wait_members(3)


def test_a_node_lost_during_the_check(cluster: RayCluster, member: Node) -> None:
    raylet = cluster.raylet(member)
    timer = threading.Timer(1.0, os.kill, (raylet, signal.SIGKILL))
    timer.start()
    try:
        examined = at(cluster, cluster.head)
    finally:
        timer.join()
        member.clear()
    assert any("node4" in text for text in examined.problems().values()), examined.problems()


@pytest.mark.row("F57")
def test_a_bridge_is_advertised(cluster: RayCluster, spare: Node) -> None:
    """node4 joins with the address of its docker0, which every machine has for itself."""
    with spare.add_bridge():
        cluster.start_worker(spare, "--node-ip-address=172.17.0.1").wait_started()
        try:
            examined = at(cluster, cluster.head)
        finally:
            spare.clear()
            cluster.wait_members(3)
    examined.names("RAY041", "node4 (172.17.0.1)", "inside of its machine only")


def test_nothing_is_left_on_the_nodes(cluster: RayCluster) -> None:
    """Killed in the middle, too: no agent, no driver, no listener stays."""
    before = [_listeners(node) for node in cluster.nodes]
    at(cluster, cluster.nodes[1])
    command = [sys.executable, "-m", "rlcheck", "ray", "--head-ip", cluster.head.address]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = cluster.nodes[1].popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2.0)
        cluster.nodes[1].kill(number, "rlcheck ray")
        process.wait(10)
    deadline = time.monotonic() + 20
    while (after := [_listeners(node) for node in cluster.nodes]) != before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert after == before


def _listeners(node: Node) -> set[str]:
    """What listens on the node, but for Ray's own workers, which it starts and ends as it likes."""
    lines = node.run(["ss", "-tlnpH"]).stdout.splitlines()
    return {line.split()[3] for line in lines if "ray::IDLE" not in line}
