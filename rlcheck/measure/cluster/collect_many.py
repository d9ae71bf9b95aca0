"""Full facts documents of many machines, where rlcheck is installed."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import msgspec

from rlcheck.facts.document import Facts, FactsError, decode
from rlcheck.measure.cluster.switchboard import Lost, Progress, Switchboard

_GRACE_S = 2.0


def collect_many(
    board: Switchboard, timeout_s: float = 60.0, progress: Progress | None = None, without: Collection[str] = ()
) -> tuple[tuple[Facts, ...], dict[str, str]]:
    """The facts of every machine as `rlcheck collect` there writes them, and why others have none, by name.

    A document's node is named after its machine's seat: host names may be alike. Machines named in `without` are not
    asked, and of several seats on one machine only one is.
    """
    asked = [index for index in board.one_a_machine() if board.seats[index].machine not in without]
    requests = {index: {"do": "collect", "timeout_s": timeout_s} for index in asked}
    found: list[Facts] = []
    reasons: dict[str, str] = {}
    for index, answer in sorted(board.ask(requests, timeout_s + _GRACE_S, progress).items()):
        name = board.seats[index].machine
        if isinstance(answer, Lost):
            reasons[name] = answer.reason
            continue
        try:
            found.append(msgspec.structs.replace(_document(answer, name), node=name))
        except FactsError as error:
            reasons[name] = str(error)
    return tuple(found), reasons


def _document(answer: dict[str, Any], name: str) -> Facts:
    return decode(json.dumps(answer["facts"]).encode(), name)[0]
