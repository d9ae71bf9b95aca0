"""Numbers, symbols and names that logs hold, in words; each topic's decoders are in `decoders`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache

Decoder = Callable[[Mapping[str, str]], Mapping[str, str]]
TOPICS = ("build", "network", "ray", "engine", "memory", "config")
_OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.S)
_PARAMETER = re.compile(r"\{\{(\w+)\}\}")


@cache
def decoders() -> dict[str, Decoder]:
    """Every decoder by the name of the group that it explains."""
    found: dict[str, Decoder] = {}
    for topic in TOPICS:
        found.update(importlib.import_module(f"rlcheck.diagnose.decoders.{topic}").DECODERS)
    return found


def decoded(groups: Mapping[str, str]) -> dict[str, str]:
    """The groups of a match and what they mean; a group that cannot be read explains nothing."""
    params = dict(groups)
    for name, decoder in decoders().items():
        if name in groups:
            try:
                explained = decoder(groups)
            except (ValueError, OverflowError):  # a log may hold a number of a thousand digits
                continue
            for key, value in explained.items():
                params.setdefault(key, value)
    return params


def filled(text: str, params: Mapping[str, str]) -> str:
    """`text` with its parameters in place. `[[ … ]]` goes when one of its parameters is not known."""

    def optional(match: re.Match[str]) -> str:
        return match[1] if all(name in params for name in _PARAMETER.findall(match[1])) else ""

    def replace(match: re.Match[str]) -> str:
        return params.get(match[1], f"<{match[1]}>")

    return " ".join(_PARAMETER.sub(replace, _OPTIONAL.sub(optional, text)).split())
