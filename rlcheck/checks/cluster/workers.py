"""Whether the processes that run tasks on each node can be called from here."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip
from rlcheck.checks.cluster.head import living, shown_node
from rlcheck.checks.cluster.nodes import names
from rlcheck.checks.cluster.reach import reach
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.reach import Contact, GcsNode

_DROPPED = ("filtered", "unreachable")
_FEW = 2  # one that refuses may have ended since the GCS named it


@check("RAY065", "The workers of every node answer", needs=("reach.gcs", "reach.node_ports"),
       playbook="nodes-do-not-reach-each-other", caused_by=("RAY037", "RAY041"),
       problem="The ports of the workers of a node are blocked")  # fmt: skip
def worker_ports(facts: Facts) -> Verdict:
    """Connects to a few living workers and drivers of each node, on the ports that the GCS has on record for them.

    What it does:
        Reports nodes whose raylet answers while connections to their workers are dropped, or refused by all that were
        tried. A node without a process of Ray's that runs tasks cannot be looked at.

    Why it matters:
        Tasks and results go straight from worker to worker, on ports of 10002 to 19999 unless the node was started
        with others. A node where these are blocked joins, looks alive, and every task that is sent there hangs.
    """
    nodes, contacts = living(facts), need(reach(facts).node_ports)
    tried = [(node, [contact for contact in contacts if _is_worker_of(contact, node)]) for node in nodes]
    tried = [(node, found) for node, found in tried if found]
    if not tried:
        return skip("the GCS names no worker that runs")
    bad = [(node, blocked) for node, found in tried if (blocked := _blocked(found)) and _has_raylet(node, contacts)]
    if bad:
        lines = [f"{shown_node(node)} ({_ports(found)} {found[0].outcome})" for node, found in bad]
        return fail(
            "workers that can be called on every node",
            f"worker ports of {names(lines, 3)}, though the raylet there answers",
            details=tuple(lines[3:16]),
            evidence=tuple(evidence("reach.node_ports", f"{c.address}:{c.port} {c.outcome}", c.detail)
                           for _, found in bad for c in found)[:8],
            params={"node": bad[0][0].address},
        )  # fmt: skip
    num_open = sum(contact.outcome == "open" for _, found in tried for contact in found)
    if not num_open:
        return info("none of the workers that the GCS names answers: they may have just ended")
    return passed(f"{num_open} workers of {len(tried)} nodes answer")


def _is_worker_of(contact: Contact, node: GcsNode) -> bool:
    return contact.what == "worker" and contact.address == node.address and contact.port in node.worker_ports


def _has_raylet(node: GcsNode, contacts: tuple[Contact, ...]) -> bool:
    """Whether its raylet answers: else it is the whole node that does not."""
    raylet = (node.address, node.node_manager_port)
    return all(c.outcome == "open" for c in contacts if c.what == "raylet" and (c.address, c.port) == raylet)


def _blocked(contacts: list[Contact]) -> list[Contact]:
    """The connections that show that something is in the way."""
    dropped = [contact for contact in contacts if contact.outcome in _DROPPED]
    refused = [contact for contact in contacts if contact.outcome == "refused"]
    return dropped or (refused if len(refused) == len(contacts) >= _FEW else [])


def _ports(contacts: list[Contact]) -> str:
    return ", ".join(dict.fromkeys(str(contact.port) for contact in contacts))
