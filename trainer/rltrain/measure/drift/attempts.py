"""What has been tried to explain a gap, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from rlcheck.facts.base import known
from rlcheck.facts.drift import Gap, Variant
from rltrain.core.errors import RunFailure, UserError
from rltrain.measure.drift.report import Report
from rltrain.measure.drift.variants import Change

_MAX_ERROR = 400
_REMOVED = 10.0
"""A change removes a gap that it makes so many times smaller."""
_LARGE = 20.0
"""Times the noise: beyond it, the two sides are likely to mean different things."""


@dataclass
class Attempts:
    """What has been tried so far.

    Args:
        base: the gap that is to be explained.
        noise: the mean |log p| difference that rounding explains.
        report: told of each variant.
        try_all: go on after one that removes the gap.
        budget_s: no restart is begun that would end later.
    """

    base: Gap
    noise: float
    report: Report
    try_all: bool = False
    budget_s: float = 600.0
    found: list[Variant] = field(default_factory=list[Variant])
    begun: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> float:
        """Of the gap that is to be explained: mean |log p| difference."""
        return self.base.log_probs_diff_mean

    @property
    def is_large(self) -> bool:
        """Whether rounding is out of the question."""
        return self.size > _LARGE * self.noise

    @property
    def done(self) -> bool:
        """Whether nothing more is to be tried."""
        return not self.try_all and any(variant.removes for variant in self.found)

    def removes(self, left: float) -> bool:
        """Whether LEFT, a mean |log p| difference, is what rounding leaves of the gap."""
        return left <= self.size / _REMOVED or (left <= self.noise < self.size and left <= self.size / 2)

    def add(self, change: Change, left: Gap | None, seconds: float, error: str = "") -> None:
        """Note and tell what CHANGE came to; LEFT: what is left of the gap."""
        self.found.append(
            Variant(
                name=change.name,
                title=change.title,
                family=change.family,
                side=change.side,
                overrides=change.overrides,
                gap=left,
                removes=left is not None and self.removes(left.log_probs_diff_mean),
                error=error,
                seconds=round(seconds, 3),
            )
        )
        self.report.add(variants=known(tuple(self.found)))

    def attempt(self, change: Change, act: Callable[[], Gap], stage: bool = True) -> None:
        """Do ACT, which gives what CHANGE leaves of the gap, and note it; what cannot be tried is noted, too.

        STAGE: it is a stage of its own, not several.
        """
        begun = time.monotonic()
        try:
            with self.report.stage(f"trying: {change.title}") if stage else nullcontext():
                left = act()
        except (UserError, RunFailure) as error:
            self.add(change, None, time.monotonic() - begun, " ".join(str(error).split())[:_MAX_ERROR])
            return
        self.add(change, left, time.monotonic() - begun)
