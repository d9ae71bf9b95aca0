"""Which machines a command speaks to, and by what way: this one alone, a Ray cluster's nodes, or those of `--hosts`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.base import absent, known
from rlcheck.facts.cluster import ClusterFacts, Member
from rlcheck.facts.document import Facts
from rlcheck.facts.hygiene import made_safe
from rlcheck.facts.reach import Contact, GcsNode, ReachFacts, WantedRun
from rlcheck.measure.cluster.switchboard import Switchboard
from rlcheck.measure.machine.context import ProbeContext

DEFAULT_PORT = 6379
_REACH_S = 10.0
RAY_S = 15.0
_SURVEY_S = 8.0
_WORKERS_S = 2.0
_MOST_REASONS = 4
_COLLECT_S = 25.0


class Awaited(Protocol):
    """Whoever tells the user what is waited for."""

    def on(self, *what: str) -> None:
        """What is awaited from now on."""

    def on_names(self, names: tuple[str, ...]) -> None:
        """What is awaited from now on, as a list that may be long."""


@dataclass(frozen=True)
class Also:
    """Which other ports of the head matter: the Ray Client's, the dashboard's."""

    client: bool = False
    dashboard: bool = False


def parse_head(text: str, port: int | None) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[v6]:port` or `ray://host:port`.

    Raises:
        UserError: the port is none, or contradicts `--port`.
    """
    rest = text.rpartition("://")[2].rstrip("/")
    host, _, tail = rest.rpartition(":")
    # No port at all: a bare name, an IPv6 address in brackets or without.
    if rest.endswith("]") or not host or (":" in host and not host.startswith("[")):
        host, tail = rest, ""
    is_client = text.startswith("ray://")  # its port is the Ray Client's, not the head's
    if tail and not is_client and not (tail.isdecimal() and 0 < int(tail) < 65536):
        raise UserError(f"--head-ip {text}: {tail!r} is no port; give HOST or HOST:PORT")
    own = int(tail) if tail and not is_client else None
    if own is not None and port is not None and own != port:
        raise UserError(f"--head-ip {text}: names port {own}, --port {port} another; give one of them")
    host = host.strip("[]")
    if not host:
        raise UserError(f"--head-ip {text}: names no host; give HOST or HOST:PORT")
    return host, own or port or DEFAULT_PORT


def is_client_address(text: str) -> bool:
    """Whether an address is one of the Ray Client's server, at its usual port."""
    scheme, _, rest = text.rstrip("/").partition("://")
    return scheme == "ray" and (":" not in rest or rest.endswith(":10001"))


def reach_of(
    context: ProbeContext,
    facts: Facts,
    head: str,
    port: int,
    timeout_s: float | None,
    wanted: WantedRun | None = None,
    also: Also | None = None,
) -> ReachFacts:
    """The way from this machine, whose own facts are `facts`, to a head."""
    from rlcheck.measure.cluster.examine import examine

    python = facts.python.value
    # In the order of the search path: of two distributions of one name the first is imported.
    versions = {d.name: d.version for d in reversed(python.distributions)} if python is not None else {}
    return examine(
        context,
        head,
        port,
        wanted=wanted or WantedRun(),
        client=also is not None and also.client,
        dashboard=also is not None and also.dashboard,
        own_ray=versions.get("ray", ""),
        own_python=python.version if python is not None else "",
        deadline_s=min(_REACH_S, timeout_s or _REACH_S),
    )


def open_machines(
    head_ip: str, port: int | None, hosts: str, context: ProbeContext, facts: Facts
) -> tuple[Switchboard, str]:
    """Agents for the collectives, and the way to them: those of `--hosts`, of a Ray cluster, or this machine's alone.

    Raises:
        UserError: the hosts file cannot be used, or no task can be run in the cluster from here.
    """
    if hosts:
        return open_hosts(hosts, " ".join(context.python))
    if not head_ip:
        from rlcheck.measure.cluster.launch import open_local

        return open_local(context.python), "local"
    head, number = parse_head(head_ip, port)
    reach = reach_of(context, facts, head, number, None)
    reason = why_no_tasks(facts, reach)
    if reason:
        raise UserError(f"--head-ip {head_ip}: {reason}; `rlcheck ray --head-ip {head_ip}` tells more")
    return open_cluster(reach, context.python), "ray"


def open_hosts(hosts: str, python: str) -> tuple[Switchboard, str]:
    """Agents on the machines of `--hosts`, and the way to them: ssh or srun.

    Args:
        hosts: a file of hosts, or `slurm` for the nodes of this job.
        python: the interpreter over there; "" means python3.

    Raises:
        UserError: the file cannot be used, or this is no Slurm job.
    """
    from rlcheck.measure.cluster.hosts import HostsError, read_hosts, slurm_hosts
    from rlcheck.measure.cluster.srun import open_srun
    from rlcheck.measure.cluster.ssh import open_ssh

    over_there = python or "python3"
    try:
        if hosts == "slurm" and not Path(hosts).is_file():
            return open_srun(slurm_hosts(os.environ), python=over_there), "srun"
        return open_ssh(read_hosts(Path(hosts)), python=over_there), "ssh"
    except HostsError as error:
        raise UserError(f"--hosts {hosts}: {error}") from None


def why_no_tasks(facts: Facts, reach: ReachFacts | None) -> str:
    """Why no task can be run in the cluster from here, or ""."""
    gcs = reach.gcs.value if reach is not None else None
    nodes = gcs.nodes.value if gcs is not None else None
    if reach is None or gcs is None or nodes is None:
        return "the head does not answer"
    if not reach.own_ray_version:
        return "Ray is not installed in the examined Python; run this on a node of the cluster, or use --hosts FILE"
    for own, theirs, what in (
        (reach.own_ray_version, gcs.ray_version.value, "Ray"),
        (reach.own_python_version, gcs.python_version.value, "Python"),
    ):
        if theirs and own and own != theirs:
            return f"{what} is {own} here and {theirs} in the cluster, which Ray refuses"
    if not _is_member(facts, nodes):
        return "this machine is no node of the cluster; run this on one of its nodes, or use --hosts FILE"
    return ""


def _is_member(facts: Facts, nodes: Sequence[GcsNode]) -> bool:
    section = facts.ray.value
    own = set(section.addresses) if section is not None else set[str]()
    return any(node.alive and node.address in own for node in nodes)


def open_cluster(reach: ReachFacts, python: tuple[str, ...], within_s: float = RAY_S) -> Switchboard:
    """An agent on every living node of the Ray cluster that was reached, but for those that do not answer from here."""
    from rlcheck.measure.cluster.over_ray import open_ray

    gcs = reach.gcs.value
    nodes = [node for node in (gcs.nodes.value if gcs is not None else None) or () if node.alive]
    address = next((contact.address for contact in reach.tcp.value or () if contact.outcome == "open"), reach.head)
    shown = f"[{address}]" if ":" in address else address
    silent = {node.node_id: reason for node in nodes if (reason := _why_silent(node, reach.node_ports.value or ()))}
    return open_ray(f"{shown}:{reach.port}", nodes, python, deadline_s=within_s, silent=silent)


def survey_ray(context: ProbeContext, facts: Facts, python: tuple[str, ...], awaited: Awaited, left_s: float) -> Facts:
    """`facts`, which hold the way to a head, with what every node of its cluster sees of the others.

    Args:
        context: this machine.
        facts: of this machine.
        python: the interpreter over there; empty for the doctor's own.
        awaited: told what is waited for.
        left_s: for all of it.
    """
    from rlcheck.measure.cluster.examine import look_at_workers
    from rlcheck.measure.cluster.survey import survey

    reach = facts.reach.value
    reason = why_no_tasks(facts, reach)
    if reason or reach is None:
        return msgspec.structs.replace(facts, cluster=absent(reason))
    awaited.on("a task on every node")
    with open_cluster(reach, python, min(RAY_S, left_s - _SURVEY_S - _WORKERS_S)) as board:
        ports = node_ports(board, reach)
        found = survey(board, via="ray", ports=ports, deadline_s=_SURVEY_S, progress=awaited.on_names)
        if board.lost:  # by now they have workers, which may be what cannot be reached
            reach = look_at_workers(context, reach, _WORKERS_S)
    safe = made_safe("reach", known(reach)), made_safe("cluster", known(found))
    return msgspec.structs.replace(facts, reach=safe[0], cluster=safe[1])


def _why_silent(node: GcsNode, contacts: Sequence[Contact]) -> str:
    """Why no task of ours can be run on a node, as far as its ports tell; else ""."""
    mine = [contact for contact in contacts if contact.address == node.address]
    raylet = [c for c in mine if c.what == "raylet" and c.port == node.node_manager_port and c.outcome != "open"]
    workers = [c for c in mine if c.what == "worker" and c.port in node.worker_ports]
    # A worker that refuses may have ended meanwhile; one that is dropped is there, and so are those to come.
    if workers and any(contact.outcome not in ("filtered", "unreachable") for contact in workers):
        workers = []
    first = next(iter((*raylet, *workers)), None)
    return f"{node.address}:{first.port} (its {first.what}) is {first.outcome} from here" if first is not None else ""


def node_ports(board: Switchboard, reach: ReachFacts) -> dict[int, list[tuple[int, str]]]:
    """The ports of Ray's own services on each seat's machine, which the other machines should reach."""
    gcs = reach.gcs.value
    nodes = {node.node_id: node for node in (gcs.nodes.value if gcs is not None else None) or ()}
    ports: dict[int, list[tuple[int, str]]] = {}
    for index, seat in enumerate(board.seats):
        node = nodes.get(seat.node_id)
        if node is not None:
            named = ((node.node_manager_port, "raylet"), (node.object_manager_port, "object_manager"))
            ports[index] = [(port, what) for port, what in named if port]
    return ports


def others(board: Switchboard, cluster: ClusterFacts, own: Facts, waiting: Awaited) -> tuple[Facts, ...]:
    """The whole facts documents of the machines but this one, as far as rlcheck is installed there."""
    here = {member.name for member in cluster.members if is_here(member, own)}
    if all(seat.machine in here for seat in board.seats):
        return ()
    from rlcheck.measure.cluster.collect_many import collect_many

    waiting.on("facts of the other machines")
    documents, _ = collect_many(board, _COLLECT_S, without=here)
    return documents


def facts_of_hosts(hosts: str, python: str, waiting: Awaited) -> tuple[tuple[Facts, ...], dict[str, str]]:
    """The whole facts documents of the machines of `--hosts`, and why others have none, by name.

    Raises:
        UserError: the hosts cannot be read, or not one of them has rlcheck.
    """
    from rlcheck.measure.cluster.collect_many import collect_many

    board, _ = open_hosts(hosts, python)
    with board:
        waiting.on(f"{len(board.seats)} hosts")
        documents, without = collect_many(board, _COLLECT_S, waiting.on_names)
    if not documents:
        shown = "; ".join(f"{name}: {reason}" for name, reason in list(without.items())[:_MOST_REASONS])
        raise UserError(f"--hosts {hosts}: no facts from any of {len(without)} hosts; {shown}")
    return documents, without


def is_here(member: Member, own: Facts) -> bool:
    """Whether an agent ran on this very machine: host names may be alike, and containers share the machine's boot."""
    machine = member.machine.value
    if machine is None or machine.hostname != own.node:
        return False
    with contextlib.suppress(OSError):
        return machine.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return True
