"""Overrides: `a.b=1`, `+a=1`, `++a=1`, `~a`, and the choice of a group (`model_engine=megatron`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlcheck.facts.config import KeyProblem, Place
from rlcheck.measure.config.document import value_of
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.hydra_values import ValueSyntaxError, hydra_value

_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=\s~+][^=\s]*)(?P<given>\s*=(?P<value>.*))?", re.DOTALL)
# Characters of an override in a message.
_MAX_SHOWN = 200


class Override(msgspec.Struct, frozen=True):
    """One override, read. `sign` is "", "+", "++" or "~"; `group` means that it chooses a file of a config group."""

    text: str
    sign: str
    key: str
    value: Any = None
    group: bool = False

    @property
    def place(self) -> Place:
        """Where its key was set."""
        return Place(text=self.text if len(self.text) <= _MAX_SHOWN else f"{self.text[:_MAX_SHOWN]}…")


def is_override(word: str) -> bool:
    """Whether WORD of a command line is an override."""
    matched = _OVERRIDE.fullmatch(word)
    return matched is not None and not word.startswith("-") and (matched["given"] is not None or matched["sign"] == "~")


def read_overrides(
    words: Sequence[str], *, hydra: bool, groups: Sequence[str] = ()
) -> tuple[list[Override], list[KeyProblem]]:
    """WORDS as overrides, and what is wrong with those that are none.

    Args:
        words: as typed, quotes of the shell removed.
        hydra: values follow Hydra's grammar; otherwise they are YAML, as in rltrain.
        groups: keys that name a config group.
    """
    found: list[Override] = []
    problems: list[KeyProblem] = []
    parse: Callable[[str], Any] = hydra_value if hydra else value_of
    for word in words:
        matched = _OVERRIDE.fullmatch(word)
        if matched is None or (matched["given"] is None and matched["sign"] != "~"):
            problems.append(_syntax(word, "", "expected key=value, such as trainer.total_epochs=2"))
            continue
        key = matched["key"].replace("[", ".").replace("]", "")
        group = "@" in key or "/" in key or key in groups
        try:
            value = None if matched["given"] is None else parse(matched["value"])
        except (ValueSyntaxError, ReadError) as error:
            problems.append(_syntax(word, key, f"the value cannot be read: {error}"))
            continue
        found.append(Override(word, matched["sign"] or "", key, value, group))
    return found, problems


def _syntax(word: str, key: str, message: str) -> KeyProblem:
    place = Override(word, "", key).place
    return KeyProblem(kind="syntax", key=key or place.text.partition("=")[0], message=message, place=place)
