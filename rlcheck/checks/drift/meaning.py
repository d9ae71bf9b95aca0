"""DRF004-DRF006: both sides read the same prompt, mean the same distribution, and compute it as precisely."""

from __future__ import annotations

import math

from rlcheck.check import Verdict, check, fail, passed, skip, unknown, warn
from rlcheck.checks.drift.equal import OWN_TEMPLATE
from rlcheck.checks.drift.growth import growth
from rlcheck.checks.drift.reading import (
    DRIFT_METRICS,
    K1,
    K3,
    LOG_CORR,
    MISMATCH,
    PROB_DIFF,
    SLOPE,
    Series,
    device_of,
    entropy_shift,
    is_truncated,
    series,
    temperature_of,
    two_dtypes,
)
from rlcheck.checks.drift.start import Start, is_bent, rounding_reaches, runs_off, start
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of, setting
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.measure.drift.bands import band, number
from rlcheck.measure.run.look import charted, median

_LENGTH = "training/rollout_prompt_length_diff"
_WHOLE = "actor_rollout_ref.rollout.temperature=1.0"
_UNCUT = "actor_rollout_ref.rollout.top_p=1.0"
_UNCUT_K = "actor_rollout_ref.rollout.top_k=-1"


@check("DRF004", "Engine and training read the same prompt", needs=NEEDS, playbook="drift-prompts-differ",
       problem="Engine and training read different prompts")  # fmt: skip
def prompts_are_the_same(facts: Facts) -> Verdict:
    """The prompt tokens that the actor reads are those that the engine answered.

    What it does:
        Reads training/rollout_prompt_mismatch, the share of rows whose prompt tokens differ between the two sides, and
        by how many tokens. Without it, looks for log-probabilities that hardly correlate at the first step.

    Why it matters:
        The actor learns answers to questions that were not asked. Rewards may still rise for a while, so the fault is
        not noticed.
    """
    run = run_of(facts)
    mismatch = curve_of(run, MISMATCH)
    if mismatch is not None:
        share = max(mismatch.values)
        if share <= 0:
            return passed(f"the same tokens in every row of {len(mismatch.values)} steps")
        first = mismatch.steps[next(place for place, value in enumerate(mismatch.values) if value > 0)]
        text, how = _by_tokens(run)
        return fail(
            "the same prompt tokens on both sides",
            f"other ones in {share:.0%} of the rows, from step {first} on: {text}",
            details=drawn(run, MISMATCH, _LENGTH, "training/rollout_log_probs_diff_first", LOG_CORR),
            evidence=(proof(MISMATCH, f"{share:.3g}", first, run.last_step),),
            params={"how": how} | _own_template(run),
        )
    found = series(run)
    if found is None:
        return lacking(run, MISMATCH, *DRIFT_METRICS)
    begun = start(run)
    if begun.kind != "other":
        return skip("the run does not compare prompt tokens, and its drift does not look like other ones")
    return fail(
        "log-probabilities of the same prompt",
        f"at the first step, with the same weights, a correlation of {begun.corr or 0.0:.2f} and "
        f"{found.said(begun.first)}: both sides read other tokens (or hold other weights)",
        details=(charted(found.label, found.curve), *drawn(run, LOG_CORR, "prompt_length/mean")),
        evidence=(proof(found.name, found.written(begun.first), found.curve.steps[0]),),
        params={"how": "chat template, special tokens, truncation"} | _own_template(run),
    )


def _own_template(run: RunFacts) -> dict[str, str]:
    """The override that takes the tokenizer's own template, where the config sets another."""
    return {"override": OWN_TEMPLATE} if setting(run, "actor_rollout_ref.model.custom_chat_template") else {}


def _by_tokens(run: RunFacts) -> tuple[str, str]:
    """What the difference of lengths says, for a reader and as what to look at."""
    lengths = curve_of(run, _LENGTH)
    by = median(lengths.values) if lengths is not None else None
    if not by:
        return "of the same length", "the template or the tokenizer itself"
    more = "more" if by > 0 else "fewer"
    if abs(abs(by) - 1) < 0.05:
        return f"training reads one token {more}: a special token (begin or end of sequence)", "a special token"
    return f"training reads {abs(by):.3g} tokens {more} on average: another chat template", "the chat template"


@check("DRF005", "Log-probabilities are of the distribution that was sampled", needs=NEEDS,
       playbook="drift-other-distribution", caused_by=("DRF004", "RUN057"),
       problem="Log-probabilities are of another distribution than the one sampled")  # fmt: skip
def distribution_is_the_sampled_one(facts: Facts) -> Verdict:
    """Both sides give log-probabilities of the distribution that tokens were drawn from: same temperature, same cut.

    What it does:
        Holds two estimates of KL against each other: k1 = E[-log rho] and k3 = E[rho - log rho - 1] are equal for any
        two models as long as tokens come from the distribution that the engine reports. Raw log-probabilities at a
        temperature other than 1 make k1 negative; a top_p or top_k makes it many times k3. Then compares the spread of
        both sides' log-probabilities at the first step, which a temperature on one side stretches.

    Why it matters:
        Ratio, KL and importance weights are wrong for every token from the first step on, and clipping cuts tokens
        that never changed.
    """
    run = run_of(facts)
    found = series(run)
    if found is None:
        return lacking(run, *DRIFT_METRICS)
    begun = start(run)
    if begun.kind not in ("misreported", "truncated", "temperature"):
        return _no_distribution(run, found, begun)
    text, override = _distribution(run, found, begun)
    params = {"override": override, "cut": "temperature, top_p or top_k", "whose": "the rollout"}
    if not override:
        params = {"factor": f"{begun.ratio or 1.0:.3g}"}
    return fail(
        "log-probabilities of the sampled distribution",
        text,
        details=(charted(found.label, found.curve), *drawn(run, K1, K3, SLOPE, LOG_CORR)),
        evidence=(proof(found.name, found.written(begun.first), found.curve.steps[0], run.last_step),),
        params=params,
    )


def _no_distribution(run: RunFacts, found: Series, begun: Start) -> Verdict:
    known = begun.estimators is not None or begun.ratio is not None or found.curve.values[0] <= found.healthy
    if not known:
        return unknown("drift is there, but neither k1 and k3 nor a slope say of what kind")
    if begun.kind == "none":
        return passed(f"no drift at the first step: {found.said(found.curve.values[0])}")
    return skip("the drift that there is comes from something else")


def _distribution(run: RunFacts, found: Series, begun: Start) -> tuple[str, str]:
    temperature = temperature_of(run)
    at = "" if temperature is None else f" (temperature {temperature:g})"
    if begun.kind == "misreported":
        ratio = f"k1 is {begun.estimators or 0.0:.2f} times k3 where it should equal it"
        return f"the engine reports those of another one than it draws from{at}: {ratio}", _WHOLE
    if begun.kind == "truncated":
        ratio = f"k1 is {begun.estimators or 0.0:.1f} times k3 where it should equal it"
        return f"the engine's are of a part of the vocabulary, the actor's of all: {ratio}", _uncut(run)
    if begun.ratio is None:
        override = _uncut(run) if is_truncated(run) else _WHOLE
        return f"both sides' are alike but apart from the first step on{at}: {_apart(run, found, begun)}", override
    wide = f"the actor's spread {begun.ratio:.2f} times as wide as the engine's, in one line{at}"
    if temperature and _is_near(begun.ratio * temperature):
        said = f"that is 1 / {temperature:g}: training divides by the temperature twice, or the engine samples without"
        return f"{wide}: {said}", ""
    return f"{wide}: only one side divides by the temperature, or each by another", _WHOLE


def _is_near(ratio: float) -> bool:
    """RATIO is 1, as far as spreads say."""
    return abs(math.log(ratio)) < number("temperature_ratio")


def _apart(run: RunFacts, found: Series, begun: Start) -> str:
    """By how much, and whether one side's distribution is the flatter one."""
    shift = entropy_shift(run, found) if is_bent(run, found) else None
    if shift is None:
        return found.said(begun.first)
    flatter = "flatter" if shift > 0 else "sharper"
    return (
        f"{found.said(begun.first)}, and the actor's distribution is always {flatter} than the one that was sampled: "
        "only one side divides by the temperature, or each by another"
    )


def _uncut(run: RunFacts) -> str:
    top_k = number_setting(run, "actor_rollout_ref.rollout.top_k")
    return _UNCUT_K if top_k is not None and top_k > 0 else _UNCUT


@check("DRF006", "Engine and training compute as precisely as configured", needs=NEEDS,
       playbook="drift-imprecise", caused_by=("DRF004", "DRF005", "DRF009", "RUN057"))  # fmt: skip
def both_are_precise(facts: Facts) -> Verdict:
    """Drift at the first step, with the same weights on both sides, is no larger than the dtypes explain.

    What it does:
        Holds the first step's drift, and its usual size, against the band of the coarser of the two configured dtypes,
        when weights, prompts and distribution are not what differs. Warns of two different dtypes where drift is more
        than the finer one makes.

    Why it matters:
        Every update starts from ratios that are not 1, and it cannot be seen whether they should be. In 16 bits that is
        usual up to a size; above it, or with float32 on both sides, a dtype or a kernel is not what it should be.
    """
    run = run_of(facts)
    found = series(run)
    if found is None:
        return lacking(run, *DRIFT_METRICS)
    begun = start(run)
    if begun.kind == "none":
        return _two_dtypes(run, found) or passed(
            f"{found.said(found.curve.values[0])} at the first step, at most {found.written(found.healthy)} expected"
        )
    size = max(begun.first, begun.size)
    if begun.kind == "unclear" and size > rounding_reaches(found):
        return skip(f"{found.said(size)} is more than rounding to 16 bits can make: it has another cause")
    if begun.kind == "unclear" and runs_off(run, found):
        return skip("it grows, or the two sides cease to correlate, as rounding does not: it has another cause")
    if begun.kind != "imprecise":
        return skip("the drift that there is comes from something else")
    if growth(run).kind not in ("none", "unclear"):
        return skip("most of the drift began later, with the weights")
    return _imprecise(run, found, begun)


def _imprecise(run: RunFacts, found: Series, begun: Start) -> Verdict:
    size = max(begun.first, begun.size)
    dtype = f"{found.dtype} on the coarser side" if found.told else f"{found.dtype} (not said, taken for it)"
    say = fail if begun.first > found.problem else warn
    return say(
        f"{found.said(found.healthy, 'at most ')} with {dtype}",
        f"{found.said(begun.first)} at the first step, {found.written(size)} usually: {_like(found, size)}",
        details=(charted(found.label, found.curve), *drawn(run, PROB_DIFF, LOG_CORR, "response_length/mean")),
        evidence=(proof(found.name, found.written(begun.first), found.curve.steps[0], run.last_step),),
        params=_of_dtypes(run, found),
    )


def _of_dtypes(run: RunFacts, found: Series) -> dict[str, str]:
    """Parameters of the playbook: the dtype of both sides, what makes them equal, or nothing where none is said."""
    two = two_dtypes(run)
    if two is not None:
        return {"override": two.override}
    return {"dtype": found.dtype} if found.told else {}


def _two_dtypes(run: RunFacts, found: Series) -> Verdict | None:
    """Drift that is healthy for the coarser dtype, but comes from there being two; None if it does not."""
    two, first = two_dtypes(run), found.curve.values[0]
    if two is None or growth(run).kind != "none":
        return None
    limits = band(two.finer, device_of(run))
    most = (limits.log_probs if found.is_log else limits.probs)[1]
    if first <= most:
        return None
    return warn(
        f"{found.said(most, 'at most ')}, as with {two.finer} on both sides",
        f"two: the engine computes in {two.engine}, the actor in {two.actor}, with {found.said(first)} at "
        f"the first step (healthy for {found.dtype}, more than {two.finer} makes)",
        details=(charted(found.label, found.curve), *drawn(run, PROB_DIFF, LOG_CORR)),
        evidence=(proof(found.name, found.written(first), found.curve.steps[0], run.last_step),),
        params={"override": two.override},
    )


def _like(found: Series, size: float) -> str:
    if found.dtype != "float32":
        return "more than rounding explains"
    coarse = "bfloat16" if size > (2e-4 if found.is_log else 2e-5) else "TF32 or float16"
    return f"one side computes in a coarser dtype, about as {coarse} does"
