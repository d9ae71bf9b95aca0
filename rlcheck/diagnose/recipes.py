"""From a fix back to the recipe of the playbook that it was made of, and to what was filled in."""

from __future__ import annotations

import re
import shlex

from rlcheck.playbook import Recipe
from rlcheck.report.model import Fix

PLACE = re.compile(r"\{\{(\w+)\}\}")


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
