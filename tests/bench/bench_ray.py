"""How long `rlcheck ray` takes on a healthy cluster of three nodes, and on broken ones, beside what Ray's tools take.

    python tests/bench/bench_ray.py [--rounds N]

Needs root (it makes network namespaces) and Ray. Commands are taken in turns on the same cluster; medians of wall time
are printed, the ratio to a bare Ray driver that runs one task on every node, and the limits: 5 s beyond what importing
and connecting Ray costs on a healthy cluster, 30 s however broken the network is, 60 s for 64 hosts by ssh.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.multinode.debs import why_no_firewall, why_no_namespaces
from tests.multinode.netns import Node, network
from tests.multinode.raycluster import PORT, RayCluster, ray_cluster
from tests.multinode.ssh import sshd

HEALTHY_S, BROKEN_S, MANY_S = 5.0, 30.0, 60.0
# What the doctor's own driver cannot do without.
BARE_DRIVER = """
import sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)
task = ray.remote(num_cpus=0)(lambda: 1)
ray.get([task.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote() for node in ray.nodes()], timeout=60)
"""


def seconds_of(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def healthy(cluster: RayCluster, rounds: int) -> None:
    """The command and the bare driver in turns, on a node that is not the head."""
    node, address = cluster.nodes[1], cluster.address
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    calls: dict[str, Callable[[], object]] = {
        "bare Ray driver": lambda: node.python("-c", BARE_DRIVER, address),
        "rlcheck ray": lambda: node.rlcheck("ray", "--head-ip", address),
        "ray health-check": lambda: node.run([*ray, "health-check", "--address", address], check=False),
        "ray status": lambda: node.run([*ray, "status", "--address", address], check=False),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(rounds + 1):
        for name, call in calls.items():
            seconds = seconds_of(call)
            if round_number > 0:  # the first round warms the page cache
                times[name].append(seconds)
    base = statistics.median(times["bare Ray driver"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:34} {median:7.2f} s   {median / base:6.2f} x bare driver   ({len(values)} runs)")
    beyond = statistics.median(times["rlcheck ray"]) - base
    print(
        f"{'rlcheck ray beyond the bare driver':34} {beyond:7.2f} s   limit {HEALTHY_S:g} s: {_kept(beyond, HEALTHY_S)}"
    )


def broken(cluster: RayCluster, outside: Node) -> None:
    """Once for each fault."""
    head, second, third = cluster.nodes

    def on(node: Node) -> float:
        return seconds_of(lambda: node.rlcheck("ray", "--head-ip", cluster.address, timeout=200))

    print(f"{'from outside':34} {on(outside):7.2f} s")
    with head.drop(PORT, source=outside):
        _broken("port 6379 dropped", on(outside))
    with head.reject(PORT, source=outside):
        _broken("port 6379 rejected", on(outside))
    with second.refuse_connections_of(third):
        _broken("one direction blocked", on(head))
    with third.drop("10002:19999", source=second):
        _broken("worker ports of one pair blocked", on(head))
    with third.drop("10002:19999"):
        _broken("worker ports of one node blocked", on(head))
    with third.drop("1024:65535", source=head):
        _broken("one node dropped by the head", on(head))


def many_hosts(num_hosts: int = 64) -> None:
    """By ssh, one of them dead; all of them are processes of this machine."""
    with (
        tempfile.TemporaryDirectory() as root,
        network(num_hosts, prefix="host") as nodes,
        sshd(nodes[0], nodes[:-1], Path(root)) as ssh,
        nodes[-1].link_down(),
    ):
        hosts = ssh.hosts_file(nodes)
        seconds = seconds_of(lambda: nodes[0].rlcheck("ray", "--hosts", hosts, "--python", sys.executable, timeout=200))
    print(f"{f'{num_hosts} hosts by ssh, one dead':34} {seconds:7.2f} s   limit {MANY_S:g} s: {_kept(seconds, MANY_S)}")


def _broken(name: str, seconds: float) -> None:
    print(f"{name:34} {seconds:7.2f} s   limit {BROKEN_S:g} s: {_kept(seconds, BROKEN_S)}")


def _kept(seconds: float, limit_s: float) -> str:
    return "kept" if seconds <= limit_s else "BROKEN"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    reason = why_no_namespaces() or why_no_firewall()
    if reason:
        raise SystemExit(reason)
    with network(4) as nodes, ray_cluster(nodes[:3]) as cluster:
        healthy(cluster, options.rounds)
        broken(cluster, nodes[3])
    many_hosts()


if __name__ == "__main__":
    try:
        main()
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"a command did not end: {error}") from None
