"""Whether large packets get through where small ones do: an MTU black hole on the way."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip
from rlcheck.checks.cluster.nodes import alive
from rlcheck.checks.cluster.pairs import nodes_of, words
from rlcheck.checks.cluster.reach import place, reach
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.measure.cluster.odd import contacts_by_edge, explain

_EXPECTED = "large packets to get through as small ones do"


@check("RAY066", "Large packets pass between this machine and the cluster", needs=("reach.gcs",),
       playbook="large-packets-lost", caused_by=("RAY034",),
       problem="Large packets are lost between this machine and the cluster")  # fmt: skip
def to_the_cluster(facts: Facts) -> Verdict:
    """Looks for a way between this machine and the cluster that small packets pass and large ones do not.

    What it does:
        When the GCS answers small questions and its list of nodes does not come, asks again in TCP segments of 536
        bytes. Sends 9.5 kB to the raylet of every node and looks whether the other kernel acknowledges them.

    Why it matters:
        Connections open and pings answer, and whatever is larger than a packet never ends: joining, objects, weights.
        It looks like an overloaded head or a dead node, and restarting either changes nothing.
    """
    section = reach(facts)
    hosts = {n.address: n.hostname for n in (section.gcs.value.nodes.value if section.gcs.value else ()) or ()}
    named = [" ".join(filter(None, (hosts.get(a, ""), f"({a})"))) for a in section.loses_large_to]
    lines = [f"what {place(facts)} sends arrives here in packets of 576 bytes only"] * bool(section.loses_large_from)
    lines += [f"{name} gets small packets from here and no large ones" for name in named]
    if not lines:
        return skip("the GCS named no nodes") if need(section.gcs).nodes.value is None else passed("they pass")
    return fail(
        _EXPECTED,
        "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else ""),
        details=tuple(lines[3:]),
        evidence=(evidence("reach.loses_large_from", ", ".join(section.loses_large_from) or "none", "TCP_MAXSEG 536"),
                  evidence("reach.loses_large_to", ", ".join(section.loses_large_to) or "none", "TIOCOUTQ")),
        params={"address": (*section.loses_large_from, *section.loses_large_to)[0]},
    )  # fmt: skip


@check("RAY067", "Large packets pass between the nodes", needs=("cluster",), playbook="large-packets-lost",
       problem="Large packets are lost between nodes")  # fmt: skip
def between_nodes(facts: Facts) -> Verdict:
    """Looks for directions between two nodes in which small packets arrive and large ones do not.

    What it does:
        The doctor's listener on each node greets and then sends 9.5 kB over each connection. Reports directions in
        which the greeting arrived and nothing after it, and the node that explains them.

    Why it matters:
        Everything joins, and the first collective, object or weight that is larger than a packet hangs until its
        timeout. NCCL and Gloo cannot say why: their connections are open.
    """
    members = alive(facts)
    edges = contacts_by_edge(members)
    greeted = {edge: found for edge, found in edges.items() if any(c.what == "probe" and c.port for c in found)}
    if not greeted:
        return skip("no two nodes were tried")
    # The one that connected did not get what the other sent: the packets went the other way.
    lost = {(b, a) for (a, b), found in greeted.items() if any(contact.loses_large for contact in found)}
    if not lost:
        return passed(f"9.5 kB arrived in {len(greeted)} directions")
    found = explain([member.name for member in members], lost, {(b, a) for a, b in greeted})
    return fail(
        _EXPECTED,
        "small packets arrive; of large ones, " + "; ".join(map(words, found[:3])),
        evidence=tuple(evidence(f"cluster.members[{b}].contacts", f"from {a}: the greeting alone", "recv()")
                       for a, b in sorted(lost)[:16]),
        params={"address": next(m.address for m in members if m.name == sorted(lost)[0][1])} | nodes_of(found),
    )  # fmt: skip
