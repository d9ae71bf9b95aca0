"""Where the overrides of a script are in it: file, line and column in place of the words alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.config import ConfigFacts, Place

# What is behind a # is a comment.
_CODE = re.compile(r"(?:^|\s)#")
# What is around a key: two patterns for all keys, as to compile one for each takes longer than to look for them.
_BEGINS = re.compile(r"(?<![\w.$])(?:\+\+?|~)?\Z")
_ENDS = re.compile(r"(?=\s*=|\s|$|['\"])")


class Script(Struct, frozen=True):
    """A script as it is there, and the overrides that were found in it, as the shell would pass them."""

    name: str
    text: str
    words: tuple[str, ...]


def placed(facts: ConfigFacts, script: Script) -> ConfigFacts:
    """FACTS whose places name the lines of SCRIPT."""
    lines = [_CODE.split(line)[0] for line in script.text.splitlines()]
    return msgspec.structs.replace(
        facts,
        given={key: _placed(place, script, lines) for key, place in facts.given.items()},
        problems=tuple(msgspec.structs.replace(one, place=_placed(one.place, script, lines)) for one in facts.problems),
    )


def _key(word: str) -> str:
    if word.startswith("--"):
        return re.split(r"[=\s]", word, maxsplit=1)[0]
    return word.partition("=")[0].lstrip("+~").strip()


def _placed(place: Place, script: Script, lines: Sequence[str]) -> Place:
    key, typed = _key(place.text), place.text.removesuffix("…")
    # An override of the command line may name a key that the script names too.
    if place.file or not key or not any(word.startswith(key if key[:2] == "--" else typed) for word in script.words):
        return place
    # The last one counts, as it does for Hydra.
    found = place
    for number, code in enumerate(lines, 1):
        at = code.find(key)
        while at >= 0:
            begins = _BEGINS.search(code, max(0, at - 2), at)
            if begins is not None and _ENDS.match(code, at + len(key)):
                found = Place(file=script.name, line=number, column=begins.start() + 1, text=place.text)
            at = code.find(key, at + 1)
    return found
