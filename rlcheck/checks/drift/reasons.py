"""DRF023, DRF024, DRF028: what a measured gap comes from, by what takes it away."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.drift.equal import prompts_explain
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import DriftFacts, Gap, OperationGap, Variant
from rlcheck.measure.drift.bands import FLOAT32, band, coarser, dtype_name, explained, number

_STEMS = ("DRF020", "DRF021", "DRF022")
_TRAINING = {
    "engine_responses": "score the token IDs that the engine sampled; text that is tokenized again gives other ones",
    "train_reading": "look at its own code between logits and log-probabilities: the shift by one token between logits "
    "and targets, padding, packed rows, a fused cross-entropy",
}
"""What to do where not the temperature but what training scores is another."""
_HELPS = 0.5
"""A change that leaves less than this share is worth a word where none removes the gap."""


@check("DRF023", "Engine and training mean the same distribution", needs=("drift.gap",),
       playbook="drift-other-distribution",
       caused_by=_STEMS,
       problem="Engine and training mean different distributions")  # fmt: skip
def distributions_are_the_same(facts: Facts) -> Verdict:
    """No difference of convention explains the gap: temperature, raw log-probabilities, a cut vocabulary.

    What it does:
        Where the gap is more than rounding, reads the same samples with the training side at other temperatures, and
        samples again from the whole vocabulary, and sees whether one of them takes the gap away.

    Why it matters:
        Such a gap is no noise: every ratio and every importance weight is wrong in the same direction.
    """
    drift = need(facts.drift)
    gap = need(drift.gap)
    if gap.log_probs_diff_mean <= explained(drift):
        return passed(f"mean |log p| difference {gap.log_probs_diff_mean:.2g}: nothing to explain")
    wrong = [variant for variant in value_or(drift.variants, ()) if variant.family == "wrong"]
    if prompts_explain(drift) is not None:
        return skip("other prompt tokens explain the gap")
    removing = [variant for variant in wrong if variant.removes]
    if removing:
        found = removing[0]
        return fail(
            "the same distribution on both sides",
            f"a gap of {gap.log_probs_diff_mean:.3g} in log-probabilities that goes away with {found.title}",
            details=_tried(wrong),
            evidence=(evidence("drift.variants", found.name, "the same samples read again"),),
            params=_overrides(found) | _convention(found),
        )
    if not any(variant.gap is not None for variant in wrong):
        return unknown("no other convention was tried")
    return passed(f"{len(wrong)} other conventions tried, none explains the gap", details=_tried(wrong))


@check("DRF024", "Rounding explains the gap that is left", needs=("drift.gap",), playbook="drift-imprecise",
       caused_by=(*_STEMS, "DRF023", "DRF028"),
       problem="Rounding does not explain the gap that is left")  # fmt: skip
def rounding_explains_it(facts: Facts) -> Verdict:
    """With equal weights, prompts and conventions, the gap is no larger than the dtypes' rounding.

    What it does:
        Holds the mean difference of log-probabilities against what the coarser of the two dtypes explains. Where it is
        more, changes one thing at a time (dtype of the logits, attention, graphs, caches, batch, parallel sizes) and
        names the change that takes the gap away, as overrides, or else the operation that is wrong.

    Why it matters:
        A gap above rounding is a defect of a kernel or a setting that can be fixed; importance sampling only
        covers it.
    """
    drift = need(facts.drift)
    gap = need(drift.gap)
    size, most = gap.log_probs_diff_mean, explained(drift)
    dtype = coarser(drift.rollout_dtype, drift.train_dtype) or "bfloat16"
    if size <= most:
        return passed(f"mean |log p| difference {size:.2g}, rounding of {dtype} explains up to {most:.2g}")
    if _others_differ(drift):
        return skip("weights or prompts differ: rounding is not the question yet")
    variants = value_or(drift.variants, ())
    if any(variant.removes and variant.family == "wrong" for variant in variants):
        return skip("the gap is one of convention or of prompts, not of rounding")
    text, params = _mended_by([variant for variant in variants if variant.family != "wrong"], gap)
    if not params:
        text += _where(drift)
    say = fail if size > band(dtype, drift.device).log_probs[1] else warn
    return say(
        f"mean |log p| difference at most {most:.2g} ({dtype})",
        f"{size:.3g}: {text}",
        details=_tried(variants),
        evidence=(evidence("drift.gap.log_probs_diff_mean", f"{size:.3g}", f"{gap.num_tokens} tokens"),),
        params=_same_dtype(drift) | params,
    )


def _where(drift: DriftFacts) -> str:
    """The operation that is wrong by more than rounding, or how to find it."""
    found = value_or(drift.operations, ())
    if not found:
        return "; rlcheck drift CONFIG --operations says which operation of the model it enters at"
    worst = max(found, key=_share)
    return f"; {_words(worst)} is no rounding (DRF028)" if _share(worst) > _most_of_one(drift) else ""


def _most_of_one(drift: DriftFacts) -> float:
    """What rounding makes an operation differ by itself, as a share of its usual value."""
    exact = coarser(drift.rollout_dtype, drift.train_dtype) == FLOAT32
    return number("operation_share" if exact else "operation_share_16_bits")


def _share(each: OperationGap) -> float:
    """What it adds by itself, as a share of its usual value."""
    return _own(each) / each.scale if each.scale else 0.0


def _same_dtype(drift: DriftFacts) -> dict[str, str]:
    """The dtype of both sides as a parameter of the playbook; none where they have two, or one is not known."""
    one, other = dtype_name(drift.rollout_dtype), dtype_name(drift.train_dtype)
    return {"dtype": one} if one and one == other else {}


def _mended_by(variants: list[Variant], gap: Gap) -> tuple[str, dict[str, str]]:
    """What takes the gap away, or most of it, in words and as parameters of the playbook."""
    tried = [variant for variant in variants if variant.gap is not None]
    removing = [variant for variant in tried if variant.removes]
    if removing:
        found = removing[0]
        return f"goes away with {found.title}", _overrides(found)
    if not tried:
        return "no change was tried that could explain it", {}
    best = min(tried, key=_left)
    if _left(best) < _HELPS * gap.log_probs_diff_mean:
        return f"none of {len(tried)} changes removes it; {best.title} leaves {_left(best):.3g}", _overrides(best)
    return f"none of {len(tried)} changes removes it", {}


def _overrides(variant: Variant) -> dict[str, str]:
    """Parameters of the playbooks: a fix has one place for each override, and there are fixes of one, two and three."""
    given = variant.overrides
    names = {1: ("override",), 2: ("first_of_2", "second_of_2"), 3: ("first_of_3", "second_of_3", "third_of_3")}
    return dict(zip(names.get(len(given), ()), given, strict=True)) if len(given) in names else {}


def _convention(variant: Variant) -> dict[str, str]:
    """Parameters of the playbook by what VARIANT says is meant otherwise; only fixes that fit it are shown."""
    words = _TRAINING.get(variant.name)
    if words is not None:
        return {"training": words}
    if variant.name == "uncut_sampling":
        return {"cut": "top_p or top_k"}
    if variant.name == "train_temperature":
        return {"whose": "the rollout"}
    return {"cut": "temperature", "whose": "the rollout"}


def _left(variant: Variant) -> float:
    return variant.gap.log_probs_diff_mean if variant.gap is not None else float("inf")


def _tried(variants: tuple[Variant, ...] | list[Variant]) -> tuple[str, ...]:
    return tuple(
        f"{variant.title}: "
        + (f"leaves {_left(variant):.2g}" if variant.gap is not None else f"not tried ({variant.error})")
        + (f"  [{' '.join(variant.overrides)}]" if variant.overrides else "")
        for variant in variants
    )


def _others_differ(drift: DriftFacts) -> bool:
    weights, prompts = drift.weights.value, drift.prompts.value
    return bool((weights and weights.differing) or (prompts and prompts.num_differing))


@check("DRF028", "Operations differ only by rounding", needs=("drift.operations",),
       playbook="drift-operations", caused_by=_STEMS)  # fmt: skip
def operations_are_equal(facts: Facts) -> Verdict:
    """On one sequence, every operation of the model gives the same numbers on both sides, to the bit.

    What it does:
        Records the output of each operation on both sides, in the order of computation, and names the first one that
        differs although its inputs are equal, and those that add most by themselves. Fails where one adds more than
        rounding does: 1 % of its usual value in float32.

    Why it matters:
        Only where nothing differs is a run truly on policy. Otherwise this says which kernel to look at.
    """
    drift = need(facts.drift)
    found = need(drift.operations)
    if not found:
        return unknown("no operation could be compared")
    differing = [each for each in found if not each.equal]
    if not differing:
        return passed(f"{len(found)} operations, all equal to the bit")
    enters = [each for each in found if _adds(each)]
    first = enters[0] if enters else differing[0]
    text = f"{len(differing)} of {len(found)} operations differ; the first is {_words(first)}"
    most = sorted(enters, key=_own, reverse=True)[:5]
    details = tuple(f"adds by itself: {_words(each)}" for each in most)
    if drift.batch_invariant:
        text += f"; the mode makes the engine agree with itself only: training computes {_place(first)} otherwise"
        return warn("equal outputs in batch-invariant mode", text, details=details,
                    evidence=(evidence("drift.operations", first.name, "one sequence on both sides"),))  # fmt: skip
    share = _most_of_one(drift)
    wrong = [each for each in enters if _share(each) > share]
    if wrong:
        return fail(
            f"operations that differ by less than {share:.0%} of their usual value by themselves",
            f"{len(wrong)} of {len(found)} differ by more, the first is {_words(wrong[0])}: no rounding makes that",
            headline=f"The two sides compute {_place(wrong[0])} differently",
            details=details,
            evidence=(evidence("drift.operations", wrong[0].name, "one sequence on both sides"),),
            params={"operation": _place(wrong[0])},
        )
    return info(text, details=details)


def _adds(each: OperationGap) -> bool:
    """It differs on equal inputs, whatever came before."""
    return _own(each) > 0 or (each.input_equal and not each.equal)


def _own(each: OperationGap) -> float:
    if each.own_max_diff is not None:
        return each.own_max_diff
    return each.max_diff if each.input_equal else 0.0


def _place(each: OperationGap) -> str:
    return f"{each.name} of layer {each.layer}" if each.layer >= 0 else each.name


def _words(each: OperationGap) -> str:
    size = _own(each) or each.max_diff
    share = f", {size / each.scale:.1g} of its usual value" if each.scale else ""
    return f"{_place(each)} (max |difference| {size:.2g}{share})"
