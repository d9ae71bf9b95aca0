"""CFG076 and CFG077: what makes engine and training read one answer in two ways, though their weights are the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlcheck.check import Verdict, check, passed, skip
from rlcheck.checks.config.roles import size
from rlcheck.checks.config.say import Case, conclude, config_of, unclear
from rlcheck.facts.base import Fact, why_missing
from rlcheck.facts.config import ConfigFacts, ModelFacts
from rlcheck.facts.document import Facts

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_REPLAYS = re.compile(r"(?:router|routing)_replay(?:\.(?:mode|enabled?))?$")
"""How keys end that turn the replay of the routing on; others below them only say how."""
_OFF = (None, False, "", "disabled", "false", "none")
_OWN_WAY = ("gspo", "geo_mean", "cispo")
"""Losses whose ratio is of whole answers, or is never above its cap."""
_TRAIN_MODE = ("verl", "trl", "slime", "miles")
"""Trainers whose update runs the model in train(), with the dropout that its config has."""
_DROPOUTS = (
    "attention_dropout", "hidden_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "resid_dropout", "embedding_dropout", "activation_dropout", "dropout", "layerdrop",
)  # fmt: skip
_NO_MODEL = "the actor's sizes are not known"
_MEGATRON = ("attention-dropout", "hidden-dropout")


@check("CFG076", "The experts of training are those of the engine", needs=("config",),
       playbook="run-rollout-correction", problem="Training may choose other experts than the engine did")  # fmt: skip
def experts(facts: Facts) -> Verdict:
    """Looks at how a mixture of experts is kept the same in engine and training.

    What it does:
        Where the actor is a mixture of experts, looks for the replay of the engine's routing (R2, R3), a correction of
        the policy's ratio, or a loss that judges whole answers.

    Why it matters:
        Engine and training choose experts from scores that rounding moves: of one token in ten or more, some layer
        takes another expert. Ratios are then off by far more than by rounding, and runs collapse.
    """
    run = config_of(facts)
    model = run.models.get("actor", Fact[ModelFacts]())
    if model.value is None:
        return unclear(why_missing(model)) or skip(_NO_MODEL)
    found = next(((name, many) for name in _EXPERTS if (many := size(model.value, name)) > 1), None)
    if found is None:
        return skip("the actor is no mixture of experts")
    if run.spec.rollout.in_process:
        return passed("the training's own model generates")
    if (held := next(_held(run), None)) is not None:
        return passed(held)
    words = f"{found[1]} experts ({found[0]}), and neither replay nor correction"
    case = Case("warn", "algorithm.rollout_is", "the engine's routing replayed, or its probabilities corrected for",
                words, to="token")  # fmt: skip
    return conclude(run, [case], "")


def _held(run: ConfigFacts) -> Iterator[str]:
    """What keeps engine and training together."""
    for key, value in run.values.items():
        if _REPLAYS.search(key.replace("-", "_")) and not isinstance(value, Mapping) and value not in _OFF:
            yield f"{key} replays the engine's or the first pass's routing"
    algorithm = run.spec.algorithm
    if algorithm.rollout_is or algorithm.bypass_mode or run.values.get("algorithm.rollout_correction.rollout_rs"):
        yield "the engine's probabilities are corrected for"
    if run.spec.actor.loss_mode in _OWN_WAY:
        yield f"the loss ({run.spec.actor.loss_mode}) does not take the ratio of single tokens"


@check("CFG077", "The policy learns without dropout", needs=("config",), playbook="log-probs-read-otherwise",
       problem="Dropout is on while the policy learns")  # fmt: skip
def dropout(facts: Facts) -> Verdict:
    """Looks for dropout in the forward pass of the update.

    What it does:
        Reads the dropout rates of the actor's config.json and Megatron's (0.1 unless set), for trainers whose update
        runs the model in train(). rltrain sets all of them to 0.

    Why it matters:
        The old log-probabilities and the engine's come from a pass without dropout. The new ones come from another
        network at each pass, so that ratio, clip and KL measure dropout.
    """
    run = config_of(facts)
    if run.framework == "rltrain":
        return passed("rltrain sets every dropout rate to 0")
    if run.framework not in _TRAIN_MODE:
        return skip(f"whether {run.framework} trains with the model's dropout is not known here")
    if run.values.get("disable_dropout") is True:
        return passed("disable_dropout")
    rates = {name: run.values[name] for name in _MEGATRON if name in run.values}
    if run.values.get("train-backend", "megatron") != "megatron":
        rates = {}
    cases = [Case("warn", name, f"{name} 0", f"{rate:g}", to=0.0) for name, rate in rates.items() if (rate or 0) > 0]
    if not rates:
        model = run.models.get("actor", Fact[ModelFacts]())
        if model.value is None:
            return unclear(why_missing(model)) or skip(_NO_MODEL)
        cases += [
            Case("warn", "actor.model.path", f"{name} 0 in its config.json", f"{name} {rate:g}")
            for name, rate in _rates(model.value.sizes)
        ]
    return conclude(run, cases, "every dropout rate is 0")


def _rates(sizes: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name in _DROPOUTS:
        rate = sizes.get(name)
        if isinstance(rate, float) and rate > 0:
            yield name, rate
