"""Other trainers, a module each: `TRAINER` says how its keys name what a run is."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module

from rlcheck.measure.config.trainer import Trainer


@cache
def trainers() -> Mapping[str, Trainer]:
    """Every trainer by its name."""
    return {trainer.name: trainer for trainer in map(_trainer, _modules())}


def trainer_of(framework: str) -> Trainer | None:
    """The trainer of this name; None for rltrain, verl and plain files of fields."""
    module = framework.replace("-", "_")
    return _trainer(module) if module in _modules() else None


@cache
def _modules() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def _trainer(module: str) -> Trainer:
    return import_module(f"{__name__}.{module}").TRAINER


def titled(framework: str) -> str:
    """The name of a framework as its authors write it."""
    trainer = trainer_of(framework)
    return framework if trainer is None else trainer.title


def started(
    words: Sequence[str], passed: Callable[[int], Sequence[str]], text: str = ""
) -> tuple[Trainer, str, int, int] | None:
    """The trainer that a command line starts, the kind, and where its command begins and ends; None: none of them.

    PASSED returns the words from a number on as the shell passes them. Of a trainer and its fork that both take the
    words, it is the one that TEXT, the script, names most often.
    """
    for number, word in enumerate(words):
        plain = word.rsplit("/", 1)[-1]
        pair = f"{plain} {words[number + 1]}" if number + 1 < len(words) else ""
        found: list[tuple[Trainer, str, int, int]] = []
        for trainer in trainers().values():
            for start, length in ((word, 1), (pair, 2)):
                matched = trainer.command.fullmatch(start)
                if matched is not None and trainer.owns(passed(number)):
                    kind = matched.groupdict().get("kind") or trainer.kind
                    found.append((trainer, trainer.turned(kind, passed(number)), number, number + length))
        if found:
            return max(reversed(found), key=lambda one: text.count(one[0].name))
    return None
