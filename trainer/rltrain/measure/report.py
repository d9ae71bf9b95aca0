"""The facts that a measuring plug-in knows so far, told as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from rlcheck.facts.canary import CanaryFacts
from rlcheck.facts.drift import DriftFacts
from rlcheck.facts.reward import RewardFacts
from rlcheck.facts.rollout import RolloutFacts, StageTime

Tell = Callable[[dict[str, Any]], None]
F = TypeVar("F", CanaryFacts, DriftFacts, RewardFacts, RolloutFacts)


class Report(Generic[F]):
    """FACTS, which grow. TELL is called with `{"stage": …}` before each part, with `{"partial": …}` after it."""

    def __init__(self, tell: Tell, facts: F) -> None:
        self._tell = tell
        self.facts: F = facts

    def enter(self, name: str) -> None:
        """Tell that stage NAME begins."""
        self._tell({"stage": name})

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Tell NAME, and note how long the block takes."""
        self.enter(name)
        begun = time.perf_counter()
        yield
        self.took(name, time.perf_counter() - begun)

    def took(self, name: str, seconds: float) -> None:
        """Note that stage NAME took SECONDS."""
        self.add(stages=(*self.facts.stages, StageTime(name=name, seconds=round(seconds, 3))))

    def add(self, **fields: Any) -> None:
        """Tell FIELDS of the facts."""
        self.facts = msgspec.structs.replace(self.facts, **fields)
        self._tell({"partial": msgspec.to_builtins(fields)})

    def note(self, line: str) -> None:
        """Tell LINE, once."""
        if line not in self.facts.notes:
            self.add(notes=(*self.facts.notes, line))

    def result(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return msgspec.to_builtins(self.facts)
