"""Every node against every other: who reaches whom, on which ports, and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.checks.cluster.nodes import alive, names, threshold
from rlcheck.facts.document import Facts
from rlcheck.facts.reach import Contact
from rlcheck.measure.cluster.odd import Edge, Odd, contacts_by_edge, explain, pairs, round_trips

_NOBODY = 8  # with more explanations than this none of them explains anything
_PORTS = {
    "gcs": "the GCS",
    "raylet": "the node manager",
    "object_manager": "the object manager",
    "agent": "the node's agent",
    "worker": "the worker ports",
    "probe": "a port that the system chose",
}


def words(odd: Odd) -> str:
    """One explanation, for a reader."""
    nodes, others = names(odd.nodes), names(odd.others)
    return {
        "all": f"no node reaches any other ({nodes})",
        "cut-off": f"{nodes} is cut off: it reaches no node and none reaches it",
        "split": f"two groups that do not reach each other: {nodes} and {others}",
        "unreached": f"nothing reaches {nodes}, while it reaches the others",
        "reaches-none": f"{nodes} reaches no node, while the others reach it",
        "groups": f"{nodes} do not reach {others}, while these reach them",
        "partly": f"{nodes} has to do with {len(odd.edges)} of the failures, but some of its connections work",
        "pair": f"{nodes} and {others} do not reach each other",
        "one-way": f"{nodes} does not reach {others}, while it is reached from there",
    }[odd.kind]


def _outcome(contacts: Iterable[Contact]) -> str:
    """The most telling of what went wrong: a refusal says more than silence."""
    found = {contact.outcome: contact.detail for contact in contacts}
    kind = next((kind for kind in ("refused", "unreachable", "filtered", "error") if kind in found), "failed")
    return found["error"] or kind if kind == "error" else kind


def _is_proof(odd: Odd, edges: Mapping[Edge, list[Contact]]) -> bool:
    """Whether it says anything of the machines reached: what broke on the asking side alone does not."""
    outcomes = {contact.outcome for edge in odd.edges for contact in edges[edge]}
    return outcomes != {"error"} or odd.kind not in ("reaches-none", "one-way", "groups", "partly")


def nodes_of(odd: Iterable[Odd]) -> dict[str, str]:
    """The parameters of a fix that name the node, and the other one of a pair."""
    first = next(iter(odd), None)
    if first is None:
        return {}
    return {"node": first.nodes[0], **({"peer": first.others[0]} if first.others else {})}


@check("RAY062", "Every node reaches every other", needs=("cluster",), playbook="nodes-do-not-reach-each-other",
       problem="Some nodes do not reach each other")  # fmt: skip
def reach(facts: Facts) -> Verdict:
    """Connects every node with every other, in both directions, and names what explains the failures.

    What it does:
        A direction has failed when no connection to any port of the other node opened. From all failures it finds
        the node that nothing reaches, the one that reaches nothing, two groups, or the pair.

    Why it matters:
        Ray, Gloo and NCCL open connections between any two nodes, and in both directions. One blocked direction is
        enough for a run that starts on all nodes and then waits for one of them until its timeout.
    """
    members = alive(facts)
    edges = contacts_by_edge(members)
    if not edges:
        return skip("no two nodes were tried")
    failed = {edge for edge, contacts in edges.items() if all(contact.outcome != "open" for contact in contacts)}
    if not failed:
        return passed(f"{len(edges)} of {len(edges)} directions open, over {len(members)} nodes")
    found = [odd for odd in explain([m.name for m in members], failed, edges) if _is_proof(odd, edges)]
    if not found:
        return skip(f"some connections could not be tried: {_outcome(c for edge in failed for c in edges[edge])}")
    lines = [f"{words(odd)} ({_outcome(c for edge in odd.edges for c in edges[edge])})" for odd in found]
    shown = "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")
    if len(lines) > _NOBODY:
        shown = f"{len(failed)} of {len(edges)} directions fail, all over the cluster: nobody stands out ({lines[0]})"
    return fail(
        "every node to reach every other",
        shown,
        details=tuple(lines[3:]),
        evidence=tuple(evidence(f"cluster.members[{a}].contacts", f"to {b}: {_outcome(edges[a, b])}", "connect()")
                       for a, b in sorted(failed)[:16]),
        params=nodes_of(found),
    )  # fmt: skip


@check("RAY063", "No port range is blocked between the nodes", needs=("cluster",),
       playbook="nodes-do-not-reach-each-other",
       problem="Some ports are blocked between nodes that reach each other")  # fmt: skip
def ports(facts: Facts) -> Verdict:
    """Looks for purposes whose ports are blocked between nodes that reach each other on other ports.

    What it does:
        Tries the ports of Ray that each node advertises, two ports of the worker range (10002 to 19999) and one that
        the system chose, with listeners that the doctor's agents open for the time of the check.

    Why it matters:
        A firewall that was opened for 6379 alone lets nodes join, and then tasks hang: workers talk to each other on
        the worker range, and Gloo and NCCL on ports that the system chooses.
    """
    members = alive(facts)
    edges = contacts_by_edge(members)
    usable = {edge: found for edge, found in edges.items() if any(contact.outcome == "open" for contact in found)}
    if not usable:
        return skip("no two nodes were tried" if not edges else "no node reaches another at all")
    blocked: dict[str, dict[Edge, list[Contact]]] = {}
    for edge, found in usable.items():
        for contact in found:
            if contact.outcome not in ("open", "error"):
                blocked.setdefault(contact.what, {}).setdefault(edge, []).append(contact)
    if not blocked:
        return passed(f"every port that was tried is open in {len(usable)} directions")
    order = [member.name for member in members]
    lines: list[str] = []
    for what, found in blocked.items():
        tried = {edge for edge, tries in usable.items() if any(contact.what == what for contact in tries)}
        contacts = [contact for tries in found.values() for contact in tries]
        numbers = sorted({contact.port for contact in contacts})
        which = f"{_PORTS.get(what, what)} ({_numbers(numbers)}, {_outcome(contacts)})"
        lines.append(f"{which}: {_where(order, set(found), tried)}")
    return fail(
        "all ports open between the nodes",
        "; ".join(lines),
        evidence=tuple(evidence(f"cluster.members[{a}].contacts", f"to {b} {c.port}: {c.outcome}", "connect()")
                       for found in blocked.values() for (a, b), tries in list(found.items())[:4] for c in tries[:1]),
        params=nodes_of(explain(order, set(next(iter(blocked.values()))), usable)),
    )  # fmt: skip


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:3])) + (" …" if len(numbers) > 3 else "")


def _where(order: list[str], failed: set[Edge], tried: set[Edge]) -> str:
    if failed == tried and len(tried) > 2:
        return "between all nodes"
    return "; ".join(words(odd) for odd in explain(order, failed, tried)[:3])


@check("RAY064", "No pair of nodes is far slower to reach", needs=("cluster",), playbook="slow-pair-of-nodes")
def round_trip_times(facts: Facts) -> Verdict:
    """Compares the time to connect between each pair of nodes with the median of all pairs.

    What it does:
        Takes the fastest of the connections of both directions of a pair. Reports pairs above five times the median
        that are also at least 2 ms slower, and the node that they have in common.

    Why it matters:
        A collective goes round all nodes, at the pace of the slowest link. A pair that takes another route (a VPN, a
        second site, a lossy cable) slows every step of the run.
    """
    members = alive(facts)
    one_way = round_trips(members)
    times = {
        tuple(sorted(edge)): min(one_way[edge], one_way.get((edge[1], edge[0]), one_way[edge])) for edge in one_way
    }
    if len(times) < 3:
        return skip("fewer than three pairs of nodes were measured")
    middle = median(times.values())
    slow = {
        (a, b): time
        for (a, b), time in times.items()
        if time > threshold("rtt_ratio") * middle and time - middle > threshold("rtt_more_s")
    }
    if not slow:
        return passed(f"{len(times)} pairs, median {_time(middle)}, slowest {_time(max(times.values()))}")
    found = explain([m.name for m in members], pairs(slow), pairs((a, b) for a, b in times))
    lines = [_slow_words(odd, slow) for odd in found]
    return warn(
        f"no pair above {_time(max(threshold('rtt_ratio') * middle, middle + threshold('rtt_more_s')))}"
        f" (median {_time(middle)})",
        "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else ""),
        evidence=tuple(evidence(f"cluster.members[{a}].contacts", f"to {b}: {_time(time)}", "connect()")
                       for (a, b), time in list(slow.items())[:8]),
        params=nodes_of(found),
    )  # fmt: skip


def _slow_words(odd: Odd, slow: dict[Edge, float]) -> str:
    worst = max(time for edge, time in slow.items() if edge in odd.edges or (edge[1], edge[0]) in odd.edges)
    if odd.culprit:
        return f"{odd.culprit} to {len(odd.edges) // 2} of the others, up to {_time(worst)}"
    if odd.kind == "pair":
        return f"{odd.nodes[0]} and {odd.others[0]} {_time(worst)}"
    return (
        f"{names(odd.nodes)}{' and ' + names(odd.others) if odd.others else ''} among each other, up to {_time(worst)}"
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
