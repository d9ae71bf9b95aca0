"""Agents through a real Ray cluster of two raylets on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlcheck.facts.reach import GcsNode
from rlcheck.measure.cluster.launch import open_ray
from rlcheck.measure.cluster.survey import survey
from tests.measure.cluster.processes import below, kill, survivors

ray_installed = subprocess.run([sys.executable, "-c", "import ray"], capture_output=True, timeout=60).returncode == 0
pytestmark = pytest.mark.skipif(not ray_installed, reason="Ray is not installed")

# In a process of its own, so that the tests' process stays free of Ray: it obeys one line at a time.
CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster
small = {"num_cpus": 1, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args=dict(small, include_dashboard=False))
worker = cluster.add_node(**small)
nodes = [[node.node_id, node.node_ip_address] for node in (cluster.head_node, worker)]
print(json.dumps({"address": cluster.address, "nodes": nodes}), flush=True)
for line in sys.stdin:
    worker.kill_raylet(check_alive=False)
    print("killed", flush=True)
cluster.shutdown()
"""


@dataclass
class RunningCluster:
    """The address, its nodes, and a way to kill the raylet of the second one."""

    address: str
    nodes: tuple[GcsNode, ...]
    process: subprocess.Popen[str]

    def kill_worker(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("kill\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "killed\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    home = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))  # Ray's sockets need a short path
    environ = {**os.environ, "HOME": str(home), "RAY_TMPDIR": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(home / "log").open("w"),
        text=True,
        env=environ | {"CUDA_VISIBLE_DEVICES": "3,4", "OMP_NUM_THREADS": "7"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said, (home / "log").read_text()
    answer = json.loads(said)
    nodes = tuple(
        GcsNode(node_id=node_id, address=address, hostname="twin", is_head=not index)
        for index, (node_id, address) in enumerate(answer["nodes"])
    )
    dead = GcsNode(node_id="0" * 56, address="192.0.2.99", hostname="gone", alive=False)
    yield RunningCluster(answer["address"], (*nodes, dead), process)
    started = below(process.pid)
    process.stdin.close()
    try:
        process.wait(20)
    finally:
        process.kill()
        kill(survivors(started, 2))
        shutil.rmtree(home, ignore_errors=True)


def test_agents_on_all_nodes_and_a_node_that_dies(cluster: RunningCluster) -> None:
    started = time.monotonic()
    with open_ray(cluster.address, cluster.nodes, (sys.executable,), 30) as board:
        facts = survey(board, via="ray", ports={0: [(int(cluster.address.rpartition(":")[2]), "gcs")]})
        assert facts.seconds < 25
        first, second = facts.members
        assert first.name != second.name
        assert (first.is_head, second.is_head) == (True, False)
        assert [contact.what for contact in second.contacts] == ["probe", "worker", "worker", "gcs"]
        assert {contact.outcome for contact in (*first.contacts, *second.contacts)} == {"open"}
        assert first.registered is not None
        assert first.registered.object_store_bytes == 80 << 20
        machine = second.machine.value
        assert machine is not None
        assert "ray" in machine.versions
        # As the node was started, not as Ray changes it for a worker without GPUs.
        assert machine.environ["CUDA_VISIBLE_DEVICES"] == "3,4"
        assert machine.environ["OMP_NUM_THREADS"] == "7"

        agents = {hello["pid"] for hello in board.hellos}
        cluster.kill_worker()
        lost = board.events(15)
        assert [(index, message["event"]) for index, message in lost] == [(1, "lost")]
        assert "Ray lost its worker process there" in lost[0][1]["reason"]
        after = survey(board, via="ray")
        assert [member.alive for member in after.members] == [True, False]
        assert after.members[0].machine.value is not None
        assert after.members[1].machine.missing is not None
        assert after.seconds < 15
    assert not survivors(agents)
    assert time.monotonic() - started < 45


def test_the_agents_end_with_a_driver_that_is_killed(cluster: RunningCluster) -> None:
    with open_ray(cluster.address, cluster.nodes[:1], (sys.executable,), 30) as board:
        assert isinstance(board.ask({0: {"do": "clock"}}, 20)[0], dict)
        agent = board.hellos[0]["pid"]
        drivers = {pid for pid in below(os.getpid()) if b"json.loads" in Path(f"/proc/{pid}/cmdline").read_bytes()}
        kill(drivers - {agent})
        assert not survivors({agent}, 10)
        assert "the Ray driver of the check ended" in board.events(5)[0][1]["reason"]


def test_a_cluster_that_is_not_there_is_lost_in_its_deadline() -> None:
    nodes = (GcsNode(node_id="1" * 56, address="127.0.0.1", hostname="a"),)
    started = time.monotonic()
    with open_ray("127.0.0.1:1", nodes, (sys.executable,), 4) as board:
        board.wait_up()
        assert "ray.init" in board.lost[0]
    assert time.monotonic() - started < 20
    with open_ray("127.0.0.1:1", nodes, ("/usr/bin/python3", "-S"), 10) as board:
        board.wait_up()
        assert "No module named 'ray'" in board.lost[0]
