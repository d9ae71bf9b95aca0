"""DRF020-DRF022: it could be measured, with equal weights and equal prompts on both sides."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, unknown
from rlcheck.checks.rollout.start import details_of
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import DriftFacts, Variant, WeightsUse
from rlcheck.text import listed

OWN_TEMPLATE = "actor_rollout_ref.model.custom_chat_template=null"
_SHOWN = 6
_PROMPTS = ("engine_prompts", "own_template", "with_bos", "without_first_token", "without_last_token")
"""Variants that change what the training side reads."""


@check("DRF020", "Drift can be measured", needs=("drift",), playbook="rollout-engine-start",
       problem="Drift could not be measured")  # fmt: skip
def it_can_be_measured(facts: Facts) -> Verdict:
    """Engine and training side of the config start, and both give log-probabilities of the same tokens.

    What it does:
        Starts the run's own training ranks and engines, sends the weights, samples, and reads the samples again in
        training. When a stage fails, the error that was raised first is shown.

    Why it matters:
        What does not start here does not start in the run; and drift that is not measured is found when the reward
        falls.
    """
    drift = need(facts.drift)
    failure = drift.failure
    if failure is None:
        seconds = sum(stage.seconds for stage in drift.stages)
        return passed(f"{drift.num_responses} responses to {drift.num_prompts} prompts, in {seconds:.0f} s")
    if failure.kind in ("unsupported", "missing"):
        return unknown(failure.line)
    return fail(
        "a measurement",
        failure.root or failure.line,
        details=(f"in stage: {failure.stage or 'start of Python'}", *details_of(failure)),
        evidence=(evidence("drift.failure.line", failure.line, "the run's processes"),),
    )


@check("DRF021", "The engine holds the actor's weights", needs=("drift.weights",), playbook="drift-weights-not-taken",
       caused_by=("DRF020",),
       problem="The engine does not hold the actor's weights")  # fmt: skip
def weights_are_equal(facts: Facts) -> Verdict:
    """After a sync, every weight of the engine is the one that the training side sent, by checksum.

    What it does:
        Sends weights twice, reads them back from the engine, and compares checksums by name.

    Why it matters:
        One layer that stays behind makes another policy of the engine. No other check can say which.
    """
    found = need(need(facts.drift).weights)
    if not found.num_tensors:
        return unknown("no weight could be read back from the engine")
    if not found.differing:
        return passed(f"{found.num_tensors} tensors, each with the checksum that was sent")
    return fail(
        f"{found.num_tensors} equal tensors",
        f"{len(found.differing)} that differ{_stale(found)}: {listed(found.differing, _SHOWN)}",
        details=found.differing[: 4 * _SHOWN],
        evidence=(evidence("drift.weights.differing", len(found.differing), "checksums after a sync"),),
        params={"when": "in the syncs of this measurement"},
    )


def prompts_explain(drift: DriftFacts) -> Variant | None:
    """The change of the prompt, of those that were tried, that takes the gap away; None if none does."""
    variants = value_or(drift.variants, ())
    return next((variant for variant in variants if variant.removes and variant.name in _PROMPTS), None)


def override_of(variant: Variant) -> dict[str, str]:
    """The override of VARIANT as a parameter of the playbook; none where it has none, or several."""
    return {"override": variant.overrides[0]} if len(variant.overrides) == 1 else {}


def _stale(found: WeightsUse) -> str:
    return f", {found.num_stale} of them as the sync before had left them" if found.num_stale else ""


@check("DRF022", "Engine and training are given the same prompt tokens", needs=("drift.prompts",),
       playbook="drift-prompts-differ", caused_by=("DRF020",),
       problem="Engine and training are given different prompt tokens")  # fmt: skip
def prompts_are_equal(facts: Facts) -> Verdict:
    """The prompt tokens that the engine says it read are those that the training side reads.

    What it does:
        Compares them row by row, for prompts of the run's data and built-in ones, and shows one pair that differs. If
        they are equal and the gap is large, tries other renderings on the training side.

    Why it matters:
        A token more or less at the beginning changes the probability of every token after it.
    """
    found = need(need(facts.drift).prompts)
    if not found.num_prompts:
        return unknown("no prompts were compared")
    variant = prompts_explain(need(facts.drift))
    if not found.num_differing and variant is not None:
        return fail(
            "a training side that agrees for the prompt tokens it is given",
            f"one that agrees with {variant.title}: the engine reads other tokens than it says",
            evidence=(evidence("drift.variants", variant.name, "the same samples read again"),),
            params={"how": "what is sent, and what the engine adds,"} | override_of(variant),
        )
    if not found.num_differing:
        return passed(f"{found.num_prompts} prompts, token by token the same")
    by = found.length_diff_mean
    length = "of the same length" if not by else f"training reads {abs(by):.3g} tokens {'more' if by > 0 else 'fewer'}"
    special = abs(abs(by) - 1) < 0.05
    params = {"how": "a special token"} if special else {"how": "the chat template", "override": OWN_TEMPLATE}
    return fail(
        "equal prompt tokens",
        f"{found.num_differing} of {found.num_prompts} prompts differ ({length})",
        details=(f"engine reads:   {found.example_rollout}", f"training reads: {found.example_train}"),
        evidence=(evidence("drift.prompts.num_differing", found.num_differing, "token IDs of both sides"),),
        params=params,
    )
