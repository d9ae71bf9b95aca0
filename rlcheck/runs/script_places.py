"""Where the overrides of a script stand in it: file, line and column in place of the words alone."""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.run import Place, RunFacts


class Script(Struct, frozen=True):
    """A script as it lies there, and the overrides that were found in it, as the shell would pass them."""

    name: str
    text: str
    words: tuple[str, ...]


def placed(facts: RunFacts, script: Script) -> RunFacts:
    """FACTS whose places name the lines of SCRIPT."""
    keys = {_key(word) for word in script.words}
    return msgspec.structs.replace(
        facts,
        given={key: _placed(place, script, keys) for key, place in facts.given.items()},
        problems=tuple(msgspec.structs.replace(one, place=_placed(one.place, script, keys)) for one in facts.problems),
    )


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~").strip()


def _placed(place: Place, script: Script, keys: Collection[str]) -> Place:
    key = _key(place.text)
    if place.file or not place.text or key not in keys:
        return place
    # The last one counts, as it does for Hydra; what stands behind a # does not.
    found = None
    for number, line in enumerate(script.text.splitlines(), 1):
        code = re.split(r"(?:^|\s)#", line)[0]
        for match in re.finditer(rf"(?<![\w.$])(?:\+\+?|~)?{re.escape(key)}(?=\s*=|\s|$|['\"])", code):
            found = Place(file=script.name, line=number, column=match.start() + 1, text=place.text)
    return found or place
