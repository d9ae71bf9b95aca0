"""The curves of a run that say how far engine and training are apart, and what they are to be held against."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, TypeVar

from rlcheck.checks.run.common import curve_of, number_setting, setting
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.drift.bands import BFLOAT16, FLOAT32, Band, band, coarser, dtype_name
from rlcheck.measure.run.look import median, window

T = TypeVar("T")
LOG_DIFF = "training/rollout_log_probs_diff_mean"
PROB_DIFF = "training/rollout_probs_diff_mean"
K1, K3 = "rollout_corr/kl", "rollout_corr/k3_kl"
STEP_KL = "actor/ppo_kl"
ENTROPY = "actor/entropy"
ENGINE_DTYPE = "actor_rollout_ref.rollout.dtype"
ACTOR_DTYPE = "actor_rollout_ref.actor.fsdp_config.dtype"
RATE = "actor/lr"
ROLLOUT_PPL = "rollout_corr/rollout_log_ppl"
MISMATCH = "training/rollout_prompt_mismatch"
STALENESS = "training/policy_staleness/mean"
LOG_CORR, SLOPE = "training/rollout_log_probs_corr", "training/rollout_log_probs_slope"
PROB_CORR = "training/rollout_actor_probs_pearson_corr"
FIRST_TOKEN, LAST_TOKEN = (f"training/rollout_log_probs_diff_{end}" for end in ("first", "last"))
DRIFT_METRICS = (LOG_DIFF, K3, PROB_DIFF)
_MEAN_OF_NORMAL = math.sqrt(2 / math.pi)
"""Mean absolute value of a normal distribution with variance 1."""
_KNOWN_BY_SIZE = 0.01
"""A first difference below this share of bfloat16's own was not computed in 16 bits on either side."""


class Series(NamedTuple):
    """The curve by which drift is followed: mean absolute differences, of logarithms or of probabilities.

    `name`: the metric that it is, or is made from. `healthy` and `problem`: the band of the run's dtypes. `dtype`: the
    coarser of both sides', "" where the config does not say; `told`: it does say.
    """

    name: str
    curve: Curve
    is_log: bool
    healthy: float
    problem: float
    dtype: str
    told: bool

    @property
    def label(self) -> str:
        """What to write beside its numbers."""
        return f"|d log p| made from {K3}" if self.name == K3 else self.name

    def said(self, value: float, how: str = "") -> str:
        """A VALUE of it in words, with HOW (as "at most ") before it; what it was made from comes first."""
        if self.name == K3:
            return f"{K3} of {how}{_k3_of(value):.3g} (a mean |difference of log-probabilities| of about {value:.2g})"
        return f"a mean |difference of {'log-probabilities' if self.is_log else 'probabilities'}| of {how}{value:.3g}"

    def written(self, value: float) -> str:
        """A VALUE of it, as the metric has it."""
        return f"{_k3_of(value) if self.name == K3 else value:.3g}"


def _k3_of(size: float) -> float:
    """k3 from which a mean |log rho| was made."""
    return (size / _MEAN_OF_NORMAL) ** 2 / 2


def remembered(function: Callable[[RunFacts], T]) -> Callable[[RunFacts], T]:
    """FUNCTION, which is not called again for the run that it was called for last: several checks ask the same."""
    last: list[tuple[RunFacts, T]] = []

    @wraps(function)
    def ask(run: RunFacts) -> T:
        if not last or last[-1][0] is not run:
            last[:] = [(run, function(run))]
        return last[-1][1]

    return ask


@remembered
def series(run: RunFacts) -> Series | None:
    """The run's best measure of drift; None if it has none.

    Of k3 = E[rho - log rho - 1], which is half the variance of log rho where that is small, the mean |log rho| of a
    normal distribution is made.
    """
    logs, k3, probs = (curve_of(run, name) for name in DRIFT_METRICS)
    if logs is not None:
        return _series(run, LOG_DIFF, logs, is_log=True)
    if k3 is not None:
        values = tuple(_MEAN_OF_NORMAL * math.sqrt(2 * max(value, 0.0)) for value in k3.values)
        return _series(run, K3, Curve(steps=k3.steps, values=values), is_log=True)
    return None if probs is None else _series(run, PROB_DIFF, probs, is_log=False)


def _series(run: RunFacts, name: str, curve: Curve, *, is_log: bool) -> Series:
    dtype, told = dtype_of(run), True
    if not dtype:
        usual = _pair(band(BFLOAT16, ""), is_log)[0]
        dtype, told = (FLOAT32 if curve.values[0] < usual * _KNOWN_BY_SIZE else BFLOAT16), False
    healthy, problem = _pair(band(dtype, device_of(run) if told else ""), is_log)
    return Series(name, curve, is_log, healthy, problem, dtype, told)


def _pair(limits: Band, is_log: bool) -> tuple[float, float]:
    return limits.log_probs if is_log else limits.probs


def dtype_of(run: RunFacts) -> str:
    """The coarser of the dtypes in which engine and actor compute; "" where the config does not say both."""
    engine = setting(run, ENGINE_DTYPE)
    actor = setting(run, ACTOR_DTYPE, "actor_rollout_ref.actor.fsdp_config.model_dtype")
    quantized = setting(run, "actor_rollout_ref.rollout.quantization")
    return coarser(str(quantized or engine or ""), str(actor or ""))


class TwoDtypes(NamedTuple):
    """What engine and actor compute in, where the config names two; `override`: what makes them equal."""

    engine: str
    actor: str
    finer: str
    override: str


def two_dtypes(run: RunFacts) -> TwoDtypes | None:
    """None where they are one, or the config does not say both. A quantized engine is coarser on purpose."""
    engine, actor = (dtype_name(str(run.settings.get(key) or "")) for key in (ENGINE_DTYPE, ACTOR_DTYPE))
    if "" in (engine, actor) or engine == actor or setting(run, "actor_rollout_ref.rollout.quantization"):
        return None
    finer = actor if coarser(engine, actor) == engine else engine
    # Actors are rarely trained in float16: there the engine follows.
    key = ENGINE_DTYPE if finer in (actor, "float16") else ACTOR_DTYPE
    value = actor if key == ENGINE_DTYPE else engine
    return TwoDtypes(engine, actor, finer, f"{key}={value}")


def device_of(run: RunFacts) -> str:
    """The device that the config names, "" if it names none."""
    return str(setting(run, "trainer.device") or "")


def temperature_of(run: RunFacts) -> float | None:
    """The temperature that rollouts are sampled at, where the config says."""
    return number_setting(run, "actor_rollout_ref.rollout.temperature")


def is_truncated(run: RunFacts) -> bool:
    """The config cuts the engine's distribution."""
    top_p = number_setting(run, "actor_rollout_ref.rollout.top_p")
    top_k = number_setting(run, "actor_rollout_ref.rollout.top_k")
    return (top_p is not None and top_p < 1) or (top_k is not None and top_k > 0)


def level(run: RunFacts, name: str, first: int, last: int) -> float | None:
    """The median of the metric NAME from step FIRST to LAST; None where it has no value there."""
    curve = run.curves.get(name)
    return None if curve is None else median(window(curve, first, last).values)


def at_first(run: RunFacts, name: str) -> float | None:
    """The first value of the metric NAME; None if it has none."""
    curve = curve_of(run, name)
    return None if curve is None else curve.values[0]


@remembered
def estimator_ratio(run: RunFacts) -> float | None:
    """The median of k1 / k3 over the run; None where that is mostly noise or not known.

    With rho = p_actor / p_engine, k3 = k1 + E[rho] - 1. Where tokens were sampled from what the engine reports, E[rho]
    is 1 for any actor, and the ratio too. The noise of k1 is sqrt(2 k3 / tokens).
    """
    k1, k3 = run.curves.get(K1), run.curves.get(K3)
    if k1 is None or k3 is None:
        return None
    at = dict(zip(k1.steps, k1.values, strict=True))
    pairs = zip(k3.steps, k3.values, strict=True)
    ratios = [(at[step] / value, value) for step, value in pairs if value > 1e-5 and step in at]
    size = median(value for _, value in ratios)
    found = median(ratio for ratio, _ in ratios)
    if size is None or found is None:
        return None
    spread = 1.25 * math.sqrt(2 / (tokens_per_step(run) * size * len(ratios)))
    return found if spread < 0.2 else None


def entropy_shift(run: RunFacts, found: Series) -> float | None:
    """Actor's entropy minus the engine's mean -log p of its samples, over drift: median of the first ten steps.

    For one and the same distribution the two are equal but for noise, and for two that differ at random nearly so. They
    are apart, always to the same side, where one distribution is flatter: that is what a temperature does. None: not
    always to the same side, or not known.
    """
    entropy, tokens = run.curves.get(ENTROPY), run.curves.get(ROLLOUT_PPL)
    if entropy is None or tokens is None or not found.is_log:
        return None
    sampled, at = (dict(zip(curve.steps, curve.values, strict=True)) for curve in (tokens, found.curve))
    pairs = list(zip(entropy.steps, entropy.values, strict=True))[:10]
    shifts = [(value - sampled[step]) / at[step] for step, value in pairs if step in sampled and at.get(step, 0.0) > 0]
    same_side = bool(shifts) and (min(shifts) > 0 or max(shifts) < 0)
    return median(shifts) if same_side else None


def tokens_per_step(run: RunFacts) -> float:
    """About how many tokens a step learns from; 1000 where nothing says."""
    found = median(curve.values) if (curve := curve_of(run, "actor/loss_tokens")) is not None else None
    return max(1.0, found or 1000.0)
