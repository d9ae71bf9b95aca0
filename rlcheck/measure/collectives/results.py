"""From what the ranks of a group reported to one GroupRun: samples, wrong results, and who was where in a stall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from statistics import mean, median
from typing import Any, cast

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.collectives import GroupRun, Sample, Stall, Transport, Work, Wrong
from rlcheck.measure.collectives import nccl_log
from rlcheck.measure.collectives.crew import Crew
from rlcheck.measure.collectives.group import INIT, LEAVE_S, LEAVING, Group, RankTrack
from rlcheck.measure.collectives.plan import FIRST_STEP, WORK_STEP, bus_factor

_MOST_WRONG = 16
_SLOWER = 1.1
_SAME_EVERYWHERE = ("all_reduce", "all_reduce max", "broadcast", "all_gather")
"""Every rank ends with the same numbers: one rank alone that has others is to blame itself."""
_MOST_DESCRIBED = 16


def group_run(group: Group, crew: Crew) -> GroupRun:
    """The record of a group that is done. Asks the agents for the last lines of a stall's ranks."""
    plan, tracks = group.plan, group.tracks
    finished = [name for name in group.names if all(name in track.results for track in tracks.values())]
    samples, slowest = _samples(group, finished)
    return GroupRun(
        phase=plan.phase,
        nodes=plan.nodes,
        ranks=plan.ranks,
        round=plan.round,
        init_s=_init_s(tracks.values(), finished),
        samples=samples,
        work=_work(group, finished),
        dtypes_checked=_texts(group, finished, "checked"),
        skipped=_texts(group, finished, "skipped"),
        wrong=_wrong(group),
        stall={"stall": _stall, "left badly": _bad_leave}.get(group.outcome, _no_stall)(group, crew),
        error=group.first_error if group.outcome in ("error", "stall") else "",
        transport=_transport(group),
        slowest_rank=slowest,
        seconds=group.seconds,
    )


def _no_stall(group: Group, crew: Crew) -> Stall | None:
    return None


def _bad_leave(group: Group, crew: Crew) -> Stall | None:
    """Who died or fell silent while the group was taken apart; nobody when it only took too long."""
    left = tuple(rank for rank, track in group.tracks.items() if track.left == len(group.names))
    died = {rank: track for rank, track in group.tracks.items() if track.ended}
    asked = any(track.status for track in group.tracks.values())
    silent = tuple(
        rank for rank, t in group.tracks.items() if asked and not t.status and rank not in died and rank not in left
    )
    if not died and not silent:
        return None
    lines = crew.tails(silent) | {rank: track.ended_lines for rank, track in died.items() if track.ended_lines}
    return Stall(
        step=LEAVING,
        deadline_s=LEAVE_S,
        arrived=group.plan.ranks,
        finished=left,
        silent=silent,
        died={str(rank): track.ended for rank, track in died.items()},
        last_lines={str(rank): text for rank, text in sorted(lines.items())},
    )


def _init_s(tracks: Iterable[RankTrack], finished: Collection[str]) -> Fact[float]:
    if FIRST_STEP not in finished:
        return absent("the group was not formed")
    return known(max(t.results[INIT]["seconds"] + t.results[FIRST_STEP]["took_s"] for t in tracks))


def _texts(group: Group, finished: Collection[str], key: str) -> tuple[str, ...]:
    found = (t for name in finished for track in group.tracks.values() for t in track.results[name].get(key, ()))
    return tuple(dict.fromkeys(str(text) for text in found))


def _samples(group: Group, finished: Collection[str]) -> tuple[tuple[Sample, ...], int]:
    """The samples, and who was clearly slowest in the largest all_reduce (-1: nobody)."""
    samples: list[Sample] = []
    slowest = -1
    for step in group.plan.steps:
        if step.kind != "time" or step.name not in finished:
            continue
        results = {rank: track.results[step.name] for rank, track in group.tracks.items()}
        times = {rank: float(result["seconds"]) for rank, result in results.items() if "seconds" in result}
        if len(times) < len(results):
            continue
        any_result = results[group.plan.ranks[0]]
        seconds = mean(times.values())
        algbw = any_result["num_bytes"] / max(seconds, 1e-9)
        samples.append(
            Sample(
                collective=step.collective,
                num_bytes=any_result["num_bytes"],
                seconds=seconds,
                algbw=algbw,
                busbw=algbw * bus_factor(step.collective, len(results)),
                num_calls=any_result["num_calls"],
            )
        )
        if step.collective == "all_reduce":
            worst = max(times, key=lambda rank: times[rank])
            slowest = worst if times[worst] > _SLOWER * median(times.values()) else -1
    return tuple(samples), slowest


def _work(group: Group, finished: Collection[str]) -> tuple[Work, ...]:
    if WORK_STEP not in finished:
        return ()
    return tuple(
        Work(rank=rank, kind=kind, seconds=tuple(float(one) for one in seconds if one > 0))
        for rank, track in group.tracks.items()
        for kind, seconds in track.results[WORK_STEP].get("work", {}).items()
    )


def _wrong(group: Group) -> tuple[Wrong, ...]:
    reports: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for rank, track in group.tracks.items():
        for result in track.results.values():
            for wrong in result.get("wrong", ()):
                reports.setdefault((wrong["collective"], wrong["dtype"]), {})[rank] = wrong
    found: list[Wrong] = []
    for (collective, dtype), by_rank in reports.items():
        suspects = _suspects(group, collective, by_rank)
        for rank, wrong in by_rank.items():
            found.append(
                Wrong(
                    collective=collective,
                    dtype=dtype,
                    rank=rank,
                    index=wrong["index"],
                    found=wrong["found"],
                    expected=wrong["expected"],
                    suspects=suspects,
                )
            )
    return tuple(found[:_MOST_WRONG])


def _suspects(group: Group, collective: str, by_rank: dict[int, dict[str, Any]]) -> tuple[int, ...]:
    """Whom all reports agree on. One rank alone with a wrong result where all should have the same is to blame."""
    ranks = group.plan.ranks
    decoded: list[set[int]] = [
        {ranks[index] for index in cast(list[int], wrong["suspects"])} for wrong in by_rank.values()
    ]
    if len(by_rank) == 1:
        (reporter,) = by_rank
        return (reporter,) if collective in _SAME_EVERYWHERE else tuple(sorted(decoded[0] | {reporter}))
    return tuple(sorted(set[int].intersection(*decoded)))


def _stall(group: Group, crew: Crew) -> Stall:
    """Who was where. A rank that entered and then answers no question is silent, too; so is one that
    alone is elsewhere in the code than all others."""
    tracks = {rank: track for rank, track in group.tracks.items() if track.told}
    index = group.step_index
    died = {rank: track.ended for rank, track in tracks.items() if track.ended}
    asked = any(track.status for track in tracks.values())
    silent: set[int] = {rank for rank, track in tracks.items() if rank not in died and track.entered < index}
    if asked:
        silent |= {rank for rank, track in tracks.items() if rank not in died and not track.status}
        waiting = [rank for rank in tracks if rank not in died and rank not in silent and tracks[rank].left < index]
        silent |= _odd_ones(waiting, tracks)
    if group.outcome == "stall" and died:
        silent = set()  # who waits for a dead rank's step is not to blame
    arrived = tuple(rank for rank, track in tracks.items() if rank not in silent and track.entered >= index)
    lines = crew.tails(sorted(silent)[:_MOST_DESCRIBED])
    lines |= {rank: tracks[rank].ended_lines[-12:] for rank in died if tracks[rank].ended_lines}
    return Stall(
        step=group.names[index],
        deadline_s=group.deadlines[index],
        arrived=arrived,
        finished=tuple(rank for rank in arrived if tracks[rank].left >= index),
        silent=tuple(sorted(silent)),
        died={str(rank): how for rank, how in died.items()},
        last_lines={str(rank): text for rank, text in sorted(lines.items())},
        waiting={
            str(rank): _where(track)
            for rank, track in list(tracks.items())[:_MOST_DESCRIBED]
            if track.status and track.left < index
        },
    )


def _where(track: RankTrack) -> str:
    stack = track.status.get("stack") or ("",)
    return f"{track.status['doing']}, call {track.status['num_calls']}, at {stack[-1]}"


def _odd_ones(ranks: Collection[int], tracks: Mapping[int, RankTrack]) -> set[int]:
    """The few that are elsewhere in the code than a clear majority, and have not come further than it."""
    places = {rank: str((tracks[rank].status.get("stack") or ("",))[-1]) for rank in ranks}
    calls = {rank: int(tracks[rank].status["num_calls"]) for rank in ranks}
    if len(ranks) < 3:
        return set()
    (common, count), *_ = Counter(places.values()).most_common(1)
    if count <= len(ranks) / 2:
        return set()
    furthest = max(calls[rank] for rank in ranks if places[rank] == common)
    return {rank for rank in ranks if places[rank] != common and calls[rank] <= furthest}


def _transport(group: Group) -> Fact[Transport]:
    if group.plan.backend != "nccl":
        return absent("gloo writes no log of its connections")
    texts = {rank: str(track.results.get(FIRST_STEP, {}).get("log", "")) for rank, track in group.tracks.items()}
    texts = {rank: text for rank, text in texts.items() if text}
    return known(nccl_log.parse(texts)) if texts else absent("NCCL wrote no log")
