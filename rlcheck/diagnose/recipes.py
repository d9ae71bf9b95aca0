"""From a fix back to the recipe of the playbook that it was made of, and to what was filled in or is shown of it."""

from __future__ import annotations

import re
import shlex

import msgspec

from rlcheck.diagnose.model import Answer, Diagnosis
from rlcheck.finding import Fix
from rlcheck.playbook import Recipe

PLACE = re.compile(r"\{\{(\w+)\}\}")
HOLE = re.compile(r"<([a-z]\w*)>")
"""A parameter that is not known, in a command; what the reader has to fill in is in capitals (HOST)."""
_USUAL = {"shm_gib": "16"}
"""Values that suit most machines, for a log that tells none."""


def params_of(recipe: Recipe, fix: Fix) -> dict[str, str] | None:
    """What was filled in when RECIPE became FIX (`<name>` where nothing was known); None if it did not.

    >>> recipe = Recipe("Use {{n}}", "shell", "safe", command="set -n {{n}}")
    >>> params_of(recipe, Fix("Use 4", "shell", "safe", command="set -n 4"))
    {'n': '4'}
    """
    title = _template(recipe.title).fullmatch(fix.title)
    command = _template(recipe.command.strip()).fullmatch(fix.command)
    if recipe.kind != fix.kind or title is None or command is None:
        return None
    return {**title.groupdict(), **{name: _unquoted(value) for name, value in command.groupdict().items()}}


def without_holes(answer: Answer) -> Answer:
    """ANSWER as it is shown: a value that neither log nor facts told is the usual one, or its command is left out."""
    return msgspec.structs.replace(answer, diagnoses=tuple(map(_shown, answer.diagnoses)))


def _shown(found: Diagnosis) -> Diagnosis:
    return msgspec.structs.replace(found, fixes=tuple(fix if fix.complete else _typed(fix) for fix in found.fixes))


def _typed(fix: Fix) -> Fix:
    command = HOLE.sub(lambda hole: _USUAL.get(hole[1], hole[0]), fix.command)
    if HOLE.search(command):
        return msgspec.structs.replace(fix, kind="advice", command="", complete=True)
    return msgspec.structs.replace(fix, command=command, complete=True)


def _template(text: str) -> re.Pattern[str]:
    pattern, names = "", set[str]()
    for number, part in enumerate(PLACE.split(text)):
        if number % 2 == 0:
            pattern += re.escape(part)
        else:
            pattern += f"(?P={part})" if part in names else f"(?P<{part}>.*?)"
            names.add(part)
    return re.compile(pattern, re.S)


def _unquoted(value: str) -> str:
    try:
        words = shlex.split(value)
    except ValueError:
        return value
    return words[0] if len(words) == 1 else value
