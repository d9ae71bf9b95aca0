"""rltrain's own word on a config, for `rlcheck config`: what its loader and its rules refuse, and what they note.

Entry point of the group `rlcheck.adapters`. Imports pydantic and omegaconf; the doctor calls it only where both are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from rltrain.config.load import load_with_notes
from rltrain.config.notes import notes
from rltrain.config.resolve import Machine, resolve
from rltrain.config.rules import RULES
from rltrain.core.errors import UserError

_KEY = re.compile(r"(?P<key>[A-Za-z_][\w.]*(?:\.\w+)*)(?: \+ [\w.]+)*: (?P<message>.*)", re.DOTALL)
_PLACED = re.compile(r"(?P<place>override '.*?'|\S*?(?::\d+)?): (?P<rest>[a-z_][\w.]*: .*)", re.DOTALL)
# Where the config leaves the number of GPUs open, the rules are asked with this many.
_GPUS = 8


class Problem(NamedTuple):
    """One line of what is wrong or worth knowing. `key` is "" where it names none; `place` is as rltrain says it."""

    key: str
    place: str
    message: str
    kind: Literal["refused", "note"]


def problems(source: str, overrides: Sequence[str] = (), *, num_gpus: int = 0) -> list[Problem]:
    """Everything that `rltrain run SOURCE OVERRIDES` would refuse or note before it starts anything.

    Args:
        source: recipe or file.
        overrides: as on the command line.
        num_gpus: that a run would find where the config does not say; 0: not known.
    """
    try:
        loaded = load_with_notes(source, overrides)
        config = resolve(loaded.config, Machine("cuda", num_gpus or _GPUS, 1))
    except UserError as error:
        return [_refused(line) for line in str(error).splitlines() if line.strip()]
    found = [_refused(line) for rule in RULES for line in rule(config)]
    return [*found, *_notes(loaded.notes), *_notes(notes(config))]


def _notes(lines: Sequence[str]) -> Iterator[Problem]:
    return (Problem("", "", line, "note") for line in lines)


def _refused(line: str) -> Problem:
    placed = _PLACED.fullmatch(line)
    rest = line if placed is None else placed["rest"]
    matched = _KEY.fullmatch(rest)
    place = "" if placed is None else placed["place"]
    return (
        Problem("", place, rest, "refused")
        if matched is None
        else Problem(matched["key"], place, matched["message"], "refused")
    )
