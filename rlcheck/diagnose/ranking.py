"""Which of many hits is the root cause: what only repeats another failure, what came first, what is most specific.

A run that dies prints hundreds of consequences. An incident is what happened until the run went on; within it the first
failure that is no echo of another is the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlcheck.diagnose.echoes import is_echo
from rlcheck.diagnose.failures import Failure
from rlcheck.diagnose.hits import Hit
from rlcheck.diagnose.lines import Message
from rlcheck.diagnose.survived import is_step
from rlcheck.facts.base import Struct

CLOSE = 12
"""Hits that are so many lines apart at most are of one event: the most specific of them names it."""
_STATUS = {"fail": 0, "warn": 1, "info": 2}


class Ranked(Struct, frozen=True):
    """A problem of one incident: its best hit, all its hits, and whether it only repeats another failure."""

    best: Hit
    hits: tuple[Hit, ...]
    incident: int
    echo: bool
    event: int


def rank(hits: Sequence[Hit], logs: Sequence[Sequence[Message]], found: Sequence[Failure]) -> tuple[Ranked, ...]:
    """The problems, best first, incidents numbered from 1 in that order. `hits` and `found` are those of all logs."""
    times = _times(logs)
    ordered = sorted(hits, key=lambda hit: (times[hit.message.log][hit.message.at], hit.message.log, hit.message.at))
    events = _events(ordered)
    ranked: list[Ranked] = []
    for incident, of_incident in _by_incident(ordered, logs).items():
        problems: dict[str, list[Hit]] = {}
        for hit in of_incident:
            problems.setdefault(hit.id, []).append(hit)
        ranked += [
            _ranked(of_one, incident, events, is_echo(playbook_id, problems, found))
            for playbook_id, of_one in problems.items()
        ]
    ranked = sorted(_warned_once(ranked), key=_key)
    numbers = {incident: number for number, incident in enumerate(dict.fromkeys(one.incident for one in ranked), 1)}
    return tuple(_renumbered(one, numbers[one.incident]) for one in ranked)


def _warned_once(ranked: Sequence[Ranked]) -> Iterator[Ranked]:
    """What warns in one incident after the other is one problem: of the last of them."""
    again: dict[str, list[Ranked]] = {}
    for one in ranked:
        if one.best.signature.status == "fail":
            yield one
        else:
            again.setdefault(one.best.id, []).append(one)
    for ones in again.values():
        last = max(ones, key=lambda one: one.incident)
        hits = tuple(hit for one in ones for hit in one.hits)
        yield Ranked(best=last.best, hits=hits, incident=last.incident, echo=last.echo, event=last.event)


def _key(one: Ranked) -> tuple[bool, int, int, int, int, int]:
    signature = one.best.signature
    # What the run survived comes after what ended it.
    return (one.echo, _STATUS[signature.status], -one.incident, one.event, -signature.specificity, one.best.message.at)


def _renumbered(one: Ranked, incident: int) -> Ranked:
    return Ranked(best=one.best, hits=one.hits, incident=incident, echo=one.echo, event=one.event)


def _ranked(of_one: Sequence[Hit], incident: int, events: dict[tuple[int, int], int], echo: bool) -> Ranked:
    """A playbook's hits of one incident: the most specific of the worst names it, the first says when it was."""
    worst = min(_STATUS[hit.signature.status] for hit in of_one)
    serious = [hit for hit in of_one if _STATUS[hit.signature.status] == worst]
    best = max(serious, key=lambda hit: (hit.signature.specificity, -events[hit.message.log, hit.message.at]))
    first = min(events[hit.message.log, hit.message.at] for hit in serious)
    return Ranked(best=best, hits=tuple(of_one), incident=incident, echo=echo, event=first)


class _Event(NamedTuple):
    number: int
    last_line: int


def _events(ordered: Sequence[Hit]) -> dict[tuple[int, int], int]:
    """The number of the event that each hit's line belongs to, in the order in which events begin."""
    events: dict[tuple[int, int], int] = {}
    latest: dict[int, _Event] = {}
    count = 0
    for hit in ordered:
        log, at = hit.message.log, hit.message.at
        event = latest.get(log)
        if event is None or abs(at - event.last_line) > CLOSE:
            count += 1
            event = _Event(count, at)
        events.setdefault((log, at), event.number)
        latest[log] = _Event(event.number, max(at, event.last_line))
    return events


def _by_incident(ordered: Sequence[Hit], logs: Sequence[Sequence[Message]]) -> dict[int, list[Hit]]:
    """The hits by how many steps the run had made: a run that makes another step has survived what came before."""
    steps = [[message.at for message in log if is_step(message)] for log in logs]
    incidents: dict[int, list[Hit]] = {}
    for hit in ordered:
        incident = sum(step < hit.message.at for step in steps[hit.message.log])
        incidents.setdefault(incident, []).append(hit)
    return incidents


def _times(logs: Sequence[Sequence[Message]]) -> list[list[str]]:
    """When each line of each log was written, as text that sorts; "" throughout where that cannot be compared.

    A line without a time has that of the line before it. The times of several logs are compared only when all of them
    tell them, and in one form; otherwise the order of the logs decides.
    """
    shapes = {re.sub(r"\d", "0", message.time)[:19] for log in logs for message in log if message.time}
    if len(logs) < 2 or len(shapes) != 1 or any(not any(message.time for message in log) for log in logs):
        return [[""] * len(log) for log in logs]
    return [_filled(log) for log in logs]


def _filled(log: Sequence[Message]) -> list[str]:
    times: list[str] = []
    last = ""
    for message in log:
        last = max(last, message.time)
        times.append(last)
    return times
