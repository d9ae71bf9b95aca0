"""Is it as fast as such machines are, and as fast everywhere?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rlcheck.check import Verdict, check, fail, passed, skip, warn
from rlcheck.checks.collectives.common import fact, group_name, inside, measured, several, speed_text
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, devices_of
from rlcheck.facts.document import Facts
from rlcheck.measure.collectives.attribution import node_scores, pair_scores, suspects, work_scores
from rlcheck.measure.collectives.expect import Speed, is_rdma, odd_limits, speeds, table
from rlcheck.text import listed, size_label

_NEEDS = ("collectives",)
_WORK = {"product": "a matrix product", "attention": "an attention"}
_TRANSPORT = ("NCL045", "NCL049", "NCL050", "NCL051")


def _line(group: GroupRun, speed: Speed) -> str:
    how = f" ({speed.expected.derived})" if speed.expected.derived else ""
    return (
        f"{group_name(group)}: {speed.collective} {speed_text(speed.best.busbw)} at {size_label(speed.best.num_bytes)}"
        f", at least {speed_text(speed.expected.busbw)} expected{how}; over {speed.num_points} sizes "
        f"{speed.ratio:.0%} of what is expected"
    )


def _judge(facts: Facts, groups: Sequence[GroupRun], nothing: str) -> Verdict:
    """Each group and collective against the table; the worst decides."""
    run = measured(facts)
    found = [(group, speed) for group in groups for speed in speeds(facts, group)]
    if not found:
        reached = max((s for g in groups for s in g.samples), key=lambda s: s.busbw, default=None)
        if reached is None:
            return skip(nothing)
        return skip(f"no expectation is known for {devices_of(run, groups[0])}; best {speed_text(reached.busbw)} in "
                    f"{reached.collective}")  # fmt: skip
    bad = sorted(((g, s) for g, s in found if s.status != "ok"), key=lambda pair: pair[1].ratio)
    if not bad:
        group, speed = min(found, key=lambda pair: pair[1].ratio)
        return passed(f"{len(found)} curves as expected of {devices_of(run, group)}; the lowest: {_line(group, speed)}")
    group, speed = bad[0]
    verdict = fail if any(s.status == "fail" for _, s in bad) else warn
    return verdict(
        f"at least {speed_text(speed.expected.busbw)} in {speed.collective} at {size_label(speed.best.num_bytes)} on "
        f"{devices_of(run, group)}",
        f"{speed_text(speed.best.busbw)} on {group_name(group)}"
        + (f", and {len(bad) - 1} more below what is expected" if len(bad) > 1 else ""),
        details=(*(_line(g, s) for g, s in bad), f"expected because of: {speed.expected.source}"),
        evidence=fact("groups.samples.busbw", f"{speed.best.busbw:.4g} B/s"),
        params={"node": group.nodes[0]},
    )


@check("NCL038", "The bandwidth inside each node is as it should be", needs=_NEEDS, playbook="nccl-slow-inside-node",
       caused_by=("NCL034", "NCL035", "NCL046", "NCL047"),
       problem="The bandwidth inside a node is too low")  # fmt: skip
def bandwidth_inside(facts: Facts) -> Verdict:
    """Compares the bus bandwidth within each machine with what such machines were measured to do.

    What it does:
        The table has curves over size by GPU, number of GPUs, NVLink SHARP and collective, with sources. Each
        collective is judged over its large sizes by the middle of found / expected, so that one odd point decides
        nothing. It warns 5 % below the least that is expected and fails 15 % below (30 % where the number is derived).

    Why it matters:
        Every gather of weights and every sum of gradients takes that much longer, in every step.
    """
    return _judge(facts, inside(measured(facts)), "no group inside a node was measured")


@check("NCL039", "The bandwidth between two nodes is as it should be", needs=_NEEDS,
       playbook="nccl-slow-between-nodes", caused_by=("NCL035", "NCL038", *_TRANSPORT, "NCL042", "NCL043"),
       problem="The bandwidth between two nodes is too low")  # fmt: skip
def bandwidth_between(facts: Facts) -> Verdict:
    """Compares the bandwidth of pairs of nodes with what their network cards can carry.

    What it does:
        The floor is derived: 0.8 of the line rate of the cards that the ranks can use on InfiniBand, 0.7 on RoCE and
        EFA, at 4 GiB, less at smaller sizes. Without RDMA, or without knowing the cards, pairs are only compared with
        each other (NCL043).

    Why it matters:
        A ring over all nodes is as fast as its slowest connection.
    """
    pairs = [group for group in measured(facts).groups if group.phase == "pair"]
    return _judge(facts, pairs, "no pair of nodes was measured")


@check("NCL040", "The bandwidth over all nodes is as it should be", needs=_NEEDS, playbook="nccl-slow-between-nodes",
       caused_by=("NCL035", "NCL038", "NCL039", *_TRANSPORT, "NCL042", "NCL043"),
       problem="The bandwidth over all nodes is too low")  # fmt: skip
def bandwidth_over_all(facts: Facts) -> Verdict:
    """Compares the bandwidth of the whole group with what the network cards can carry.

    What it does:
        As for pairs of nodes: a share of the line rate of the cards, a derived floor.

    Why it matters:
        This is the group that training uses. When it is slow and no pair is, the switches between the nodes are.
    """
    groups = [group for group in several(measured(facts)) if group.phase != "pair"]
    return _judge(facts, groups, "no group over all nodes was measured")


@check("NCL041", "Small collectives take no longer than usual", needs=_NEEDS, playbook="nccl-slow-between-nodes",
       caused_by=("NCL035", "NCL045", "NCL046", "NCL047", "NCL050", "NCL051"),
       problem="Small collectives take longer than usual")  # fmt: skip
def latency(facts: Facts) -> Verdict:
    """Looks at the time of an all-reduce of at most 64 KiB.

    What it does:
        Through torch 30 to 150 microseconds are usual inside a node. It warns above 300, and above 1500 between nodes
        with RDMA. gloo and sockets are not judged: how busy the processors are decides there.

    Why it matters:
        Tensor parallelism and the many small tensors of an optimizer are paid by latency, not by bandwidth.
    """
    run = measured(facts)
    late: list[str] = []
    seen: list[tuple[float, str]] = []
    for group in run.groups:
        limit_us = _latency_limit(run, group)
        times = [s.seconds * 1e6 for s in group.samples
                 if s.collective == "all_reduce" and s.num_bytes <= table().sizes["small_bytes"]]  # fmt: skip
        if limit_us and times:
            seen.append((median(times), group_name(group)))
            if median(times) > limit_us:
                late.append(f"{group_name(group)} {median(times):.0f} µs (at most {limit_us:g})")
    if not seen:
        return skip("no small collective on GPUs over NVLink, PCIe or RDMA was measured")
    if not late:
        slowest, name = max(seen)
        return passed(f"at most {slowest:.0f} µs ({name})")
    return warn(
        "small collectives within their usual time", listed(late), evidence=fact("groups.samples.seconds", late[0])
    )


def _latency_limit(run: CollectiveFacts, group: GroupRun) -> float:
    """In microseconds, 0 for groups that are not judged."""
    if run.backend == "gloo":
        return 0.0
    if len(group.nodes) == 1:
        return table().latency_us["node"]
    network = group.transport.value.network if group.transport.value is not None else ""
    return table().latency_us["network"] if is_rdma(network) else 0.0


def _odd(facts: Facts, what: str, expected: str, scores: dict[str, float]) -> Verdict:
    run = measured(facts)
    found = [suspect for suspect in suspects(run) if suspect.kind == "slow" and suspect.what == what]
    if len(scores) < 2:
        return skip(f"fewer than two {what}s to compare")
    lowest = min(scores, key=lambda name: scores[name])
    if not found:
        return passed(f"{len(scores)} {what}s; the lowest, {lowest}, reaches {scores[lowest]:.0%} of their middle")
    limits = table().odd.other if run.backend == "gloo" else odd_limits(run.groups)
    verdict = fail if min(suspect.ratio for suspect in found) < limits["fail"] else warn
    return verdict(
        expected,
        listed([f"{suspect.label} at {suspect.ratio:.0%}" for suspect in found]),
        details=tuple(f"{suspect.label}: {suspect.why}" for suspect in found),
        evidence=fact("groups.samples.busbw", f"{lowest} {scores[lowest]:.3f} of the middle"),
        params={"node": found[0].names[0], "peer": found[0].names[-1]},
        nodes=tuple(sorted({suspect.names[0] for suspect in found})),
    )


@check("NCL042", "No node is slower than the others", needs=_NEEDS, playbook="nccl-odd-node",
       caused_by=("NCL034", "NCL035", "NCL045", "NCL046", "NCL047", "NCL049", "NCL050", "NCL051", "NCL058"),
       problem="A node is slower than the others")  # fmt: skip
def odd_node(facts: Facts) -> Verdict:
    """Compares nodes with their middle: inside of them, and by all the pairs that each is in.

    What it does:
        A node is named when it is slow inside, or when it is slow with two or more partners that are well with each
        other. It warns at 5 % and fails at 15 % below; over sockets, where busy processors make noise, it warns below
        40 % and fails below 20 % of the middle.

    Why it matters:
        All ranks wait for the slowest: one node takes its own loss from every other one.
    """
    run = measured(facts)
    by_pairs: dict[str, float] = {}
    for pair, score in pair_scores(run.groups).items():
        for node in pair:
            by_pairs[node] = max(score, by_pairs.get(node, 0.0))
    inner = node_scores(run)
    scores = {node: min(inner.get(node, 1.0), by_pairs.get(node, 1.0)) for node in inner.keys() | by_pairs.keys()}
    return _odd(facts, "node", "nodes that are equally fast", scores)


@check("NCL058", "GPUs of a kind compute equally fast", needs=_NEEDS, playbook="gpu-slower-than-others",
       caused_by=("NCL034", "NCL035"), problem="A GPU computes more slowly than the others")  # fmt: skip
def odd_device(facts: Facts) -> Verdict:
    """Compares the devices by a matrix product and an attention, which each computes beside one other, then another.

    What it does:
        Takes the quicker of both turns, and compares GPUs of one kind on all nodes by their middle. It warns below 90 %
        and fails below 75 %; without GPUs it warns below 60 %, since other programs share the cores.

    Why it matters:
        All ranks wait for the slowest GPU, and it looks like a slow network.
    """
    run = measured(facts)
    scores = work_scores(run)
    if not scores:
        return skip("fewer than two devices of a kind computed something")
    limits = {
        device: table().weak.cpu if device == "cpu" else table().weak.gpu for device in {s.device for s in scores}
    }
    slow = [one for one in scores if one.ratio < limits[one.device]["warn"]]
    if not slow:
        return passed(
            f"{len(scores)} devices; the slowest, {scores[0].label}, at {scores[0].ratio:.0%} of their middle"
        )
    verdict = fail if any(one.ratio < limits[one.device].get("fail", 0.0) for one in slow) else warn
    lines = tuple(
        f"{one.label} ({one.device}): {one.ratio:.0%} of the others' speed in {_WORK[one.kind]}" for one in slow
    )
    return verdict(
        "devices that are equally fast",
        listed([f"{one.label} at {one.ratio:.0%}" for one in slow]),
        details=(*lines, f"limits: {table().weak.why}"),
        evidence=fact("groups.work.seconds", lines[0]),
        params={"node": slow[0].node, "device": slow[0].label},
        nodes=tuple(sorted({one.node for one in slow})),
    )


@check("NCL043", "No connection between two nodes is slower than the others", needs=_NEEDS, playbook="nccl-odd-node",
       caused_by=("NCL034", "NCL035", "NCL042", "NCL044", "NCL049", "NCL050"),
       problem="A connection between two nodes is slower than the others")  # fmt: skip
def odd_pair(facts: Facts) -> Verdict:
    """Compares the pairs of nodes with their middle.

    What it does:
        A pair is named when it is slow although each of the two is well with others, with the same limits as for
        nodes.

    Why it matters:
        A ring passes through some connection of every node; the slow one sets the pace when it is hit, so that runs
        differ from day to day.
    """
    scores = {f"{a} ↔ {b}": score for (a, b), score in pair_scores(measured(facts).groups).items()}
    return _odd(facts, "pair", "connections that are equally fast", scores)
