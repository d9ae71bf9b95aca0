"""KL to the reference policy: counted once, with a weight, and not for nothing."""

from __future__ import annotations

from rlcheck.check import Verdict, check
from rlcheck.checks.config.say import Case, conclude, config_of
from rlcheck.facts.document import Facts
from rlcheck.measure.config.estimators import needs


@check("CFG057", "The KL to the reference counts once", needs=("config",), playbook="run-kl",
       problem="The KL to the reference counts twice")  # fmt: skip
def counted_once(facts: Facts) -> Verdict:
    """Notices KL in the reward together with KL in the loss.

    What it does:
        Warns when use_kl_in_reward and use_kl_loss are both on with a weight above 0.

    Why it matters:
        The same pull towards the reference acts twice, so that neither coefficient means what its paper says.
    """
    run = config_of(facts)
    algorithm, actor = run.spec.algorithm, run.spec.actor
    if not (algorithm.use_kl_in_reward and actor.use_kl_loss and algorithm.kl_coef > 0 and actor.kl_loss_coef > 0):
        return conclude(run, [], "at most once")
    groups = not needs(algorithm.adv_estimator, "critic")
    field = "algorithm.use_kl_in_reward" if groups else "actor.use_kl_loss"
    found = f"in the reward (weight {algorithm.kl_coef:g}) and in the loss (weight {actor.kl_loss_coef:g})"
    return conclude(run, [Case("warn", field, "KL in the reward or in the loss", found, to=False)], "")


@check("CFG058", "KL settings have an effect", needs=("config",), playbook="run-kl",
       problem="A KL setting has no effect, or a harmful one")  # fmt: skip
def in_effect(facts: Facts) -> Verdict:
    """Looks for KL settings that are switched on and do nothing, or the contrary.

    What it does:
        Warns of negative weights, and mentions weights of 0 (the reference is loaded and only measured) and an adaptive
        controller without KL in the reward.

    Why it matters:
        A reference model costs its weights' memory and a forward pass over every sample of each step. A negative weight
        rewards leaving the reference.
    """
    run = config_of(facts)
    algorithm, actor, cases = run.spec.algorithm, run.spec.actor, list[Case]()
    adaptive = algorithm.kl_ctrl_type == "adaptive"
    uses = (
        ("algorithm.kl_coef", "algorithm.use_kl_in_reward", algorithm.use_kl_in_reward, algorithm.kl_coef),
        ("actor.kl_loss_coef", "actor.use_kl_loss", actor.use_kl_loss, actor.kl_loss_coef),
    )
    for field, switch, on, weight in uses:
        name = switch.rpartition(".")[2]
        if on and weight < 0:
            cases += [Case("warn", field, "a weight of 0 or more", f"{weight:g}: the reference repels", to=-weight)]
        elif on and weight == 0 and not (adaptive and switch.startswith("algorithm")):
            cases += [Case("warn", field, "a weight above 0", f"{name} with weight 0 loads a reference to measure by",
                           to=False, also=switch)]  # fmt: skip
    if adaptive and not algorithm.use_kl_in_reward:
        cases += [Case("info", "algorithm.kl_ctrl_type", "KL in the reward to control",
                       "an adaptive KL controller without use_kl_in_reward", to="fixed")]  # fmt: skip
    if adaptive and algorithm.use_kl_in_reward and algorithm.kl_coef == 0:
        cases += [Case("warn", "algorithm.kl_coef", "a start above 0 for the adaptive controller",
                       "0, which it multiplies and never leaves", to=0.001)]  # fmt: skip
    return conclude(run, cases, "as set")
