"""Looks at a job on several nodes at once, and puts what was seen there together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from rlcheck.diagnose.hang.live import judge
from rlcheck.facts.hang import PID_BITS, Hang, HangFacts, Peer, Process
from rlcheck.measure.cluster.switchboard import Lost, Progress, Switchboard

_GRACE_S = 14.0
"""What a node may take beside the time for which it watches."""


def look_at_nodes(board: Switchboard, directory: str, watched_s: float, progress: Progress) -> HangFacts:
    """The job of the run in DIRECTORY ("": the only one) on the machines of BOARD, watched for WATCHED_S seconds."""
    asked = board.one_a_machine()
    names = {index: board.seats[index].machine for index in asked}
    request = {"do": "hang", "target": directory, "for_s": watched_s, "timeout_s": watched_s + _GRACE_S}
    answers = board.ask(dict.fromkeys(asked, request), watched_s + _GRACE_S + 1.0, progress)
    seen: dict[str, HangFacts] = {}
    empty: list[str] = []
    lost: dict[str, str] = {}
    for index, answer in sorted(answers.items()):
        if isinstance(answer, Lost):
            lost[names[index]] = answer.reason
            continue
        found = _read(answer)
        if isinstance(found, HangFacts):
            seen[names[index]] = found
        elif "no job" in found or "no process" in found:
            empty.append(names[index])
        else:
            lost[names[index]] = found
    return together(seen, empty, lost)


def verdict_of(answers: Mapping[str, bytes]) -> Hang | None:
    """The verdict on what `python -m rlcheck.measure.hang` printed, by nodes' names; None where there is none."""
    seen: dict[str, HangFacts] = {}
    for name, answer in answers.items():
        with suppress(msgspec.DecodeError):
            seen[name] = msgspec.json.decode(answer, type=HangFacts)
    silent = {name: "it did not answer" for name in answers if name not in seen}
    if len(answers) == 1 and seen:
        return judge(next(iter(seen.values()))).hang  # names of nodes would say nothing
    return judge(together(seen, (), silent)).hang if seen else None


def _read(answer: Mapping[str, Any]) -> HangFacts | str:
    """What a node saw; why it saw nothing."""
    value = answer.get("hang")
    if isinstance(value, dict) and "none" in value:
        return str(cast(dict[str, Any], value)["none"])
    try:
        return msgspec.convert(value, HangFacts)
    except msgspec.ValidationError as error:
        return f"its rlcheck answered something else than this one expects ({error}): another version?"


def together(seen: Mapping[str, HangFacts], empty: Sequence[str], lost: Mapping[str, str]) -> HangFacts:
    """What was SEEN on nodes as one look.

    Args:
        seen: by node.
        empty: nodes where no process of a job runs.
        lost: nodes that could not be looked at, and why.
    """
    processes = [one for number, (name, facts) in enumerate(seen.items()) for one in _placed(facts, name, number)]
    ends = {end: one.pid for one in processes for end in one.ends}
    there = {one.rank for one in processes if one.rank is not None}
    named = {rank for facts in seen.values() for rank in (*facts.missing, *facts.elsewhere)} - there
    elsewhere = named - set(chain(*(facts.missing for facts in seen.values())))
    if len(seen) + len(empty) >= _nodes_of(seen):
        elsewhere = set[int]()
    opened = [facts.open_s for facts in seen.values() if facts.open_s is not None]
    notes = [f"{name}: {note}" for name, facts in seen.items() for note in facts.notes if "other nodes" not in note]
    notes += [f"{name} was not looked at: {reason}" for name, reason in lost.items()]
    notes += [f"{', '.join(empty[:8])}: no process of a job"] if empty else []
    return HangFacts(
        processes=tuple(replace(one, peers=tuple(_across(peer, ends) for peer in one.peers)) for one in processes),
        watched_s=min((facts.watched_s for facts in seen.values()), default=0.0),
        missing=tuple(sorted(named - elsewhere)),
        elsewhere=tuple(sorted(elsewhere)),
        recorded=tuple(dump for facts in seen.values() for dump in facts.recorded),
        went_on=any(facts.went_on for facts in seen.values()),
        open_s=max(opened, default=None),
        notes=tuple(notes),
    )


def _nodes_of(seen: Mapping[str, HangFacts]) -> int:
    """How many nodes the job has, by its ranks and those of its largest node."""
    worlds = [one.world for facts in seen.values() for one in facts.processes]
    here = [len(facts.missing) + sum(one.rank is not None for one in facts.processes) for facts in seen.values()]
    return -(-max(worlds, default=0) // max(1, *here, 1))


def _placed(facts: HangFacts, name: str, number: int) -> list[Process]:
    """The processes of a node under numbers that no other node has."""
    mark = number << PID_BITS
    return [
        replace(
            one,
            pid=one.pid | mark,
            parent=one.parent | mark if one.parent else 0,
            node=name,
            peers=tuple(replace(peer, pid=peer.pid | mark) if peer.pid else peer for peer in one.peers),
        )
        for one in facts.processes
    ]


def _across(peer: Peer, ends: Mapping[str, int]) -> Peer:
    """PEER, with the process at the other end of a connection, if that was seen on its machine."""
    return replace(peer, pid=ends[peer.address]) if not peer.pid and peer.address in ends else peer
