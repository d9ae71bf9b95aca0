"""Options of a command line, `--key value`, read by a trainer's table of keys as argparse reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rlcheck.measure.config.document import scalar_of, value_of
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.trainer import Key

_OPTION = re.compile(r"--(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
# What only the shell knows.
_SHELLS = re.compile(r"\$[A-Za-z_({]|`")
_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
_MAX_SHOWN = 200


class Option(msgspec.Struct, frozen=True):
    """One option as it was typed.

    `key` is the table's where there is such a key, else what was typed without its dashes. `open`: why the value is
    known to the shell alone. `wrong`: what argparse refuses about it.
    """

    key: str
    value: Any
    text: str
    is_known: bool = True
    open: str = ""
    wrong: str = ""


def options_of(
    words: Sequence[str], keys: Mapping[str, Key], *, abbreviates: bool = True
) -> tuple[list[Option], list[str]]:
    """WORDS as options, and those words that belong to none.

    `abbreviates`: whether the only beginning of an option stands for it.
    """
    found: list[Option] = []
    strays: list[str] = []
    at = 0
    while at < len(words):
        matched = _OPTION.fullmatch(words[at])
        at += 1
        if matched is None:
            strays.append(words[at - 1])
            continue
        values = [] if matched["value"] is None else [matched["value"]]
        name, key, negated = _named(matched["name"], keys, abbreviates)
        if matched["value"] is None:
            most = _most(key, negated)
            while at < len(words) and len(values) < most and not _OPTION.fullmatch(words[at]):
                values.append(words[at])
                at += 1
        is_flag = key is not None and (key.flag or negated)
        if is_flag and not values and at < len(words) and words[at].lower() in (*_TRUE, *_FALSE):
            values, at = [words[at]], at + 1
        found.append(_option(matched["name"], name, key, values, negated))
    return found, strays


def _named(typed: str, keys: Mapping[str, Key], abbreviates: bool) -> tuple[str, Key | None, bool]:
    """The key that an option means: itself, with dashes for underscores, `no_KEY`, or its only beginning."""
    for name in (typed, typed.replace("-", "_")):
        if name in keys:
            return name, keys[name], False
        bare = re.sub(r"(^|\.)no[-_]", r"\1", name, count=1)
        if bare != name and bare in keys and _has_no(keys[bare]):
            return bare, keys[bare], True
        begun = [key for key in keys if key.startswith(name)] if abbreviates and len(name) > 2 else []
        if len(begun) == 1:
            return begun[0], keys[begun[0]], False
        above = [key for key in keys if keys[key].free and name.startswith(f"{key}.")]
        if above:
            return name, Key(), False
    return typed, None, False


def _has_no(key: Key) -> bool:
    """Whether `--no-KEY` turns it off: a truth, or a section that may be absent."""
    return key.types == ("bool",) or (key.nullable and "dict" in key.types)


def _most(key: Key | None, negated: bool) -> int:
    """How many words follow the option."""
    if key is None:
        return 1 << 10
    if negated or key.flag:
        return 0
    return {"": 1, "?": 1, "+": 1 << 10, "*": 1 << 10}.get(key.many) or int(key.many)


def _option(typed: str, name: str, key: Key | None, values: list[str], negated: bool) -> Option:
    text = " ".join([f"--{typed}", *values])
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    if key is None:
        return Option(typed, " ".join(values), text, is_known=False)
    name = key.sets or name
    if key.flag or negated:
        wrong = f"takes no value, got {values[0]!r}" if values else ""
        off = None if "dict" in key.types else False
        return Option(name, off if negated or key.negates else True, text, wrong=wrong)
    if not values and key.many != "*":
        # HfArgumentParser lets a flag of type bool be alone, and an action of one's own may take nothing.
        is_alone = key.types in ((), ("bool",)) and key.many == "?"
        return Option(name, True, text) if is_alone else Option(name, None, text, wrong="expected a value, got none")
    unclear = next((value for value in values if _SHELLS.search(value)), "")
    if unclear:
        return Option(name, None, text, open=unclear)
    if key.many in ("", "?"):
        return Option(name, typed_as(values[0], key), text)
    wrong = f"expected {key.many} values, got {len(values)}" if key.many.isdecimal() and len(values) != int(
        key.many) else ""  # fmt: skip
    return Option(name, [typed_as(value, key) for value in values], text, wrong=wrong)


def typed_as(text: str, key: Key) -> Any:
    """TEXT of a command line as the key's type; as it is where it is none of that type."""
    if "bool" in key.types and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    if key.nullable and "str" not in key.types and text.lower() in ("none", "null"):
        return None
    if ("dict" in key.types or not key.types) and text[:1] in "{[":
        try:
            return value_of(text)
        except ReadError:
            return text
    if "str" in key.types and not {"int", "float"} & set(key.types):
        return text
    read = scalar_of(text)
    return read if isinstance(read, int | float) and not isinstance(read, bool) else text
