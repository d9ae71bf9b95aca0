"""Learning rates, and the data types of training: against what is usual."""

from __future__ import annotations

from rlcheck.check import Verdict, check, passed, skip
from rlcheck.checks.config.limits import limit, run_limits
from rlcheck.checks.config.roles import Role, roles, rough_parameters
from rlcheck.checks.config.say import Case, conclude, config_of, given
from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.facts.document import Facts
from rlcheck.measure.config.picking import usual_dtype


def dtype(run: ConfigFacts, name: str) -> str:
    """A data type by torch's name; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    if name == "auto":
        return "float32" if run.spec.device == "cpu" else "bfloat16"
    return usual_dtype(name)


def _tiny(role: Role) -> bool:
    """Whether the model is smaller than any published language model: it is trained from nothing, at higher rates."""
    parameters = rough_parameters(role.model.value) if role.model.value is not None else 0
    return 0 < parameters < limit("tiny_parameters")


def _role(run: ConfigFacts, name: str) -> Role | None:
    return next((role for role in roles(run) if role.name == name), None)


@check("CFG048", "The policy learns at a usual rate", needs=("config",), playbook="run-learning-rates",
       problem="The policy learns at an unusual rate")  # fmt: skip
def actor_rate(facts: Facts) -> Verdict:
    """Looks at the actor's learning rate, by the size of the model and by LoRA.

    What it does:
        Warns above 1e-4 for full tuning and above 1e-3 for LoRA, unless the model is tiny (under 50 million
        parameters), and at 0. Fails below 0.

    Why it matters:
        A policy that is moved too far in one step does not come back: entropy collapses, the KL runs away, weights may
        become infinite and reach the engine.
    """
    run = config_of(facts)
    role = _role(run, "actor")
    if role is None or not role.spec.trained:
        return skip("no actor is trained")
    rate, lora = role.spec.optim.lr, role.spec.model.lora_rank > 0
    most = limit("max_lora_lr" if lora else "max_actor_lr")
    if rate <= 0:
        status, words = ("warn", "nothing is learned") if rate == 0 else ("fail", "it learns the contrary")
        return conclude(run, [Case(status, "actor.optim.lr", "more than 0", f"{rate:g}: {words}", to=1e-6)], "")
    if rate <= most or _tiny(role):
        return passed(f"{rate:g}")
    what = "LoRA" if lora else "full tuning"
    return conclude(run, [Case("warn", "actor.optim.lr", f"at most {most:g} for {what}", f"{rate:g}", to=1e-6)], "")


@check("CFG049", "The critic learns no slower than the policy", needs=("config",), playbook="run-learning-rates",
       problem="The critic learns more slowly than the policy")  # fmt: skip
def critic_rate(facts: Facts) -> Verdict:
    """Compares the learning rates of critic and actor.

    What it does:
        Warns when the critic's is below the actor's, or above 1e-3 for a model that is not tiny.

    Why it matters:
        Advantages are measured against the critic. One that lags behind the policy gives noise for a baseline; one that
        is too fast is a way to infinite losses.
    """
    run = config_of(facts)
    role = _role(run, "critic")
    if role is None or not role.spec.trained:
        return skip("no critic is trained")
    rate, actor, most = role.spec.optim.lr, run.spec.actor, limit("max_critic_lr")
    same_kind = (actor.model.lora_rank > 0) == (role.spec.model.lora_rank > 0)
    if rate < actor.optim.lr and same_kind:
        case = Case("warn", "critic.optim.lr", f"at least the actor's {actor.optim.lr:g}", f"{rate:g}",
                    to=actor.optim.lr)  # fmt: skip
        return conclude(run, [case], "")
    if rate > most and not _tiny(role) and not role.spec.model.lora_rank:
        return conclude(run, [Case("warn", "critic.optim.lr", f"at most {most:g}", f"{rate:g}", to=1e-5)], "")
    return passed(f"{rate:g} beside {actor.optim.lr:g}")


@check("CFG050", "Weights keep what the optimizer adds", needs=("config",), playbook="run-precision",
       problem="Weights lose what the optimizer adds")  # fmt: skip
def master_weights(facts: Facts) -> Verdict:
    """Looks at the data type in which trained weights are kept.

    What it does:
        Warns when full tuning keeps weights and optimizer state in 16 bits under FSDP. Megatron keeps a float32 copy,
        and an adapter is small beside its own steps. Fails for a data type that does not exist.

    Why it matters:
        bfloat16 has 8 bits of mantissa: a step of 1e-6 on a weight of 0.01 is rounded away. The loss moves, since a few
        small weights do, and the model learns far less than it could.
    """
    run = config_of(facts)
    cases = [case for role in roles(run) for case in _kept(run, role.name, role.spec)]
    return conclude(run, cases, "float32 where weights are trained")


def _kept(run: ConfigFacts, name: str, role: RoleSpec) -> list[Case]:
    field, kept = f"{name}.sharding.model_dtype", role.sharding.model_dtype
    strange = [
        Case("fail", f"{name}.sharding.{part}", "float32, bfloat16 or float16", f"{value}", to="bfloat16")
        for part, value in (("model_dtype", kept), ("dtype", role.sharding.dtype))
        if value not in run_limits().dtypes
    ]
    full = role.trained and not role.model.lora_rank and role.sharding.strategy.startswith("fsdp")
    if strange or not full or dtype(run, kept) == "float32":
        return strange
    found = f"{dtype(run, kept)}: steps of {role.optim.lr:g} are mostly rounded away"
    return [Case("warn", field, "weights kept in float32", found, to="float32")]


@check("CFG051", "Engine and actor compute in one data type", needs=("config",), playbook="run-precision",
       problem="Engine and actor compute in different data types")  # fmt: skip
def same_dtype(facts: Facts) -> Verdict:
    """Compares the engine's data type with that of the actor's forward pass.

    What it does:
        Resolves `auto` and the short spellings, and warns when they differ. Fails for a data type that does not exist.

    Why it matters:
        Log-probabilities of engine and actor then differ more than they need to, which makes every batch off-policy:
        training/rollout_probs_diff_mean shows it.
    """
    run = config_of(facts)
    engine, actor = run.spec.rollout.dtype, run.spec.actor.sharding.dtype
    if engine not in run_limits().dtypes:
        return conclude(run, [Case("fail", "rollout.dtype", "float32, bfloat16 or float16", engine, to="bfloat16")], "")
    ours, theirs = dtype(run, actor), dtype(run, engine)
    if ours == theirs or actor not in run_limits().dtypes or run.spec.actor.sharding.strategy == "megatron":
        return passed(theirs)
    field = "rollout.dtype" if given(run, "rollout.dtype") else "actor.sharding.dtype"
    to = ours if field == "rollout.dtype" else theirs
    found = f"the engine in {theirs}, the actor in {ours}"
    return conclude(run, [Case("warn", field, "one data type for both", found, to=to)], "")
