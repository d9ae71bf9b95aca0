"""`rlcheck hang --hosts FILE`: four gloo ranks on two machines, one of which holds the others up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.hangs import JOB
from tests.multinode.debs import require
from tests.multinode.netns import Node, send
from tests.multinode.raycluster import RayCluster
from tests.multinode.ssh import sshd

START_S = 120.0
STEP, ODD, PORT = 20, 3, 29511


@contextmanager
def ranks_on(nodes: tuple[Node, Node], fault: str, directory: Path) -> Iterator[None]:
    """Ranks 0 and 1 on the first of NODES, 2 and 3 on the second; FAULT has happened on rank ODD."""
    job = {"MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(PORT), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
           "HANG_DIR": str(directory), "HANG_BACKEND": "gloo", "TORCH_FR_BUFFER_SIZE": "2000",
           "TORCH_FR_DUMP_TEMP_FILE": str(directory / "fr_"), "GLOO_SOCKET_IFNAME": "eth0",
           "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(directory / "ask_")}  # fmt: skip
    words = [sys.executable, str(JOB), "rank", fault, str(STEP), str(ODD), "0"]
    alive = [rank for rank in range(4) if fault != "missing" or rank != ODD]
    try:
        with (directory / "ranks.log").open("wb") as log:
            for rank in alive:
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2)}
                nodes[rank // 2].popen(words, {**job, **own}, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while len(list(directory.glob("ready.*"))) < len(alive):
            assert time.monotonic() < deadline, (directory / "ranks.log").read_text()[-2000:]
            time.sleep(0.1)
        yield
    finally:
        for node in nodes:
            node.kill(signal.SIGKILL, "hang_job.py")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", ["shape", pytest.param("missing", marks=pytest.mark.long)])
def test_the_rank_on_another_node_is_named(fault: str, trio: tuple[Node, ...], tmp_path: Path) -> None:
    require("sshd", "ssh", "ssh-keygen")
    (tmp_path / "ssh").mkdir()
    with sshd(trio[0], trio, tmp_path / "ssh") as ssh, ranks_on((trio[0], trio[1]), fault, tmp_path):
        time.sleep(1.0)
        hosts = ssh.hosts_file(trio[:2])
        done = trio[0].rlcheck("hang", "--hosts", hosts, "--python", sys.executable, "--format", "json", timeout=90)
        only_here = trio[0].rlcheck("hang", "--for", "2", "--format", "json")
    report = json.loads(done.out)
    assert done.code == 1, report
    assert [one["rank"] for one in report["hang"]["culprits"]] == [ODD]
    assert {wait["rank"] for wait in report["hang"]["waits"]} >= {0, 1, 2}
    if fault == "shape":
        assert report["hang"]["culprits"][0]["node"] == trio[1].address
        assert json.loads(only_here.out)["hang"] is None
        assert only_here.code == 2, "that the others do not hang is not known here"


DRIVER = """
import threading, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(address="auto", logging_level="error")

@ray.remote(num_cpus=0)
class Judge:
    def ready(self):
        return ray.get_runtime_context().get_node_id()

    def score(self):
        threading.Event().wait()

(place,) = [node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == {address!r}]
judge = Judge.options(scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False)).remote()
assert ray.get(judge.ready.remote()) == place
print("ready", flush=True)
ray.get(judge.score.remote())
"""


@pytest.mark.timeout(300)
def test_an_actor_on_another_node_that_never_answers_is_named(cluster: RayCluster) -> None:
    head, other = cluster.head, cluster.nodes[1]
    driver = head.popen([sys.executable, "-c", DRIVER.replace("{address!r}", repr(other.address))],
                        stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        time.sleep(1.0)
        done = head.rlcheck("hang", "--head-ip", cluster.address, "--for", "3", "--format", "json", timeout=90)
    finally:
        send(driver, signal.SIGKILL)
        driver.communicate()
    report = json.loads(done.out)
    assert done.code == 1, report
    (culprit,) = report["hang"]["culprits"]
    assert (culprit["role"], culprit["kind"]) == ("Judge", "stuck")
    assert culprit["node"].startswith(other.name)
    assert "score" in str(culprit["stack"])
