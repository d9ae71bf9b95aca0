"""Fixes in the words of the run's own config: its framework's keys, and values that start from what it has now."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from rlcheck.diagnose.model import Answer, Diagnosis
from rlcheck.diagnose.recipes import PLACE, params_of
from rlcheck.facts.config import ConfigFacts
from rlcheck.finding import Fix
from rlcheck.measure.config.config import shown
from rlcheck.measure.config.fields import FIELDS, actual, has_key, key_of, override
from rlcheck.playbook import Library, PlaybookError, Recipe

_FROM_CURRENT = re.compile(r"current *([-+*/]) *(\d+(?:\.\d+)?)")
_KEY = re.compile(r"(?<![\w.+/-])[a-z]\w*(?:\.\w+)+(?==)")
_FIELD_OF = {key: field for field, key in FIELDS.items()}


def with_overrides(answer: Answer, run: ConfigFacts, library: Library) -> Answer:
    """`answer` with its config fixes as overrides of `run`; a fix that changes nothing there says so and comes last."""
    diagnoses = tuple(_diagnosis(found, run, library) for found in answer.diagnoses)
    name = f"{run.framework} {run.version}".strip()
    note = f"settings are worded as overrides of {run.source} ({name})"
    return msgspec.structs.replace(answer, diagnoses=diagnoses, notes=(*answer.notes, note))


def _diagnosis(found: Diagnosis, run: ConfigFacts, library: Library) -> Diagnosis:
    try:
        recipes = library.get(found.id).fixes
    except PlaybookError:
        return found
    fixes = [_fix(fix, recipes, run) if fix.kind == "config" else fix for fix in found.fixes]
    # What has become advice has nothing left to change.
    useless = [new.kind != old.kind for new, old in zip(fixes, found.fixes, strict=True)]
    ordered = (*(fix for fix, no in zip(fixes, useless, strict=True) if not no),
               *(fix for fix, no in zip(fixes, useless, strict=True) if no))  # fmt: skip
    return msgspec.structs.replace(found, fixes=ordered)


def _fix(fix: Fix, recipes: tuple[Recipe, ...], run: ConfigFacts) -> Fix:
    for recipe in recipes:
        params = params_of(recipe, fix)
        if params is not None:
            return _own(fix, recipe, params, run) if recipe.field else _mapped(fix, run)
    return _mapped(fix, run)


def _own(fix: Fix, recipe: Recipe, params: dict[str, str], run: ConfigFacts) -> Fix:
    """FIX as the override of RUN that sets the recipe's field."""
    if not key_of(run, recipe.field):
        return _nothing_to_do(fix, f"{run.framework} has no such setting")
    now = actual(run, recipe.field)
    wanted = _value(recipe.value, params, now)
    if wanted is None:
        return _mapped(fix, run)
    if wanted == now:
        key = key_of(run, recipe.field).rpartition(".")[2]
        return _nothing_to_do(fix, f"{key} is {shown(now)} already")
    return msgspec.structs.replace(fix, command=override(run, recipe.field, wanted), complete=True)


def _nothing_to_do(fix: Fix, why: str) -> Fix:
    return msgspec.structs.replace(fix, title=f"{fix.title} ({why})", kind="advice", command="", complete=True)


def _value(form: str, params: dict[str, str], now: Any) -> Any:
    """The value that FORM asks for; None if it is not known."""
    change = _FROM_CURRENT.fullmatch(form.strip())
    if change is not None:
        return _changed(now, change[1], float(change[2]))
    place = PLACE.fullmatch(form.strip())
    text = form if place is None else params.get(place[1], "<")
    # `<name>` stands where the log did not tell the value.
    return None if "<" in text or "{{" in text else _read(text)


def _changed(now: Any, sign: str, by: float) -> Any:
    if isinstance(now, bool) or not isinstance(now, int | float) or (sign == "/" and by == 0):
        return None
    result = {"+": now + by, "-": now - by, "*": now * by}[sign] if sign != "/" else now / by
    if isinstance(now, int):
        return max(1, math.floor(result)) if now > 0 else now
    return now if result <= 0 else round(result, 4)


def _read(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _mapped(fix: Fix, run: ConfigFacts) -> Fix:
    """FIX with verl's keys as the framework of RUN calls them; those that it does not have at all stay."""

    def own(match: re.Match[str]) -> str:
        key = match[0]
        if has_key(run, key) or key not in _FIELD_OF:
            return key
        return key_of(run, _FIELD_OF[key]) or key

    return msgspec.structs.replace(fix, command=_KEY.sub(own, fix.command))
