"""HNG001-HNG004: a job that runs and does not go on."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, unknown
from rlcheck.diagnose.hang.live import judge
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.hang import Culprit, Hang, HangFacts
from rlcheck.text import listed

_PROCESS = ("stopped", "gone", "no dump")
_CALLS = ("mismatch", "circle")


def _verdict(facts: Facts, kinds: tuple[str, ...], expected: str) -> Verdict:
    """Fails for culprits of KINDS; where the job could not be judged, says why."""
    looked = need(facts.hang)
    found = judge(looked)
    if found.doubt:
        return unknown(found.doubt)
    hang = found.hang
    culprits = () if hang is None else tuple(one for one in hang.culprits if one.kind in kinds)
    if hang is None or not culprits:
        return passed(found.said or f"{len(looked.processes)} processes were looked at for {looked.watched_s:.0f} s")
    return fail(expected, hang.said, details=(*map(_line, culprits), *hang.steps), evidence=_seen(looked, culprits),
                params={"process": str(culprits[0].pid or "PID")})  # fmt: skip


def _line(one: Culprit) -> str:
    who = f"rank {one.rank}" if one.rank is not None else one.role
    place = "".join((f", process {one.pid}" if one.pid else "", f" on {one.node}" if one.node else ""))
    return f"{who}{place}: {one.call or 'its stack could not be seen'}"


def _seen(looked: HangFacts, culprits: tuple[Culprit, ...]) -> tuple[object, ...]:
    for one in culprits:
        if one.stack:
            return (evidence("hang.processes", listed(one.stack[:6], 6), f"stack of process {one.pid}"),)
    return (evidence("hang.watched_s", looked.watched_s),)


@check("HNG001", "Every process of the job lives and may run", needs=("hang",), playbook="job-process-gone",
       problem="A process of the job is gone or stopped, and the others wait for it")  # fmt: skip
def processes_live(facts: Facts) -> Verdict:
    """Looks for ranks without a process, and for processes that are stopped or wait in the kernel.

    What it does:
        Counts the ranks by RANK and WORLD_SIZE of their processes, and reads their states in /proc.

    Why it matters:
        The others wait until the time limit of the group, half an hour and more, and name only themselves then.
    """
    return _verdict(facts, _PROCESS, "a process of each rank that may run")


@check("HNG002", "No rank or role keeps the others waiting", needs=("hang",), playbook="job-waits-for-one",
       problem="The job stands still: all wait for one that does not go on")  # fmt: skip
def none_behind(facts: Facts) -> Verdict:
    """Follows who waits for whom, over collectives, sockets, pipes and Ray calls, to the one that waits for none.

    What it does:
        Takes stacks three times; one that moves or computes is not accused. A record of it can be judged elsewhere.

    Why it matters:
        The rank or server at the end of the chain is the cause; all others show the same harmless stack.
    """
    return _verdict(facts, ("behind", "gil", "stuck", "not started"), "none that others wait for stands still")


@check("HNG003", "All ranks call the same", needs=("hang",), playbook="job-calls-differ",
       problem="The job stands still: ranks have called different collectives")  # fmt: skip
def calls_match(facts: Facts) -> Verdict:
    """Compares the collectives in which the ranks wait, by operation, place in the code and, from dumps, size.

    What it does:
        The call that most are in counts as the usual one; the ranks in another are named.

    Why it matters:
        Collectives are matched by their number alone: a rank that skips one waits forever, or computes nonsense.
    """
    return _verdict(facts, _CALLS, "the same call on all ranks")


@check("HNG004", "A collective that all have called ends", needs=("hang",), playbook="job-calls-differ",
       problem="The job stands still in a call that all of its ranks have made")  # fmt: skip
def calls_end(facts: Facts) -> Verdict:
    """Looks whether all ranks are in one call that none of them leaves.

    What it does:
        Fires where no rank is elsewhere, none uses its CPU, and the stacks stay the same.

    Why it matters:
        No rank's code is to blame then, but sizes that differ, or network, GPU and driver.
    """
    found = judge(need(facts.hang))
    if found.doubt:
        return unknown(found.doubt)
    hang: Hang | None = found.hang
    if hang is None or hang.culprits:
        return passed(found.said or "no call was found that all are in")
    return fail("the call ends", hang.said, details=hang.steps)
