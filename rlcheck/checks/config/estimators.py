"""Advantage estimators: what each needs from the rest of the config."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rlcheck.check import Verdict, check
from rlcheck.checks.config.say import Case, conclude, config_of, given
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_v1, is_verl, stops, value, who
from rlcheck.measure.config.estimators import VERL, needs

_TOKEN_BASELINE = ("optimal_token_baseline", "tir_optimal_token_baseline")
_FIELD = "algorithm.adv_estimator"
_SQUARES = "actor_rollout_ref.actor.calculate_sum_pi_squared"


def estimator_cases(run: ConfigFacts) -> Iterator[Case]:
    """What the chosen estimator needs."""
    spec, name = run.spec, run.spec.algorithm.adv_estimator
    # A name that only the shell knows may be any.
    if is_verl(run) and name not in VERL and "$" not in name:
        near = difflib.get_close_matches(name, VERL, 1)
        yield Case("warn", _FIELD, "an estimator of verl's registry, or one that your own code registers", name,
                   near[0] if near else None)  # fmt: skip
    if needs(name, "group") and spec.rollout.n < 2:
        # verl refuses one sample for grpo_passk alone; the others run, without a baseline.
        severity = "warn" if is_verl(run) and name != "grpo_passk" else stops(run, "CFG024")
        words = f"n > 1: {name} compares the responses to one prompt"
        yield Case(severity, "rollout.n", words, str(spec.rollout.n), 8)
    # A plain file of fields that says nothing of an estimator asks for none.
    if needs(name, "critic") and spec.critic is None and (run.framework != "spec" or given(run, _FIELD)):
        yield Case(
            "fail",
            _FIELD,
            f"a critic with {name}, or an estimator without one",
            "no critic",
            True if run.framework != "spec" else None,
            "critic.enable",
        )
    if needs(name, "greedy") and is_v1(run):
        words = f"trainer.use_v1=False with {name}: the newer trainer of {who(run)} does not sample its baseline"
        yield Case("fail", "trainer.use_v1", words, "True", False)
    if name in _TOKEN_BASELINE and is_verl(run) and not value(run, _SQUARES, False):
        yield Case("fail", _SQUARES, f"True with {name} ({who(run)} asserts it)", "False", True)


@check("CFG024", "The estimator has what it needs", needs=("config",), playbook="estimator-needs",
       problem="The estimator lacks what it needs")  # fmt: skip
def estimator(facts: Facts) -> Verdict:
    """Holds the advantage estimator against the number of responses and the models of the run.

    What it does:
        Estimators with a group baseline (GRPO, RLOO, …) need rollout.n > 1; GAE needs a critic; ReMax needs a greedy
        response to each prompt, which verl's newer trainer does not generate; optimal token baselines need the sum of
        squared probabilities.

    Why it matters:
        With one response there is no group and without a critic there are no values: a run stops in its first step, or
        the advantage is the bare reward, which is not the algorithm that was asked for and learns far slower.
    """
    return conclude(
        run := config_of(facts), list(estimator_cases(run)), f"{run.spec.algorithm.adv_estimator} has what it needs"
    )


def critic_cases(run: ConfigFacts) -> Iterator[Case]:
    """A critic whose values are not used."""
    name = run.spec.algorithm.adv_estimator
    if run.spec.critic is not None and not needs(name, "critic") and (not is_verl(run) or name in VERL):
        yield Case("warn", "critic.enable", f"no critic with adv_estimator={name}, which does not read values",
                   "a critic that is trained at each step", False)  # fmt: skip


@check("CFG025", "No critic is trained for nothing", needs=("config",), playbook="estimator-needs",
       problem="A critic is trained for nothing")  # fmt: skip
def unused_critic(facts: Facts) -> Verdict:
    """Looks for a critic beside an estimator that does not use its values.

    What it does:
        Reports critic.enable=true with any estimator but gae.

    Why it matters:
        The critic takes the memory of a second model with optimizer, and a good part of each step, for numbers that
        are not used.
    """
    return conclude(run := config_of(facts), list(critic_cases(run)), "every model that is trained is used")


def warmup_cases(run: ConfigFacts) -> Iterator[Case]:
    """Steps in which the critic alone is trained: those before step `critic_warmup`, in verl and in rltrain."""
    steps, total = run.spec.critic_warmup, run.spec.total_steps
    if steps <= 0:
        return
    if run.spec.critic is None:
        severity = "fail" if run.framework == "rltrain" else "warn"
        words = "0: there is no critic to warm up, and the actor waits for so many steps"
        yield Case(severity, "critic_warmup", words, str(steps), 0)
    elif total is not None and total > 0 and steps >= total:
        found = "trained in the last step alone" if steps == total else "never trained"
        yield Case("fail", "critic_warmup", f"less than the {total} steps of the run", f"{steps}: the actor is {found}")


@check("CFG027", "The actor is trained after the critic's warm-up", needs=("config",), playbook="estimator-needs",
       problem="The critic's warm-up leaves no step for the actor")  # fmt: skip
def warmup(facts: Facts) -> Verdict:
    """Compares trainer.critic_warmup with the run.

    What it does:
        Reports a warm-up that is as long as the run, and one without a critic.

    Why it matters:
        Until the warm-up is over the actor is not updated: the run looks alive, rewards stay flat, and the last
        checkpoint is the model of the start.
    """
    return conclude(run := config_of(facts), list(warmup_cases(run)), "the actor is trained")
