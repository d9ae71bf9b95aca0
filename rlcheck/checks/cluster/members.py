"""Whether every machine of the cluster answers, and whether their clocks agree."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.checks.cluster.nodes import alive, cluster, machines, names, threshold
from rlcheck.facts.base import why_missing
from rlcheck.facts.document import Facts


@check("RAY045", "Every node of the cluster answers", needs=("cluster",), playbook="ray-node-silent",
       caused_by=("RAY065", "RAY066"))  # fmt: skip
def answers(facts: Facts) -> Verdict:
    """Counts the nodes on which the doctor's node agent ran and answered before its deadline.

    What it does:
        Starts one small process on each node (through a Ray task that asks for no CPU, over ssh, or by srun) and waits
        for its first answer. Nodes that are on record as dead are not asked.

    Why it matters:
        A node on which nothing can be started takes its ranks or placement groups with it: the run waits for them
        until a timeout of half an hour.
    """
    members = alive(facts)
    if not members:
        return skip("no node is alive")
    silent = [(member.name, why_missing(member.machine)) for member in members if member.machine.value is None]
    dead = [member.name for member in cluster(facts).members if not member.alive]
    also = f"; {len(dead)} more on record as dead" if dead else ""
    if not silent:
        return passed(f"{len(members)} of {len(members)} nodes answered{also}")
    reasons = tuple(f"{name}: {reason.reason if reason else 'no answer'}" for name, reason in silent)
    found = f"{len(silent)} silent: {names([name for name, _ in silent])}"
    if len(silent) == 1:
        found = f"{silent[0][0]} is silent: {silent[0][1].reason if silent[0][1] else 'no answer'}"
    return fail(
        f"an answer from each of the {len(members)} nodes",
        found,
        details=reasons[:16] if len(silent) > 1 else (),
        evidence=tuple(evidence(f"cluster.members[{name}].machine", r.reason if r else "") for name, r in silent[:8]),
        params={"node": silent[0][0]},
        nodes=tuple(name for name, _ in silent),
    )


@check("RAY046", "The clocks of the nodes agree", needs=("cluster",), playbook="clock-not-synchronised",
       problem="The clocks of the nodes differ")  # fmt: skip
def clocks(facts: Facts) -> Verdict:
    """Compares each node's clock with this machine's, and with each other.

    What it does:
        Takes the offset measured over the shortest of several round trips, and believes only what is beyond half of
        that round trip. A difference of more than a second between two nodes is reported.

    Why it matters:
        Which rank failed first is read off time stamps, so logs of nodes with differing clocks accuse the wrong one.
        Minutes of difference make TLS, Kerberos and Slurm's munge refuse credentials.
    """
    found = {
        node: (machine.clock_offset_s.value, machine.clock_error_s)
        for node, machine in machines(facts).items()
        if machine.clock_offset_s.value is not None
    }
    if len(found) < 2:
        return skip("fewer than two clocks were read")
    limit = threshold("clock_warn_s")
    middle = sorted(offset for offset, _ in found.values())[(len(found) - 1) // 2]
    odd = {node: offset - middle for node, (offset, error) in found.items() if abs(offset - middle) - error > limit}
    if not odd:
        spread = max(offset for offset, _ in found.values()) - min(offset for offset, _ in found.values())
        return passed(f"{len(found)} clocks within {_seconds(spread)}")
    worst = max(odd, key=lambda node: abs(odd[node]))
    if len(found) == 2:
        text = f"the clocks of {' and '.join(found)} {_seconds(abs(odd[worst]))} apart"
    else:
        text = "; ".join(f"{node} is {_seconds(abs(by))} {'ahead' if by > 0 else 'behind'}" for node, by in _few(odd))
    far = abs(odd[worst]) > threshold("clock_far_s")
    message = "clocks this far apart make munge, Kerberos and TLS refuse each other" if far else ""
    return warn(
        f"clocks within {_seconds(limit)} of each other",
        text,
        message=message,
        evidence=tuple(evidence(f"cluster.members[{node}].machine.clock_offset_s", f"{found[node][0]:.3f}", "agent")
                       for node, _ in _few(odd)),
        params={"node": worst},
    )  # fmt: skip


def _few(odd: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(odd.items(), key=lambda item: -abs(item[1]))[:6]


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"
