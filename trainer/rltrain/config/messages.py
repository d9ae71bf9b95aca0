"""What pydantic found, in one line a problem: the key, what was expected, what there was."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ValidationError

from rltrain.config.names import RUN, Vocabulary

_PLAIN: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
    tuple: "a list",
}
_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


def explain(error: ValidationError, words: Vocabulary = RUN) -> Iterable[tuple[str, str]]:
    """Each problem of ERROR as (dotted key, message), one for a key; WORDS: of the config."""
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        key, message = _explain(cast("dict[str, Any]", detail), words)
        found.setdefault(key, message)
    return found.items()


def shown(value: Any) -> str:
    """VALUE as it would be written in YAML, shortened."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def expected(types: Iterable[Any]) -> str:
    """The alternatives TYPES of a key in words.

    >>> expected((int,))
    'an integer'
    """
    return " or ".join(_expected(kind) for kind in types)


def _expected(kind: Any) -> str:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is None and _is_section(kind):
        return "a mapping"
    if origin is Annotated:
        return _expected(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(str(value) for value in arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is not Ellipsis:
        return "a list of 2"
    if origin is tuple and _is_section(arguments[0]):
        return "a list of mappings"
    if origin is tuple:
        return f"a list of {_expected(arguments[0]).removeprefix('a ').removeprefix('an ')}"
    return _PLAIN.get(origin or kind, str(kind))


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _explain(detail: dict[str, Any], words: Vocabulary) -> tuple[str, str]:
    path = [str(part) for part in detail["loc"]]
    leaf = words.leaf_above(".".join(path))
    if leaf is None and detail["type"] == "value_error":
        return ".".join(path), str(detail["ctx"]["error"])
    if leaf is None and detail["type"] == "missing":
        return ".".join(path), "required section; start from a recipe or `rltrain init`"
    if leaf is None:
        return ".".join(path), f"expected a section, got {shown(detail['input'])}"
    below = path[leaf.count(".") + 1 :]
    if below and below[0].isdigit():
        return _inside_list(words.leaves()[leaf].types, leaf, below, detail)
    if below and any(dict in (kind, typing.get_origin(kind)) for kind in words.leaves()[leaf].types):
        return ".".join(path).removesuffix(".[key]"), _wrong_value(detail, ())
    return leaf, _wrong_value(detail, words.leaves()[leaf].types)


def _inside_list(types: Sequence[Any], leaf: str, below: list[str], detail: dict[str, Any]) -> tuple[str, str]:
    """A problem with an entry of a list, or with a key of a mapping in a list (`reward_model.rules.0.kind`)."""
    item: Any = typing.get_args(types[-1])[0]
    if not _is_section(item) or len(below) == 1:
        if detail["type"] == "missing":
            return leaf, f"expected {expected(types)}"
        return f"{leaf}.{below[0]}", _wrong_value(detail, (item,))
    key = ".".join([leaf, *below[:2]])
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(below[1], list(item.model_fields), n=1)
        meant = f"; did you mean '{near[0]}'?" if near else f"; there are {', '.join(item.model_fields)}"
        return key, f"unknown key{meant}"
    if detail["type"] == "missing":
        return key, "required"
    annotation = item.model_fields[below[1]].annotation
    return key, _wrong_value(detail, (annotation,) if typing.get_origin(annotation) is Literal else ())


def _wrong_value(detail: dict[str, Any], types: Iterable[Any]) -> str:
    kind, value, context = str(detail["type"]), detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return "required"
    got = f"got {shown(value)}"
    if kind in _BOUNDS:
        name, sign = _BOUNDS[kind]
        return f"must be {sign} {context[name]}, {got}"
    if kind == "finite_number":
        return f"expected a finite number, {got}"
    types = tuple(types)
    if not types:
        return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, {got}"
    quotes = "; for text, write it in quotes" if str in types and isinstance(value, int | float) else ""
    # What is allowed, and no guess: a value that looks alike may be another formula (verl's `k3+`, `token-sum`).
    return f"expected {expected(types)}, {got}{quotes}"
