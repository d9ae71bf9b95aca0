"""Did the ranks come up, stay alive, meet in every step and compute the right thing?"""

from __future__ import annotations

from collections.abc import Iterable

from rlcheck.check import Verdict, check, fail, info, passed, skip, unknown, warn
from rlcheck.checks.collectives.common import fact, group_name, measured, rank_name
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Stall
from rlcheck.facts.document import Facts
from rlcheck.measure.collectives.attribution import Suspect, suspects
from rlcheck.measure.collectives.expect import table
from rlcheck.text import listed

_NEEDS = ("collectives",)
_LINES = 4


def _of_kind(run: CollectiveFacts, *kinds: str) -> list[Suspect]:
    return [suspect for suspect in suspects(run) if suspect.kind in kinds]


def _told(found: Iterable[Suspect]) -> tuple[str, ...]:
    return tuple(f"{suspect.label}: {suspect.why}" for suspect in found)


@check("NCL033", "Every machine of the measurement answered", needs=_NEEDS, playbook="nccl-rank-missing",
       caused_by=("RAY045",),
       problem="A machine of the measurement did not answer")  # fmt: skip
def ranks_came_up(facts: Facts) -> Verdict:
    """Counts the machines and ranks that took part.

    What it does:
        Names each machine whose agent or rank did not start or stopped answering, with the reason in the words of ssh,
        Ray, Slurm or Python.

    Why it matters:
        A run waits for all of its ranks: one machine that does not start holds all the others until a time limit.
    """
    run = measured(facts)
    nodes = sorted({rank.node for rank in run.ranks} | set(run.lost))
    if run.lost:
        return fail(
            f"an answer from all {len(nodes)} machines",
            f"{len(run.lost)} without: {listed([f'{node} ({why})' for node, why in sorted(run.lost.items())])}",
            details=tuple(f"{node}: {why}" for node, why in sorted(run.lost.items())),
            evidence=fact("lost", ", ".join(sorted(run.lost))),
            params={"node": sorted(run.lost)[0]},
            nodes=tuple(sorted(run.lost)),
        )
    if not run.ranks:
        return unknown(f"no rank was started: {run.cancelled or 'nothing says why'}")
    kinds = sorted({rank.device for rank in run.ranks})
    return passed(f"{len(run.ranks)} ranks on {len(nodes)} nodes ({', '.join(kinds)}), {run.backend} by {run.launcher}")


@check("NCL034", "No rank died during the measurement", needs=_NEEDS, playbook="nccl-rank-missing",
       caused_by=("NCL033",),
       problem="A rank died during the measurement")  # fmt: skip
def ranks_stayed_alive(facts: Facts) -> Verdict:
    """Looks for ranks whose process ended in the middle.

    What it does:
        Names the rank, its machine, how the process ended and the step that it was in, with its last lines.

    Why it matters:
        The others cannot finish the collective that the dead rank was in: they hang until a watchdog kills them, and
        the logs of the ranks that waited hide the one that died.
    """
    run = measured(facts)
    dead = _of_kind(run, "dead")
    if not dead:
        return passed("no rank ended early")
    lines = [line for group in run.groups if group.stall for line in _last_lines(run, group.stall, group.stall.died)]
    return fail(
        "every rank alive to the end",
        listed([f"{suspect.label} ({suspect.why})" for suspect in dead]),
        details=(*_told(dead), *dict.fromkeys(lines)),
        evidence=fact("groups.stall.died", listed([suspect.label for suspect in dead])),
        params={"node": dead[0].names[0]} if dead[0].names else {},
        nodes=tuple(sorted({suspect.names[0] for suspect in dead if suspect.names})),
    )


def _last_lines(run: CollectiveFacts, stall: Stall, ranks: Iterable[str]) -> list[str]:
    return [
        f"{rank_name(run, int(rank)) if rank.isdecimal() else rank} wrote: {line}"
        for rank in ranks
        for line in stall.last_lines.get(rank, ())[-_LINES:]
    ]


@check(
    "NCL035",
    "Every step of a collective ended",
    needs=_NEEDS,
    playbook="nccl-hang",
    caused_by=("NCL033", "NCL034", "NCL044", "RAY067"),
)
def nothing_hung(facts: Facts) -> Verdict:
    """Looks for steps that did not end within their deadline, and for who was missing.

    What it does:
        Every step has a deadline. When one passes, the ranks that entered the step, that left it and that never came
        are distinguished, and the last lines of the silent ones are shown. A rank that is missing in several groups is
        the cause; where all arrived and none left, it is the path between them. Steps in which a rank died, or that a
        slow node or connection made too long, are reported with that.

    Why it matters:
        In training the same hang shows after half an hour, on the ranks that wait and not on the one that is missing.
    """
    run = measured(facts)
    unended = [(group, group.stall) for group in run.groups if group.stall is not None and not group.stall.died]
    slow = {name for suspect in _of_kind(run, "slow") for name in suspect.names}
    stalled = [(group, stall) for group, stall in unended if stall.silent or not slow & set(group.nodes)]
    if not stalled and unended:
        return info(f"{_without_names(*unended[0])}: what is slow there explains it")
    if not stalled:
        return passed(f"the steps of {len(run.groups)} groups ended in time") if run.groups else skip("nothing was run")
    silent = _of_kind(run, "silent")
    found = listed([suspect.label for suspect in silent]) + " never came" if silent else _without_names(*stalled[0])
    details = [line for group, stall in stalled for line in _stall_lines(run, group, stall)]
    return fail(
        "every step to end within its deadline",
        f"{len(stalled)} that did not: {found}",
        details=(*_told(silent), *dict.fromkeys(details)),
        evidence=fact("groups.stall", "; ".join(f"{group_name(g)}: {s.step}" for g, s in stalled[:4])),
        params={"node": silent[0].names[0]} if silent and silent[0].names else {},
    )


def _without_names(group: GroupRun, stall: Stall) -> str:
    return (
        f"{stall.step} on {group_name(group)}: {len(stall.arrived)} of {len(group.ranks)} ranks entered it and "
        f"{len(stall.finished)} left it in {stall.deadline_s:g} s"
    )


def _stall_lines(run: CollectiveFacts, group: GroupRun, stall: Stall) -> list[str]:
    return [_without_names(group, stall), *_last_lines(run, stall, [str(rank) for rank in stall.silent])]


@check("NCL036", "The process groups came up in time", needs=_NEEDS, playbook="nccl-hang",
       caused_by=("NCL035", "NCL044"),
       problem="A process group came up late")  # fmt: skip
def init_time(facts: Facts) -> Verdict:
    """Compares the time of initialisation and first collective with what is usual.

    What it does:
        Eight H200 need 3 s. More than a minute points at name look-ups that time out, interfaces that are tried in
        vain, or a file system from which libraries load slowly.

    Why it matters:
        Every new group pays it, and training makes several: they add up to the limit at which a launcher gives up.
    """
    run = measured(facts)
    limit_s = table().init_s["gloo" if run.backend == "gloo" else "nccl"]
    times = [(group.init_s.value, group_name(group)) for group in run.groups if group.init_s.value is not None]
    if not times:
        return skip("no group came up")
    slowest, name = max(times)
    if slowest <= limit_s:
        return passed(f"the slowest group, {name}, came up in {slowest:.1f} s")
    late = [f"{name} {seconds:.0f} s" for seconds, name in sorted(times, reverse=True) if seconds > limit_s]
    return warn(
        f"groups that come up within {limit_s:g} s", listed(late), evidence=fact("groups.init_s", f"{slowest:.1f}")
    )


@check("NCL037", "The results of the collectives are right", needs=_NEEDS, playbook="nccl-wrong-sums")
def results_right(facts: Facts) -> Verdict:
    """Compares the result of each collective with what it must be.

    What it does:
        Each rank gives values that no other rank gives, so that a wrong element says whose part is missing or broken.
        All data types used in training are tried.

    Why it matters:
        Training goes on with wrong gradients: nothing fails, the loss is just never as good as it should be.
    """
    run = measured(facts)
    wrong = [(group, one) for group in run.groups for one in group.wrong]
    dtypes = sorted({dtype for group in run.groups for dtype in group.dtypes_checked})
    if not wrong:
        return passed(f"right in {', '.join(dtypes)}") if dtypes else skip("no result was looked at")
    blamed = _of_kind(run, "wrong")
    names = listed([suspect.label for suspect in blamed]) or "nobody can be named"
    details = tuple(
        f"{group_name(group)}: {one.collective} of {one.dtype} at {rank_name(run, one.rank)}, element {one.index}: "
        f"{one.found} instead of {one.expected}"
        for group, one in wrong[:40]
    )
    return fail(
        "the right result everywhere",
        f"{len(wrong)} wrong ones, to blame: {names}",
        details=(*_told(blamed), *details),
        evidence=fact("groups.wrong", details[0]),
        params={"node": blamed[0].names[0]} if blamed and blamed[0].names else {},
    )


@check("NCL044", "Every node can run collectives with every other", needs=_NEEDS,
       playbook="nodes-do-not-reach-each-other",
       caused_by=("NCL033", "NCL034", "NCL051", "RAY067"),
       problem="Two nodes cannot run a collective with each other")  # fmt: skip
def nodes_can_talk(facts: Facts) -> Verdict:
    """Looks for pairs of nodes that could not run a collective although both are fine with others.

    What it does:
        Nodes are measured two by two. A node that fails with all its partners is named alone, a connection between
        two nodes that are fine otherwise as a pair.

    Why it matters:
        One connection that does not work is enough to stop a run over all nodes, and its log shows all of them.
    """
    run = measured(facts)
    found = [suspect for suspect in _of_kind(run, "unreachable") if not set(suspect.names) & set(run.lost)]
    pairs = sum(group.phase == "pair" for group in run.groups)
    if not found:
        return passed(f"{pairs} pairs of nodes worked") if pairs else skip("no pair of nodes was measured")
    return fail(
        "collectives between any two nodes",
        f"none with {listed([suspect.label for suspect in found])}",
        details=_told(found),
        evidence=fact("groups.error", found[0].why),
        params={"node": found[0].names[0], "peer": found[0].names[-1]},
    )


@check("NCL057", "Every group could run its collectives", needs=_NEEDS, playbook="nccl-group-error",
       caused_by=("NET012", "NET013", "NCL033", "NCL034", "NCL035", "NCL044", "NCL051"))  # fmt: skip
def groups_ran(facts: Facts) -> Verdict:
    """Looks for groups that ended with an error of torch, NCCL or Gloo.

    What it does:
        Shows the error of each group that could not be formed or broke off, in the library's own words.

    Why it matters:
        A training run makes the same groups, and stops with the same error after its models are loaded.
    """
    run = measured(facts)
    broken = [group for group in run.groups if group.error and group.stall is None]
    if not broken:
        return passed(f"{len(run.groups)} groups ran") if run.groups else skip("no group was formed")
    return fail(
        "collectives that run in every group",
        f"{group_name(broken[0])}: {broken[0].error}" + (f", and {len(broken) - 1} more" if broken[1:] else ""),
        details=tuple(f"{group_name(group)}: {group.error}" for group in broken[1:40]),
        evidence=fact("groups.error", broken[0].error),
        params={"node": broken[0].nodes[0]} if broken[0].nodes else {},
    )


@check("NCL056", "The measurement ran to its end", needs=_NEEDS, playbook="nccl-rank-missing",
       problem="The measurement was not finished")  # fmt: skip
def measured_to_the_end(facts: Facts) -> Verdict:
    """Says what was left out, and why.

    What it does:
        Later phases are left out when an earlier one hangs or the time is used up; groups that ended with an error are
        counted.

    Why it matters:
        What was not measured is not known to be right.
    """
    run = measured(facts)
    if run.cancelled:
        return info(f"left out: {run.cancelled}", evidence=fact("cancelled", run.cancelled))
    return passed(f"{len(run.groups)} groups" + (", quick" if run.quick else ""))
