"""What the framework itself says of a config, asked through its adapter (entry points of `rlcheck.adapters`).

An adapter runs in this process, so it is asked only where its own dependencies are installed; it knows nothing of GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import util
from typing import Any, cast

import msgspec

from rlcheck.facts.config import ConfigFacts, KeyProblem, Place

GROUP = "rlcheck.adapters"
_NEEDS = ("pydantic", "omegaconf")
_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")


def with_own_rules(facts: ConfigFacts, source: str, overrides: Sequence[str]) -> ConfigFacts:
    """FACTS with what the framework refuses (`refused`) and notes; a note says why where it could not be asked.

    Args:
        facts: from `read_run`.
        source: as it was given; what came through a pipe or a script is not asked about.
        overrides: of the command line.
    """
    if facts.framework != "rltrain" or source == "-" or source.endswith(".sh") or " " in source:
        return facts
    lacking = [name for name in _NEEDS if util.find_spec(name) is None]
    if lacking:
        said = f"rltrain's own rules were not asked: {' and '.join(lacking)} not installed in this Python"
        return _noted(facts, said)
    ask = _adapter(facts.framework)
    if ask is None:
        return _noted(facts, f"rltrain's own rules were not asked: no entry point {facts.framework} of {GROUP}")
    try:
        found = ask(source, overrides)
    except Exception as error:  # the adapter is another package's code: its failure must not end the report
        return _noted(facts, f"rltrain's own rules failed: {type(error).__name__}: {str(error).splitlines()[:1]}")
    known = {
        problem.key for problem in facts.problems if problem.kind in ("unknown", "type", "missing", "syntax", "foreign")
    }
    refused = [_problem(facts, *row[:3]) for row in found if row[3] == "refused" and row[0] not in known]
    said = [row[2] for row in found if row[3] == "note"]
    return msgspec.structs.replace(
        facts, problems=(*facts.problems, *refused), notes=tuple(dict.fromkeys((*facts.notes, *said)))
    )


def _adapter(name: str) -> Callable[..., list[tuple[str, str, str, str]]] | None:
    from importlib import metadata  # a tenth of the command, and rltrain's configs alone need it

    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            return cast(Callable[..., Any], entry.load())
    return None


def _noted(facts: ConfigFacts, note: str) -> ConfigFacts:
    return msgspec.structs.replace(facts, notes=(*facts.notes, note))


def _problem(facts: ConfigFacts, key: str, place: str, message: str) -> KeyProblem:
    where = facts.given.get(key, _place(place))
    return KeyProblem(kind="refused", key=key, message=message, place=where)


def _place(text: str) -> Place:
    if text.startswith("override "):
        return Place(text=text.removeprefix("override ").strip("'"))
    matched = _LINE.fullmatch(text)
    return Place(file=matched["file"], line=int(matched["line"])) if matched else Place(file=text)
