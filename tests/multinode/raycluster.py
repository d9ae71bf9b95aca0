"""A real Ray, its head and workers each on a node of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import EQUAL
from tests.multinode.netns import Node

PORT = 6379
STARTED = "Ray runtime started"
# Small enough for three nodes on two cores.
_SMALL = ("--num-cpus=1", "--object-store-memory=80000000", "--include-dashboard=false", "--disable-usage-stats")
_SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", **EQUAL}
# The head of a cluster looks after its nodes often, so that a test need not wait long until a lost node is forgotten.
_EAGER = {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "500"}
_WAIT_MEMBERS = """
import sys, time
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.cluster.gcs import ask_gcs
while True:
    nodes = ask_gcs(ProbeContext(), sys.argv[1], int(sys.argv[2]), 3.0).nodes.value or ()
    if sum(node.alive for node in nodes) == int(sys.argv[3]):
        break
    time.sleep(0.1)
"""


@dataclass
class RayProcess:
    """One `ray start --block` and what it wrote."""

    node: Node
    process: subprocess.Popen[str]
    log: Path

    def said(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(errors="replace")

    def wait_started(self, timeout: float = 60) -> None:
        """Wait until it says that Ray runs; raises with its words if it ends instead."""
        deadline = time.monotonic() + timeout
        while STARTED not in self.said():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Ray did not start on {self.node.name}: {self.said()[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it, as a power cut would: what it left in /tmp/ray stays."""
        self.node.clear()
        self.process.wait(10)


@dataclass
class RayCluster:
    """Nodes on which Ray runs; the first is the head."""

    nodes: tuple[Node, ...]
    running: dict[str, RayProcess] = field(default_factory=dict)
    port: int = PORT

    @property
    def head(self) -> Node:
        """The node where the GCS is."""
        return self.nodes[0]

    @property
    def address(self) -> str:
        """As `ray start --address` wants it."""
        return f"{self.head.address}:{self.port}"

    def start_worker(self, node: Node, *options: str, **keywords: object) -> RayProcess:
        """Have a node join; wait with `wait_started`."""
        worker = start_ray(node, f"--address={self.address}", *options, **keywords)  # pyright: ignore
        self.running[node.name] = worker
        return worker

    def wait_members(self, num_alive: int, timeout: float = 40) -> None:
        """Wait until the GCS counts so many nodes alive: it takes a while to notice that one is gone."""
        self.head.python("-c", _WAIT_MEMBERS, self.head.address, str(self.port), str(num_alive), timeout=timeout)

    def raylet(self, node: Node) -> int:
        """The pid of a node's raylet."""
        return node.pids("raylet/raylet", "--raylet_socket_name")[0]


def start_ray(
    node: Node,
    *options: str,
    python: Sequence[str] = (sys.executable,),
    env: Mapping[str, str | None] | None = None,
    small: bool = True,
) -> RayProcess:
    """`ray start --block` on a node; returns at once."""
    settings = [option for option in _SMALL if "--head" in options or not option.startswith("--include")]
    command = [*python, "-m", "ray.scripts.scripts", "start", "--block", *(settings if small else ()), *options]
    log = node.directory / f"ray-{time.monotonic_ns()}.log"
    with log.open("w") as stream:
        process = node.popen(command, env={**_SETTINGS, **(env or {})}, stdout=stream, stderr=subprocess.STDOUT)
    return RayProcess(node, process, log)


@contextmanager
def ray_cluster(
    nodes: Sequence[Node], *, env: Mapping[str, str | None] | None = None, head_options: Sequence[str] = ()
) -> Iterator[RayCluster]:
    """A head on the first node, workers on the others; all are gone at the end."""
    cluster = RayCluster(tuple(nodes))
    for node in nodes:
        node.environ |= {
            name: value for name, value in {**_SETTINGS, **_EAGER, **(env or {})}.items() if value is not None
        }
    try:
        head = start_ray(cluster.head, "--head", f"--port={PORT}", *head_options, env=env)
        cluster.running[cluster.head.name] = head
        head.wait_started()
        workers = [cluster.start_worker(node, env=env) for node in nodes[1:]]
        for worker in workers:
            worker.wait_started()
        yield cluster
    finally:
        for process in reversed(cluster.running.values()):
            process.stop()
