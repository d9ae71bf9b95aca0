"""Records of three machines in namespaces of their own: a Ray cluster, healthy and broken, and gloo with a fault.

    python -m tests.tools.record_networks DIRECTORY [NAME ...]

Needs root, Ray, torch, iptables and openssh-server (tests/multinode). What is written there is raw: go on with
`python -m tests.tools.slim_record`.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.multinode.debs import why_no_firewall, why_no_namespaces
from tests.multinode.netns import Node, network
from tests.multinode.raycluster import ray_cluster
from tests.multinode.ssh import Ssh, sshd
from tests.multinode.strikes import strike

STEP_S = 5


def ray_healthy(directory: Path) -> None:
    """Three nodes, nothing wrong."""
    with network(3) as nodes, ray_cluster(nodes) as cluster:
        _ray(cluster.head, cluster.head.address, directory / "ray-3-nodes.json")


def ray_broken(directory: Path) -> None:
    """A firewall on node2 keeps node3 out, and a fourth machine has joined with its Docker bridge's address."""
    with network(4) as nodes, nodes[3].add_bridge(), ray_cluster(nodes[:3]) as cluster:
        head, second, third = cluster.nodes
        with second.refuse_connections_of(third):
            cluster.start_worker(nodes[3], "--node-ip-address=172.17.0.1").wait_started()
            _ray(head, head.address, directory / "ray-3-nodes-broken.json")


def ray_dropped(directory: Path) -> None:
    """A machine outside of the cluster, whose packets to the head's port are swallowed."""
    with (
        network(4) as nodes,
        ray_cluster(nodes[:3]) as cluster,
        cluster.head.drop(cluster.port, source=nodes[3]),
    ):
        _ray(nodes[3], cluster.head.address, directory / "ray-dropped.json")


def gloo_hang(directory: Path) -> None:
    """The rank of the second machine is stopped as soon as it is connected."""
    with _hosts() as (nodes, ssh):
        struck = strike(nodes[1], signal.SIGSTOP)
        _nccl(nodes[0], ssh.hosts_file(nodes), directory / "gloo-hang.json")
        struck.join(5)
        nodes[1].clear()


def gloo_slow(directory: Path) -> None:
    """The link between the second and the third machine loses what exceeds 4 MB/s."""
    with _hosts() as (nodes, ssh), nodes[1].throttle(nodes[2], 4), nodes[2].throttle(nodes[1], 4):
        _nccl(nodes[0], ssh.hosts_file(nodes), directory / "gloo-slow-pair.json")


@contextmanager
def _hosts() -> Iterator[tuple[tuple[Node, ...], Ssh]]:
    with (
        tempfile.TemporaryDirectory() as root,
        network(3, prefix="host") as nodes,
        sshd(nodes[0], nodes, Path(root)) as ssh,
    ):
        yield nodes, ssh


def _ray(node: Node, head: str, record: Path) -> None:
    done = node.rlcheck("ray", "--head-ip", head, "--record", record)
    print(f"== {record.stem}: {done.seconds:.1f} s\n{done.out}{done.err}")


def _nccl(node: Node, hosts: Path, record: Path) -> None:
    arguments = ("--hosts", hosts, "--python", sys.executable, "--quick", "--step-timeout", str(STEP_S))
    done = node.rlcheck("nccl", *arguments, "--record", record, timeout=150)
    print(f"== {record.stem}: {done.seconds:.1f} s\n{done.out}{done.err}")


RECORDS: dict[str, Callable[[Path], None]] = {
    "ray-3-nodes": ray_healthy,
    "ray-3-nodes-broken": ray_broken,
    "ray-dropped": ray_dropped,
    "gloo-hang": gloo_hang,
    "gloo-slow-pair": gloo_slow,
}


def main() -> None:
    """Write the records that are named, or all of them."""
    reason = why_no_namespaces() or why_no_firewall()
    if reason or len(sys.argv) < 2:
        raise SystemExit(reason or __doc__)
    for name in sys.argv[2:] or RECORDS:
        RECORDS[name](Path(sys.argv[1]).resolve())


if __name__ == "__main__":
    main()
