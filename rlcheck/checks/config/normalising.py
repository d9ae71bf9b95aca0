"""CFG078: whether the sum of a step's loss is divided by what the step has."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from rlcheck.check import Verdict, check, passed, skip, unknown
from rlcheck.checks.config.say import Case, conclude, config_of
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts

_OF_TOKENS = ("dapo", "cispo", "vespo")
# trl/trainer/grpo_trainer.py: num_items_in_batch, scaled to the accumulated micro batches from 1.9.1 on
_FIRST, _MENDED = Version("0.22.0"), Version("1.9.1")


@check("CFG078", "The loss is divided by the tokens that it adds up", needs=("config",),
       playbook="loss-counted-many-times", problem="The loss is divided by other tokens than it adds up")  # fmt: skip
def normalised(facts: Facts) -> Verdict:
    """Compares what TRL's loss adds up for an optimizer step with what it divides by.

    What it does:
        Where loss_type is dapo, cispo or vespo and TRL is older than 1.9.1, compares steps_per_generation with
        gradient_accumulation_steps: the sum runs over the second, the divisor over the first.

    Why it matters:
        Gradients are off by the ratio of the two, without a word: half or four times as large, and the clip of their
        norm acts elsewhere.
    """
    run = config_of(facts)
    if run.framework != "trl":
        return skip("a rule of TRL's")
    loss, version = run.values.get("loss_type"), _version(run)
    if loss not in _OF_TOKENS:
        return skip(f"loss_type is none of {', '.join(_OF_TOKENS)}")
    if version is None:
        return unknown(f"the release of TRL is not known: '{run.version}'")
    if not _FIRST <= version < _MENDED:
        return passed(f"TRL {version} divides by what it adds up")
    summed, divided = _steps(run)
    if min(summed, divided) < 1:
        return unknown(f"{summed} micro batches of an optimizer step and {divided} of a generation make no ratio")
    if summed == divided:
        return passed("a generation is one optimizer step")
    words = f"gradients {summed / divided:g} times as large: {divided} of a generation, {summed} of an optimizer step"
    case = Case("warn", "steps_per_generation", f"as many as gradient_accumulation_steps, or TRL {_MENDED}", words)
    return conclude(run, [case], "")


def _version(run: ConfigFacts) -> Version | None:
    try:
        return Version(run.version)
    except InvalidVersion:
        return None


def _steps(run: ConfigFacts) -> tuple[int, int]:
    """Micro batches of an optimizer step and of a generation, or the prompts of each, which have the same ratio."""
    summed, divided = run.values.get("gradient_accumulation_steps") or 1, run.values.get("steps_per_generation")
    if divided is None and run.values.get("generation_batch_size") is not None:
        return run.spec.actor.mini_batch_size or 0, run.spec.data.train_batch_size
    return summed, summed if divided is None else divided
