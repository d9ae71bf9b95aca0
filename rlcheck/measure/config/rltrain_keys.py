"""What there is to say about keys of an rltrain config, as its own loader says it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from rlcheck.measure.config import verl_data
from rlcheck.measure.config.config import Config, shown
from rlcheck.measure.config.interpolate import MISSING
from rlcheck.measure.config.rltrain_data import Key, aliases, keys, leaf_above, sections

_EXAMPLES = {"_files": "/path/to/file.parquet", "path": "/path/to/model"}
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "dict": "a mapping",
    "list": "a list",
}
_PYTHON: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "dict": (dict,),
    "list": (list, tuple),
}


def use_own_names(config: Config, user: dict[str, Any], written: Mapping[str, Any]) -> None:
    """Move verl's keys in USER to where rltrain has them; note those that it does not have."""
    for key in list(user):
        if key in sections():
            config.problem("type", key, f"expected a section with keys below it, got {shown(user[key])}")
            del user[key]
        elif leaf_above(key) is None:
            _foreign(config, user, key, written[key])
        elif user[key] is None and not _nullable(key) and _verls().get(key, key) is None:
            del user[key]  # verl writes null for "not set", also where rltrain has a default.


def _nullable(key: str) -> bool:
    leaf = keys().get(key)
    return leaf is None or leaf.nullable


def _verls() -> Mapping[str, Any]:
    return verl_data.defaults(verl_data.versions()[0], "dp")


def _foreign(config: Config, user: dict[str, Any], key: str, raw: Any) -> None:
    value = user.pop(key)
    if key.endswith("._target_"):
        return
    target = aliases().target(key)
    default = _verls().get(key, key)
    at_default = key in _verls() and (
        default in (value, raw) or (isinstance(default, str) and "${" in default and raw == default)
    )
    if target is not None and leaf_above(target) is not None:
        if value is not None and not (value == MISSING and at_default) and target not in user:
            user[target] = value
            config.given.setdefault(target, config.place(key))
            if not at_default:
                config.problem("deprecated", key, f"is read as {target}", instead=(target,), value=shown(value))
    elif key in _verls():
        passes = at_default or value in aliases().accepted.get(key, [])
        kind = "idle" if passes else "foreign"
        config.problem(kind, key, f"rltrain does not have this key of verl{_advice(key)}", value=shown(value))
    else:
        message = f"rltrain does not have this key{_advice(key)}" if key in aliases().instead else "unknown key"
        config.problem("unknown", key, message, instead=tuple(nearest(key)), value=shown(value))


def _advice(key: str) -> str:
    advice = aliases().instead.get(key)
    return "" if advice is None else f"; {advice}"


def nearest(key: str, among: Collection[str] = ()) -> list[str]:
    """The keys that KEY probably was meant to be, at most two, best first; of AMONG (empty: those of a run)."""
    known = [*(among or (*keys(), *sections()))]
    last = key.rsplit(".", 1)[-1]
    found = [name for name in known if name.endswith(f".{key}")]
    found = found or [name for name in known if name.rsplit(".", 1)[-1] == last]
    if not found:
        close = difflib.get_close_matches(key, known, n=10, cutoff=0.6)
        found = [name for name in close if _likeness(last, name.rsplit(".", 1)[-1]) >= 0.7][:1]
    if len(found) > 2:
        found = sorted(found, key=lambda name: _likeness(key, name), reverse=True)[:1]
    return found


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def must_be_given(key: str) -> str:
    """What to say about KEY, which has no value."""
    example = next((text for end, text in _EXAMPLES.items() if key.endswith(end)), "VALUE")
    return f"must be given, e.g. the override {key}={example}"


def judge_values(config: Config, user: Mapping[str, Any]) -> None:
    """Values that must be given, and those of the wrong type."""
    for key, leaf in keys().items():
        if key in config.values and config.values[key] == MISSING:
            config.problem("missing", key, must_be_given(key))
            config.values[key] = None
        elif key in user and (expected := _expected(leaf, user[key])):
            config.problem("type", key, f"expected {expected}, got {shown(user[key])!r}", value=shown(user[key]))


def _expected(leaf: Key, value: Any) -> str:
    """What the value must be; "" if VALUE is one."""
    if value is None:
        return "" if leaf.nullable else " or ".join(_WORDS[kind] for kind in leaf.types)
    if isinstance(value, str) and "${" in value:
        return ""
    fits = any(
        isinstance(value, _PYTHON[kind]) and (kind == "bool" or not isinstance(value, bool)) for kind in leaf.types
    )
    as_list = leaf.types == ("list",) and isinstance(value, str)
    numeral = isinstance(value, str) and "str" not in leaf.types and _is_number(value)
    whole = isinstance(value, float) and value.is_integer() and "int" in leaf.types
    if not (fits or as_list or numeral or whole):
        return " or ".join(_WORDS[kind] for kind in leaf.types)
    if leaf.choices and isinstance(value, str) and leaf.types == ("str",) and value not in leaf.choices:
        return "" if value in ("fp32", "bf16", "fp16", "float", "half") else f"one of {', '.join(leaf.choices)}"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
