"""Single steps whose gradient is far longer than those around it, and what they did to the run."""

from __future__ import annotations

from typing import NamedTuple

from rlcheck.checks.run.behaviour import (
    CLIPPED,
    EDGE,
    ENTROPY,
    NEARBY,
    REWARD,
    STEP_KL,
    around,
    reward_span,
    solved,
)
from rlcheck.checks.run.common import curve_of
from rlcheck.checks.run.settings import CRITIC_GRAD_CLIP, GRAD_CLIP, clip_of
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import first_last, median, noise, value_at, window

MEMORY = 15
_FEWEST = 3


class Spike(NamedTuple):
    """One step of one role: the norm of its gradient, and the usual norm around it."""

    role: str
    step: int
    norm: float
    usual: float

    @property
    def metric(self) -> str:
        """The metric that shows it."""
        return f"{self.role}/grad_norm"


def spikes_of(run: RunFacts, role: str) -> tuple[Spike, ...]:
    """Steps whose gradient norm is far above the median of the steps before (or, at the start, after) them."""
    curve = curve_of(run, f"{role}/grad_norm")
    if curve is None:
        return ()
    factor, found = limit("spike_factor"), list[Spike]()
    for place in _candidates(curve.values, factor):
        value, usual = curve.values[place], _usual(curve, place)
        if usual is not None and value > factor * usual > 0:
            found.append(Spike(role, curve.steps[place], value, usual))
    return tuple(found)


def _candidates(values: tuple[float, ...], factor: float) -> list[int]:
    """Places that may hold a spike: most parts of a long run hold none, as their lowest and highest value tell."""
    found: list[int] = []
    for first in range(0, len(values), MEMORY):
        last = min(first + MEMORY, len(values))
        lowest = min(values[max(0, first - MEMORY) : last + MEMORY])
        if max(values[first:last]) > factor * lowest:
            found.extend(place for place in range(first, last) if values[place] > factor * lowest)
    return found


def _usual(curve: Curve, place: int) -> float | None:
    """The median of the points before PLACE; of those after it where there are few. None: too few on both sides."""
    before = curve.values[max(0, place - MEMORY) : place]
    others = before if len(before) >= _FEWEST else curve.values[place + 1 : place + 1 + MEMORY]
    return median(others) if len(others) >= _FEWEST else None


def is_held(run: RunFacts, spike: Spike) -> bool | None:
    """Whether the run's gradient clip cut the spike down to about its usual size; None where no config says."""
    said, most = clip_of(run, GRAD_CLIP if spike.role == "actor" else CRITIC_GRAD_CLIP)
    if not said:
        return None
    return most is not None and most < limit("spike_factor") * max(spike.usual, 1.0) and most < spike.norm


def harm_of(run: RunFacts, spike: Spike) -> tuple[str, ...]:
    """What changed for the worse from the steps before the spike to those after it, in words."""
    looks = (_reward_fell, _entropy_jumped, _policy_leapt, _stands_still, _reward_stalls, _critic_lost)
    return tuple(words for look in looks if (words := look(run, spike)))


def _reward_fell(run: RunFacts, spike: Spike) -> str:
    curve = curve_of(run, *REWARD)
    move = around(curve, spike.step) if curve is not None else None
    fallen = move is not None and move.down and move.before - move.after > limit("reward_moves") * reward_span(run)
    return f"the reward went from {move}" if fallen else ""


def _entropy_jumped(run: RunFacts, spike: Spike) -> str:
    curve = curve_of(run, *ENTROPY)
    move = around(curve, spike.step) if curve is not None else None
    jumped = move is not None and (move.up or move.down) and abs(move.after - move.before) > 0.25 * abs(move.before)
    return f"the entropy went from {move}" if jumped else ""


def _policy_leapt(run: RunFacts, spike: Spike) -> str:
    curve = curve_of(run, STEP_KL)
    if curve is None or spike.role != "actor":
        return ""
    there, usual = value_at(curve, spike.step), around(curve, spike.step)
    if there is None or usual is None:
        return ""
    leapt = abs(there) > limit("step_kl") and abs(there) > limit("spike_factor") * abs(usual.before)
    return f"the policy moved by a KL of {there:.3g} in that step, {usual.before:.3g} before" if leapt else ""


def _stands_still(run: RunFacts, spike: Spike) -> str:
    """AdamW divides by the root of the mean squared gradient, which remembers a spike for a thousand steps."""
    found: list[str] = []
    for name, words in ((STEP_KL, "a KL"), (CLIPPED, "a clip fraction")):
        curve = curve_of(run, name)
        if curve is None or spike.role != "actor":
            continue
        before, after = _far_around(curve, spike.step)
        usual, now = median(before) or 0.0, median(after) or 0.0
        if min(len(before), len(after)) < _FEWEST or usual <= 0 or now >= 0.15 * usual:
            return ""
        found.append(f"{words} of {usual:.2g} in a step, then {now:.2g}")
    return f"the policy hardly moves since: {found[0]}" if found else ""


def _far_around(curve: Curve, step: int) -> tuple[list[float], list[float]]:
    """Sizes before STEP, and after it once what momentum holds has run out."""
    before = window(curve, curve.steps[0], step - 1).values[-NEARBY:]
    after = window(curve, step + 1, curve.steps[-1]).values[EDGE : EDGE + 2 * NEARBY]
    return [abs(value) for value in before], [abs(value) for value in after]


def _reward_stalls(run: RunFacts, spike: Spike) -> str:
    """It rose up to the spike, and no more after it."""
    curve = curve_of(run, *REWARD)
    if curve is None or spike.role != "actor" or solved(run):
        return ""
    before, after = window(curve, spike.step - MEMORY, spike.step - 1), window(curve, spike.step + 1, curve.steps[-1])
    rise, rest = first_last(before), first_last(after)
    if rise is None or rest is None or min(len(before.values), len(after.values)) < NEARBY // 2:
        return ""
    # What so few steps gained would be gained again in as many more, if nothing had happened.
    gained, least = rise[1] - rise[0], max(3 * (noise(before) or 0.0), limit("reward_moves") * reward_span(run))
    if gained <= least or rest[1] > rise[1] or max(after.values) >= rise[1] + gained:
        return ""
    return f"the reward rose from {rise[0]:.3g} to {rise[1]:.3g} before, and is {rest[1]:.3g} at the end"


def _critic_lost(run: RunFacts, spike: Spike) -> str:
    curve = curve_of(run, "critic/vf_explained_var")
    move = around(curve, spike.step) if curve is not None and spike.role == "critic" else None
    lost = move is not None and move.down and move.before - move.after > 0.2
    return f"the critic's explained variance went from {move}" if lost else ""
