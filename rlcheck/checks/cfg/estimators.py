"""Advantage estimators: what each needs from the rest of the config."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rlcheck.check import Verdict, check
from rlcheck.checks.cfg.common import is_v1, is_verl, value, who
from rlcheck.checks.cfg.say import Case, conclude, given, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts

# Estimators whose baseline is the other responses to the same prompt (arXiv:2402.03300, 2402.14740, 2501.03262; the
# names are those of verl's registry, verl/trainer/ppo/core_algos.py).
_GROUP = ("grpo", "grpo_passk", "grpo_vectorized", "rloo", "rloo_vectorized", "reinforce_plus_plus_baseline", "opo",
          "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")  # fmt: skip
_VERL = ("gae", "reinforce_plus_plus", "remax", "gpg", *_GROUP)
_TOKEN_BASELINE = ("optimal_token_baseline", "tir_optimal_token_baseline")
_FIELD = "algorithm.adv_estimator"
_SQUARES = "actor_rollout_ref.actor.calculate_sum_pi_squared"


def estimator_cases(run: RunFacts) -> Iterator[Case]:
    """What the chosen estimator needs."""
    spec, name = run.spec, run.spec.algorithm.adv_estimator
    # A name that only the shell knows may be any.
    if is_verl(run) and name not in _VERL and "$" not in name:
        near = difflib.get_close_matches(name, _VERL, 1)
        yield Case("warn", _FIELD, "an estimator of verl's registry, or one that your own code registers", name,
                   near[0] if near else None)  # fmt: skip
    if name in _GROUP and spec.rollout.n < 2:
        # verl refuses one sample for grpo_passk alone; the others run, without a baseline.
        severity = "warn" if is_verl(run) and name != "grpo_passk" else "fail"
        words = f"n > 1: {name} compares the responses to one prompt"
        yield Case(severity, "rollout.n", words, str(spec.rollout.n), 8)
    # A plain file of fields that says nothing of an estimator asks for none.
    if name == "gae" and spec.critic is None and (run.framework != "spec" or given(run, _FIELD)):
        yield Case(
            "fail",
            _FIELD,
            "a critic with gae, or an estimator without one",
            "no critic",
            True if run.framework != "spec" else None,
            "critic.enable",
        )
    if name == "remax" and is_v1(run):
        words = f"trainer.use_v1=False with remax: the newer trainer of {who(run)} does not sample its baseline"
        yield Case("fail", "trainer.use_v1", words, "True", False)
    if name in _TOKEN_BASELINE and is_verl(run) and not value(run, _SQUARES, False):
        yield Case("fail", _SQUARES, f"True with {name} ({who(run)} asserts it)", "False", True)


@check("CFG024", "The estimator has what it needs", needs=("run",), playbook="estimator-needs")
def estimator(facts: Facts) -> Verdict:
    """Holds the advantage estimator against the number of responses and the models of the run.

    What it does:
        Estimators with a group baseline (GRPO, RLOO, …) need rollout.n > 1; GAE needs a critic; ReMax needs a greedy
        response to each prompt, which verl's newer trainer does not generate; optimal token baselines need the sum of
        squared probabilities.

    Why it matters:
        With one response there is no group and without a critic there are no values: a run stops in its first step, or
        the advantage is the bare reward, which is not the algorithm that was asked for and learns far slower.

    How to fix:
        rollout.n=8 is usual for GRPO. For gae, enable the critic.

    References:
        https://arxiv.org/abs/2402.03300
        https://arxiv.org/abs/2402.14740
        https://github.com/verl-project/verl/blob/main/verl/trainer/ppo/core_algos.py
    """
    return conclude(
        run := run_of(facts), list(estimator_cases(run)), f"{run.spec.algorithm.adv_estimator} has what it needs"
    )


def critic_cases(run: RunFacts) -> Iterator[Case]:
    """A critic that nobody reads."""
    name = run.spec.algorithm.adv_estimator
    if run.spec.critic is not None and name != "gae" and (not is_verl(run) or name in _VERL):
        yield Case("warn", "critic.enable", f"no critic with adv_estimator={name}, which does not read values",
                   "a critic that is trained at each step", False)  # fmt: skip


@check("CFG025", "No critic is trained for nothing", needs=("run",), playbook="estimator-needs")
def unused_critic(facts: Facts) -> Verdict:
    """Looks for a critic beside an estimator that does not use its values.

    What it does:
        Reports critic.enable=true with any estimator but gae.

    Why it matters:
        The critic takes the memory of a second model with optimizer, and a good part of each step, for numbers that
        nobody reads.

    How to fix:
        Remove critic.enable, or choose adv_estimator=gae.

    References:
        https://verl.readthedocs.io/en/latest/algo/ppo.html
    """
    return conclude(run := run_of(facts), list(critic_cases(run)), "every model that is trained is used")


def warmup_cases(run: RunFacts) -> Iterator[Case]:
    """Steps in which the critic alone is trained."""
    steps, total = run.spec.critic_warmup, run.spec.total_steps
    if steps <= 0:
        return
    if run.spec.critic is None:
        severity = "fail" if run.framework == "rltrain" else "warn"
        words = "0: there is no critic to warm up, and the actor waits for so many steps"
        yield Case(severity, "critic_warmup", words, str(steps), 0)
    elif total is not None and total > 0 and steps >= total:
        yield Case(
            "fail", "critic_warmup", f"less than the {total} steps of the run", f"{steps}: the actor is never trained"
        )


@check("CFG027", "The actor is trained after the critic's warm-up", needs=("run",), playbook="estimator-needs")
def warmup(facts: Facts) -> Verdict:
    """Compares trainer.critic_warmup with the run.

    What it does:
        Reports a warm-up that is as long as the run, and one without a critic.

    Why it matters:
        Until the warm-up is over the actor is not updated: the run looks alive, rewards stay flat, and the last
        checkpoint is the model of the start.

    How to fix:
        Fewer steps of warm-up; 0 without a critic.

    References:
        https://verl.readthedocs.io/en/latest/examples/config.html
    """
    return conclude(run := run_of(facts), list(warmup_cases(run)), "the actor is trained")
