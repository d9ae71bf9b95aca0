"""DRF007, DRF008, DRF010: engine and training agree over the run; importance weights correct for the rest, and can."""

from __future__ import annotations

from typing import NamedTuple

from rlcheck.check import Verdict, check, fail, passed, skip, warn
from rlcheck.checks.drift.delay import by_design
from rlcheck.checks.drift.growth import growth
from rlcheck.checks.drift.reading import K1, K3, LOG_DIFF, PROB_DIFF, STALENESS, device_of, dtype_of, series
from rlcheck.checks.drift.start import rounding_reaches, start
from rlcheck.checks.run.causes import DRIFT, NUMBERS, STEPS
from rlcheck.checks.run.common import NEEDS, drawn, lacking, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.drift.bands import BFLOAT16, band, drift, number
from rlcheck.measure.run.look import change_point, first_last, left_band, median, smooth, steps_words, window

_CHANGED_WITH = (
    "actor/grad_norm",
    "actor/lr",
    "actor/entropy",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "response_length/mean",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "critic/score/mean",
    "num_turns/mean",
    "timing_s/update_weights",
)
"""What may have changed when drift did, and says why."""
_NEAR = 3
_STRONG = 8
_IS = "rollout_corr/rollout_is_"


class Held(NamedTuple):
    """A metric of drift and its band: up to `healthy` nothing is wrong, above `problem` training suffers."""

    name: str
    curve: Curve
    healthy: float
    problem: float
    source: str


@check("DRF007", "Engine and training agree over the whole run", needs=NEEDS, playbook="rollout-and-training-differ",
       caused_by=(*NUMBERS, "RUN057", *DRIFT, *STEPS),
       problem="Engine and training do not agree over the run")  # fmt: skip
def sides_agree(facts: Facts) -> Verdict:
    """The engine's and the actor's probabilities of the sampled tokens stay within the band of their dtypes.

    What it does:
        Holds the run's measure of drift against the band: the difference of probabilities if there is one, else that of
        log-probabilities, else KL. Names the step from which it is outside, the trend, and which other metrics changed
        at that step. Fails where the measure ends as no number. Samples that are
        as late as the config allows are judged as long as they are not late.

    Why it matters:
        What the policy learns from is not what it did. In 16 bits a mean difference of probabilities above 0.01 goes
        with gradient norms that rise and runs that collapse.
    """
    run = run_of(facts)
    lost, held = _lost(run), _held(run)
    if lost is not None:
        return lost
    if held is None:
        return lacking(run, PROB_DIFF, LOG_DIFF, K3)
    persist = min(3, len(held.curve.values))
    left = left_band(held.curve, None, held.healthy, persist)
    worst, now = max(held.curve.values), median(held.curve.values[-5:]) or 0.0
    if left is None:
        return passed(f"{held.name} {now:.3g} at the end, {worst:.3g} at most; up to {held.healthy:g} is healthy")
    if _is_of_delay(run):
        return passed(
            f"{held.name} {held.curve.values[0]:.3g} with the newest weights; then by the delay that was asked for"
        )
    say = warn if left_band(held.curve, None, held.problem, persist) is None else fail
    near = _changed_near(run, left) if left > run.first_step + _NEAR else ()
    more = _besides(run) or _with(near)
    return say(
        f"{held.name} at most {held.healthy:g}",
        f"more from step {left} on, {now:.3g} at the end, {worst:.3g} at most, {_trend(held.curve, left)}{more}",
        details=drawn(run, held.name, *near[:2], *(K1, "critic/score/mean", "actor/grad_norm")),
        evidence=(proof(held.name, f"{now:.3g}", left, run.last_step),),
        params={"step": str(left)},
    )


@check("DRF010", "Samples of older weights are corrected for", needs=NEEDS, playbook="run-rollout-correction",
       caused_by=(*NUMBERS, "RUN057", *DRIFT), problem="Samples of older weights are not corrected for")  # fmt: skip
def delay_is_corrected(facts: Facts) -> Verdict:
    """The difference that a delay makes, where one was asked for, is weighed by a correction of the loss.

    What it does:
        Where samples are as late as the config allows, holds what engine and training differ by against what a run
        bears, and looks for importance weights in the metrics.

    Why it matters:
        The loss takes samples of an older policy for the current one's: what was likely then counts too much. The ratio
        that PPO clips does not show it, as both of its sides are of this step.
    """
    run = run_of(facts)
    held, behind = _held(run), by_design(run)
    if held is None:
        return lacking(run, PROB_DIFF, LOG_DIFF, K3)
    if behind is None:
        return skip("no samples are late by a delay that the config asks for")
    if any(name.startswith(_IS) for name in run.curves):
        return passed("importance weights correct for it")
    size = median(held.curve.values) or 0.0
    said = f"{held.name} {size:.3g} in the median, by samples {behind:.2g} steps old"
    if size <= held.problem:
        return passed(f"{said}: no more than a run bears")
    return warn(
        f"a correction (rollout_is) beside samples of older weights that differ by more than {held.problem:g}",
        said,
        details=drawn(run, held.name, STALENESS, "critic/score/mean"),
        evidence=(proof(held.name, f"{size:.3g}", held.curve.steps[0], run.last_step),),
    )


def _is_of_delay(run: RunFacts) -> bool:
    """Samples are as late as the config allows, and agree as long as they are not late."""
    return by_design(run) is not None and start(run).kind == "none" and growth(run).kind not in ("frozen", "part")


def _lost(run: RunFacts) -> Verdict | None:
    """Verdict where the run's measure of drift has ceased to be a number, and is none at its end."""
    name = next((name for name in (PROB_DIFF, LOG_DIFF, K3, K1) if name in run.curves), "")
    curve = run.curves.get(name, Curve())
    last = curve.steps[-1] if curve.steps else None
    lost = [step for step in curve.nonfinite if last is None or step > last]
    if not lost:
        return None
    # A single step may be one whose update is left out.
    return (fail if lost[1:] else warn)(
        f"{name} that is a number",
        f"NaN or infinite, {steps_words(lost[0], lost[-1])}",
        details=drawn(run, name, "actor/grad_norm"),
        evidence=(proof(name, "no number", lost[0], lost[-1]),),
        params={"step": str(lost[0])},
    )


def _held(run: RunFacts) -> Held | None:
    """The first measure that the run has. What makes a run suffer does not depend on the dtypes that were chosen, what
    is healthy does."""
    own = band(dtype_of(run), device_of(run))
    usual = band(BFLOAT16, "")
    k3 = number("k3_healthy")
    numbers = drift().numbers
    bands = (
        (PROB_DIFF, own.probs[0], max(usual.probs[1], own.probs[1]), usual.source),
        (LOG_DIFF, own.log_probs[0], max(usual.log_probs[1], own.log_probs[1]), usual.source),
        (K3, k3, number("kl"), numbers["kl"].source),
    )
    for name, healthy, problem, source in bands:
        curve = run.curves.get(name)
        if curve is not None and curve.values:
            return Held(name, curve, healthy, problem, source)
    k1 = run.curves.get(K1)
    if k1 is None or not k1.values:
        return None
    size = Curve(steps=k1.steps, values=tuple(abs(value) for value in k1.values))
    return Held(K1, size, k3, number("kl"), numbers["kl"].source)


def _trend(curve: Curve, left: int) -> str:
    ends = first_last(smooth(window(curve, left, curve.steps[-1]), 2))
    if ends is None or ends[0] <= 0:
        return "with the last step"
    if ends[1] > 1.5 * ends[0]:
        return "rising"
    return "falling" if ends[1] < ends[0] / 1.5 else "level"


def _changed_near(run: RunFacts, step: int) -> tuple[str, ...]:
    """Metrics with a change of level within a few steps of STEP, the strongest first."""
    found: list[tuple[float, str]] = []
    for name in _CHANGED_WITH:
        curve = run.curves.get(name)
        change = None if curve is None else change_point(curve)
        if change is not None and change.strength > _STRONG and abs(change.step - step) <= _NEAR:
            found.append((change.strength, name))
    return tuple(name for _, name in sorted(found, reverse=True))


def _with(near: tuple[str, ...]) -> str:
    return f"; at that step {' and '.join(near[:2])} changed, too" if near else ""


def _besides(run: RunFacts) -> str:
    """What else there is to say of when drift began, or of its size."""
    grown, begun, found = growth(run), start(run), series(run)
    if grown.jumped:
        names = " and ".join(grown.jumped[:2])
        return f"; the sampling changed at step {grown.onset}, where drift begins: {names} changed, too"
    if (
        found is not None
        and begun.kind in ("unclear", "other")
        and max(begun.first, begun.size) > rounding_reaches(found)
    ):
        return "; that is more than rounding to 16 bits can make"
    return ""


@check("DRF008", "Importance sampling can correct the remaining drift between engine and training", needs=NEEDS,
       playbook="rollout-and-training-differ", caused_by=(*NUMBERS, *DRIFT, *STEPS),
       problem="Importance weights between engine and actor are far from 1")  # fmt: skip
def weights_are_healthy(facts: Facts) -> Verdict:
    """Importance weights between engine and actor stay near 1, so that few tokens do not carry the whole gradient.

    What it does:
        Holds mean, spread and effective sample size of the weights, the KL and the chi-squared of the last third of the
        run against the bounds that verl's documentation names.

    Why it matters:
        Truncated importance sampling corrects a small gap. With an effective sample of a third, most of the batch is
        thrown away, and what remains is noise.
    """
    run = run_of(facts)
    levels = {name: value for name in _BOUNDS if (value := _late(run, name)) is not None}
    if not levels:
        return lacking(run, *tuple(_BOUNDS)[:3])
    outside = [name for name, value in levels.items() if not _BOUNDS[name].low <= value <= _BOUNDS[name].high]
    shown = ", ".join(f"{name} {value:.3g}" for name, value in levels.items())
    if not outside:
        return passed(f"in the last third: {shown}")
    say = fail if any(_BOUNDS[name].grave for name in outside) else warn
    first, last = _last_third(run)
    return say(
        "; ".join(f"{name} {_BOUNDS[name].words}" for name in outside),
        f"{', '.join(f'{name} {levels[name]:.3g}' for name in outside)} ({steps_words(first, last)})",
        details=drawn(run, *outside),
        evidence=tuple(proof(name, f"{levels[name]:.3g}", first, last) for name in outside),
    )


class _Bound(NamedTuple):
    low: float
    high: float
    words: str
    grave: bool = False


_ANY = float("inf")
_BOUNDS: dict[str, _Bound] = {
    f"{_IS}mean": _Bound(number("is_mean_low"), number("is_mean_high"),
                         f"between {number('is_mean_low'):g} and {number('is_mean_high'):g}", grave=True),
    f"{_IS}std": _Bound(-_ANY, number("is_std"), f"at most {number('is_std'):g}"),
    f"{_IS}eff_sample_size": _Bound(number("ess"), _ANY, f"at least {number('ess'):g}", grave=True),
    K1: _Bound(-number("kl"), number("kl"), f"between -{number('kl'):g} and {number('kl'):g}"),
    "rollout_corr/chi2_token": _Bound(-_ANY, number("chi2_token"), f"at most {number('chi2_token'):g}"),
}  # fmt: skip


def _last_third(run: RunFacts) -> tuple[int, int]:
    return run.last_step - max(0, run.last_step - run.first_step) // 3, run.last_step


def _late(run: RunFacts, name: str) -> float | None:
    curve = run.curves.get(name)
    return None if curve is None else median(window(curve, *_last_third(run)).values)
