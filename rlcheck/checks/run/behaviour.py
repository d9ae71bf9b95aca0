"""What the policy does over the steps: whether its reward rises, and what changed around a step."""

from __future__ import annotations

from typing import NamedTuple

from rlcheck.checks.run.common import curve_of
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import first_last, median, noise, slope, window

REWARD = ("critic/score/mean", "critic/rewards/mean")
ENTROPY = ("actor/entropy", "actor/entropy_loss")
STEP_KL = "actor/ppo_kl"
CLIPPED = "actor/pg_clipfrac"
GRAD_NORM = "actor/grad_norm"
NEARBY = 10
"""Points on either side of a step that are compared."""
EDGE = 3
"""Points that stand for the start of a curve."""


class Move(NamedTuple):
    """A level before and after, and the difference that noise alone may make."""

    before: float
    after: float
    noise: float

    @property
    def up(self) -> bool:
        """It rose by more than noise."""
        return self.after - self.before > self.noise

    @property
    def down(self) -> bool:
        """It fell by more than noise."""
        return self.before - self.after > self.noise

    def __str__(self) -> str:
        return f"{self.before:.4g} to {self.after:.4g}"


def reward_move(run: RunFacts, since: int | None = None) -> Move | None:
    """First against last fifth of the reward, from step SINCE on; None where there are fewer than 4 points."""
    curve = curve_of(run, *REWARD)
    if curve is not None and since is not None:
        curve = window(curve, since, curve.steps[-1])
    ends = first_last(curve) if curve is not None and len(curve.values) >= 4 else None
    if curve is None or ends is None:
        return None
    return Move(*ends, max(3 * (noise(curve) or 0.0), limit("reward_moves") * reward_span(run)))


def reward_span(run: RunFacts) -> float:
    """How far apart rewards of single answers are: the largest less the smallest that the run has seen."""
    high = curve_of(run, "critic/score/max", "critic/rewards/max", *REWARD)
    low = curve_of(run, "critic/score/min", "critic/rewards/min", *REWARD)
    return max(high.values) - min(low.values) if high is not None and low is not None else 0.0


def solved(run: RunFacts) -> bool:
    """The reward has risen, and ends near the best that any answer has earned."""
    move, best, span = reward_move(run), curve_of(run, "critic/score/max", "critic/rewards/max"), reward_span(run)
    if move is None or best is None or span <= 0:
        return False
    return move.up and max(best.values) - move.after <= limit("reward_solved") * span


def around(curve: Curve, step: int) -> Move | None:
    """Medians of up to 10 points before STEP and after it, STEP left out; None with fewer than 2 on either side.

    What a trend that was there before would have changed counts as noise.
    """
    if not curve.values:
        return None
    before = window(curve, curve.steps[0], step - 1).values[-NEARBY:]
    after = window(curve, step + 1, curve.steps[-1]).values[:NEARBY]
    if len(before) < 2 or len(after) < 2:
        return None
    earlier = Curve(steps=tuple(range(len(before))), values=before)
    trend = (slope(earlier) or 0.0) * (len(before) + len(after)) / 2
    return Move(median(before) or 0.0, median(after) or 0.0, 4 * (noise(earlier) or 0.0) + 2 * abs(trend))


def start_of(curve: Curve) -> float:
    """The level at which a curve that is not empty begins: the median of its first points."""
    return median(curve.values[:EDGE]) or 0.0


def end_of(curve: Curve) -> float:
    """The level at which a curve that is not empty ends: the median of its last fifth, of one point at least."""
    return median(curve.values[-max(1, len(curve.values) // 5) :]) or 0.0
