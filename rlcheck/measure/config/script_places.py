"""Where the overrides of a script are in it: file, line and column in place of the words alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.config import ConfigFacts, Place

# What is behind a # is a comment.
_CODE = re.compile(r"(?:^|\s)#")


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
    if (
        place.file
        or not place.text
        or not any(word.startswith(key if key[:2] == "--" else typed) for word in script.words)
    ):
        return place
    # The last one counts, as it does for Hydra.
    found, written = None, re.compile(rf"(?<![\w.$])(?:\+\+?|~)?{re.escape(key)}(?=\s*=|\s|$|['\"])")
    for number, code in enumerate(lines, 1):
        for match in written.finditer(code) if key in code else ():
            found = Place(file=script.name, line=number, column=match.start() + 1, text=place.text)
    return found or place
