"""The list of machines that are built; the modules beside this one put them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlcheck.facts.document import Facts


@dataclass(frozen=True)
class Machine:
    """A machine that is built: how, and the published output that its numbers come from (paths below github.com)."""

    sources: tuple[str, ...]
    build: Callable[[str], Facts]


MACHINES: dict[str, Machine] = {}
_Build = Callable[[str], Facts]


def machine(name: str, *sources: str) -> Callable[[_Build], _Build]:
    """Puts a function that makes the facts of machine `name` into the list."""

    def register(build: _Build) -> _Build:
        MACHINES[name] = Machine(sources, build)
        return build

    return register
