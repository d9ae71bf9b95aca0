"""Agents on the nodes of a Ray cluster, through a driver in the examined Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rlcheck.facts.reach import GcsNode
from rlcheck.measure.cluster.link import start
from rlcheck.measure.cluster.program import ONE_LINER, agent_line, first_line, remote_sources
from rlcheck.measure.cluster.switchboard import Seat, Switchboard, unique_names


def open_ray(
    address: str,
    nodes: Sequence[GcsNode],
    python: Sequence[str] = (),
    deadline_s: float = 20.0,
    lifetime_s: float = 3600.0,
    silent: Mapping[str, str] = {},
) -> Switchboard:
    """An agent on each of the `nodes` that are alive, in the Python that Ray runs there.

    This machine must be a node of the cluster at `address` (`IP:PORT`), and the command `python` (empty: the doctor's
    own) an interpreter with the cluster's Ray. A node whose agent has not come up within `deadline_s` is lost. Those in
    `silent` (node id to reason) are lost at once.
    """
    alive = [node for node in nodes if node.alive]
    seats = _seats(alive)
    options = {
        "address": address,
        "nodes": [{"seat": i, "node_id": node.node_id} for i, node in enumerate(alive) if node.node_id not in silent],
        "one_liner": ONE_LINER,
        "agent_line": agent_line(lifetime_s=lifetime_s).decode(),
    }
    command = [*(python or (sys.executable,)), "-u", "-c", ONE_LINER]
    try:
        # Ray's own advice on its configuration is not for the reader of our report.
        environ = {**os.environ, "PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0"}
        link = start(command, range(len(seats)), environ).wrapped()
    except OSError as error:
        reason = f"{command[0]}: {error.strerror or error}"
        return Switchboard(seats, (), dict.fromkeys(range(len(seats)), reason))
    link.send_raw(first_line(remote_sources("ray_mux"), "ray_mux:main", options))
    lost = {index: silent[node.node_id] for index, node in enumerate(alive) if node.node_id in silent}
    return Switchboard(seats, (link,), lost, up_within_s=deadline_s, stage="the Ray driver to start", explain=_explain)


def _seats(nodes: Sequence[GcsNode]) -> list[Seat]:
    """Seats with names that are unique: several nodes may have one host name, and even one address."""
    names = unique_names([(node.hostname or node.address, node.address, node.node_id[:8]) for node in nodes])
    return [
        Seat(name=name, address=node.address, node_id=node.node_id, is_head=node.is_head)
        for name, node in zip(names, nodes, strict=True)
    ]


def _explain(seat: Seat, code: int | None, lines: tuple[str, ...]) -> str:
    last = lines[-1] if lines else "" if code is None else f"exit status {code}"
    return "the Ray driver of the check ended: " + (last or "it hung up")
