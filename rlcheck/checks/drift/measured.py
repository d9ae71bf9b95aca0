"""DRF025-DRF027: how large a measured gap is, whether importance weights can correct for it, and where it grows."""

from __future__ import annotations

from rlcheck.check import Evidence, Verdict, check, evidence, fail, passed, skip, unknown, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import Bin, Gap
from rlcheck.measure.drift.bands import band, coarser, explained, number

_CAUSES = ("DRF020", "DRF021", "DRF022", "DRF023", "DRF024")
_ENOUGH_TOKENS = 32
_WORST_SHOWN = 3


@check("DRF025", "Engine and training agree within their band", needs=("drift.gap",),
       playbook="rollout-and-training-differ", caused_by=_CAUSES,
       problem="Engine and training differ by more than their band")  # fmt: skip
def gap_is_in_band(facts: Facts) -> Verdict:
    """The mean difference of probabilities is what healthy runs of these dtypes have.

    What it does:
        Holds mean |p_train - p_engine| of the sampled tokens, as verl defines it, against the band of the coarser of
        the two dtypes.

    Why it matters:
        It is the number that people compare: in 16 bits, below 0.005 is healthy and above 0.01 runs suffer.
    """
    drift = need(facts.drift)
    gap = need(drift.gap)
    if not gap.num_tokens:
        return unknown("no token was sampled")
    dtype = coarser(drift.rollout_dtype, drift.train_dtype)
    healthy, problem = band(dtype, drift.device).probs
    size = gap.probs_diff_mean
    details = tuple(
        f"{token.token!r} at {token.position}: engine {token.rollout_prob:.4g}, training {token.train_prob:.4g}"
        for token in drift.worst[:_WORST_SHOWN]
    )
    proof = (_proof("probs_diff_mean", f"{size:.3g}", gap),)
    text = f"{size:.3g} over {gap.num_tokens} tokens (max {gap.probs_diff_max:.3g})"
    if size <= healthy:
        return passed(
            f"mean |difference of probabilities| {text}; up to {healthy:g} is healthy with {dtype or '16 bits'}"
        )
    say = fail if size > problem else warn
    expected = f"mean |difference of probabilities| at most {healthy:g} ({dtype or 'taken as bfloat16'})"
    return say(expected, text, details=details, evidence=proof, params={"step": "1"})


def _proof(field: str, value: object, gap: Gap) -> Evidence:
    return evidence(f"drift.gap.{field}", value, f"{gap.num_tokens} tokens")


@check("DRF026", "Measured importance weights are healthy", needs=("drift.gap",),
       playbook="rollout-and-training-differ",
       caused_by=_CAUSES,
       problem="Measured importance weights are not healthy")  # fmt: skip
def measured_weights_are_healthy(facts: Facts) -> Verdict:
    """Weights p_train / p_engine of the sampled tokens have mean 1, little spread, and nearly the whole sample counts.

    What it does:
        Holds their mean, standard deviation and effective sample size, and KL, against the bounds of verl's
        documentation.

    Why it matters:
        With these weights the run would correct for its drift. Far from 1, they throw most of the batch away.
    """
    gap = need(need(facts.drift).gap)
    if not gap.num_tokens:
        return unknown("no token was sampled")
    low, high = number("is_mean_low"), number("is_mean_high")
    grave = [
        (f"mean weight between {low:g} and {high:g}", f"mean {gap.is_mean:.3g}", low <= gap.is_mean <= high),
        (
            f"an effective sample of at least {number('ess'):g}",
            f"effective sample {gap.ess:.3g}",
            gap.ess >= number("ess"),
        ),
    ]
    light = [
        (
            f"a standard deviation of at most {number('is_std'):g}",
            f"standard deviation {gap.is_std:.3g}",
            gap.is_std <= number("is_std"),
        ),
        (f"|KL| at most {number('kl'):g}", f"KL {gap.kl:.3g}", abs(gap.kl) <= number("kl")),
    ]
    outside = [(expected, found) for expected, found, fine in (*grave, *light) if not fine]
    if not outside:
        return passed(f"mean {gap.is_mean:.4f}, std {gap.is_std:.2g}, effective sample {gap.ess:.4f}, KL {gap.kl:.2g}")
    say = warn if all(fine for _, _, fine in grave) else fail
    return say(
        "; ".join(expected for expected, _ in outside),
        ", ".join(found for _, found in outside),
        evidence=(_proof("ess", f"{gap.ess:.3g}", gap),),
    )


@check("DRF027", "The gap does not grow with position or length", needs=("drift.gap",), playbook="drift-grows",
       caused_by=_CAUSES,
       problem="The gap grows with position or length")  # fmt: skip
def gap_does_not_grow(facts: Facts) -> Verdict:
    """Tokens late in a response, or of long sequences, are as close on both sides as early ones.

    What it does:
        Compares the mean difference of log-probabilities in the first and the last bin, by position in the response and
        by length of the sequence, that hold enough tokens.

    Why it matters:
        A gap that grows with length is not the rounding of single operations: attention over long caches, rotary
        embeddings or positions differ. It is small in short tests and large in the run.
    """
    drift = need(facts.drift)
    most = explained(drift)
    grown = [
        (name, first, last)
        for name, bins in (("position", drift.by_position), ("length", drift.by_length))
        if (ends := _ends(bins)) is not None
        for first, last in (ends,)
    ]
    if not grown:
        return skip("all tokens are about as far in, and of sequences of about one length")
    growing = [
        each for each in grown
        if each[2].log_probs_diff_mean > max(most, number("grows_with_length") * each[1].log_probs_diff_mean)
    ]  # fmt: skip
    if not growing:
        words = ", ".join(f"by {name} {_words(first)} to {_words(last)}" for name, first, last in grown)
        return passed(f"mean |log p| difference {words}")
    name, first, last = growing[0]
    return warn(
        f"a gap at any {name} of at most {number('grows_with_length'):g} times that at the smallest",
        f"{_words(first)} at {name} {first.low:g}, {_words(last)} from {last.low:g} on",
        evidence=(evidence(f"drift.by_{name}", _words(last), f"{last.num_tokens} tokens"),),
        params={"by": name},
    )


def _ends(bins: tuple[Bin, ...]) -> tuple[Bin, Bin] | None:
    """The first and the last bin with enough tokens; None if there is one at most."""
    full = [each for each in bins if each.num_tokens >= _ENOUGH_TOKENS]
    return (full[0], full[-1]) if len(full) >= 2 else None


def _words(each: Bin) -> str:
    return f"{each.log_probs_diff_mean:.2g}"
