"""Parallelism of training: sequence parallel, shards, and roles against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from rlcheck.check import Verdict, check
from rlcheck.checks.config.roles import size
from rlcheck.checks.config.say import Case, conclude, config_of, given, unclear
from rlcheck.facts.base import why_missing
from rlcheck.facts.config import ConfigFacts, ModelFacts, RoleSpec
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_fsdp, is_legacy, nearest_divisor, roles, stops, who, world_size

HEADS, KV_HEADS = "num_attention_heads", "num_key_value_heads"


def sequence_cases(run: ConfigFacts) -> Iterator[Case]:
    """Sequence parallel goes with removed padding, divides the GPUs and the heads."""
    for role in roles(run):
        sequence, field = role.sharding.sequence_parallel, _sequence_key(run, role)
        follows = role.name == "ref" and sequence == run.spec.actor.sharding.sequence_parallel and not given(run, field)
        if sequence <= 1 or follows:
            continue
        world = world_size(run)
        if not role.model.remove_padding:
            words = f"use_remove_padding=True with sequence parallel ({who(run)} refuses it without)"
            yield Case(
                stops(run, "CFG016"), field, words, f"size {sequence} and padding kept", True,
                f"{role.name}.model.remove_padding",
            )  # fmt: skip
        if world % sequence:
            yield Case("fail", field, f"a divisor of the {world} GPUs", str(sequence), nearest_divisor(world, sequence))
        model = _model(run, role)
        if model is not None:
            yield from _heads(field, sequence, size(model, HEADS), size(model, KV_HEADS), world)


def _sequence_key(run: ConfigFacts, role: RoleSpec) -> str:
    """verl has two keys for it; the older one, beside the section of FSDP, is the one that most configs set."""
    section = "critic" if role.name == "critic" else f"actor_rollout_ref.{role.name}"
    older = f"{section}.ulysses_sequence_parallel_size"
    return older if run.values.get(older) not in (None, 1) else f"{role.name}.sharding.sequence_parallel"


# More GPUs share no model.
_MOST_RANKS = 1 << 16


def _heads(field: str, split: int, heads: int, groups: int, gpus: int) -> Iterator[Case]:
    """Whole attention heads for each of SPLIT ranks, and whole or repeated key-value heads; 0: not known."""
    fits = max(
        n for n in range(1, min(split, _MOST_RANKS) + 1) if n == 1 or (_has_whole(n, heads, groups) and gpus % n == 0)
    )
    if heads and heads % split:
        yield Case("fail", field, f"a divisor of the model's {heads} attention heads", str(split), fits)
    elif not _has_whole(split, heads, groups):
        yield Case("fail", field, f"a divisor or a multiple of the model's {groups} key-value heads", str(split), fits)


def _has_whole(split: int, heads: int, groups: int) -> bool:
    return (not heads or heads % split == 0) and (not groups or groups % split == 0 or split % groups == 0)


def _model(run: ConfigFacts, role: RoleSpec) -> ModelFacts | None:
    """The facts of the role's model; the reference policy is the actor's."""
    found = run.models.get(role.name) or run.models.get("actor")
    return found.value if found is not None else None


@check("CFG016", "Sequence parallelism fits model and GPUs", needs=("config",), playbook="sequence-parallel-mismatch",
       problem="Sequence parallelism does not fit model and GPUs")  # fmt: skip
def sequence_parallel(facts: Facts) -> Verdict:
    """Holds the size of Ulysses' sequence parallel against padding, GPUs and the model's heads.

    What it does:
        The size must divide the GPUs and the attention heads; the key-value heads must be a divisor or a multiple of
        it; padding must be removed.

    Why it matters:
        Ulysses exchanges sequences for heads, so each rank needs a whole number of them. verl refuses the config or
        stops in the workers: Qwen2.5-14B with 40 heads and 8 key-value heads takes 1, 2, 4, 8 or 40.
    """
    run = config_of(facts)
    cases = list(sequence_cases(run))
    used = [role for role in roles(run) if role.sharding.sequence_parallel > 1]
    if used and not cases and _model(run, used[0]) is None:
        fact = run.models.get(used[0].name) or run.models.get("actor")
        open_question = unclear(why_missing(fact)) if fact is not None else None
        if open_question is not None:
            return open_question
    return conclude(run, cases, "sequence parallel fits" if used else "sequence parallel is not used")


def shard_cases(run: ConfigFacts) -> Iterator[Case]:
    """Shards divide the GPUs; roles agree in what has to be alike."""
    actor, world = run.spec.actor, world_size(run)
    for role in roles(run):
        if not is_fsdp(role):
            continue
        if role.name == "ref" and is_legacy(run):
            continue  # its mesh is made with the actor's size
        shard, field = role.sharding.shard_size, f"{role.name}.sharding.shard_size"
        if 1 < shard < world and world % shard:
            words = f"a divisor of the {world} GPUs"
            yield Case("fail", field, words, str(shard), nearest_divisor(world, shard))
        policy = f"{role.name}.sharding.offload_policy"
        if role.sharding.offload_policy and role.sharding.strategy == "fsdp" and role.trained and given(run, policy):
            words = "strategy=fsdp2 with offload_policy, which FSDP1 does not have"
            yield Case("warn", policy, words, "strategy=fsdp", False)
    for role in roles(run)[1:]:
        if not role.shares_actor:
            yield from _alike(run, actor, role)


def _alike(run: ConfigFacts, actor: RoleSpec, role: RoleSpec) -> Iterator[Case]:
    mine, its = actor.sharding, role.sharding
    if is_fsdp(actor) and is_fsdp(role) and mine.strategy != its.strategy:
        field = f"{role.name}.sharding.strategy"
        words = f"the actor's {mine.strategy} for every role"
        yield Case("warn", field, words, f"{its.strategy}", mine.strategy)
    if role.name == "ref" and mine.dtype != its.dtype:
        words = f"the actor's {mine.dtype}: KL is measured between the two"
        yield Case("warn", "ref.sharding.dtype", words, its.dtype, mine.dtype)
    if (
        role.name == "ref"
        and mine.sequence_parallel != its.sequence_parallel
        and given(run, "ref.sharding.sequence_parallel")
    ):
        words = f"the actor's {mine.sequence_parallel}, so that both see the same number of samples"
        yield Case("warn", "ref.sharding.sequence_parallel", words, str(its.sequence_parallel), mine.sequence_parallel)


@check("CFG017", "Shards of actor, reference and critic agree", needs=("config",), playbook="fsdp-roles",
       problem="Shards of actor, reference and critic do not agree")  # fmt: skip
def shards(facts: Facts) -> Verdict:
    """Holds the FSDP settings of the roles against the GPUs and against each other.

    What it does:
        fsdp_size must divide the GPUs. Roles of one run should use one kind of FSDP; the reference policy should
        compute in the actor's precision and with its sequence parallel; offload_policy is FSDP2's.

    Why it matters:
        A size that does not divide the GPUs stops the workers when the device mesh is made. actor.strategy=fsdp2
        without critic.strategy=fsdp2 leaves the critic on FSDP1, with other memory and other offload. A reference in
        another precision shows a KL that is not there.
    """
    return conclude(run := config_of(facts), list(shard_cases(run)), "the roles' shards agree")


def engine_cases(run: ConfigFacts) -> Iterator[Case]:
    """The engines' tensor-parallel size divides the model's heads."""
    tensor, field = run.spec.rollout.tensor_parallel, "rollout.tensor_parallel"
    model = _model(run, run.spec.actor)
    if model is None or tensor <= 1:
        return
    groups = 0 if _is_latent(model) else size(model, KV_HEADS)
    yield from _heads(field, tensor, size(model, HEADS), groups, max(1, run.spec.gpus_per_node))


def _is_latent(model: ModelFacts) -> bool:
    """Whether attention is over a latent (DeepSeek's MLA), whose key-value heads engines do not split."""
    below = model.sizes.get("text_config")
    nested: Mapping[str, Any] = cast("Mapping[str, Any]", below) if isinstance(below, Mapping) else model.sizes
    return bool(model.sizes.get("kv_lora_rank") or nested.get("kv_lora_rank"))


@check("CFG019", "The engines' tensor-parallel size fits the model's heads", needs=("config",),
       playbook="rollout-parallel",
       problem="The tensor-parallel size does not fit the model's heads")  # fmt: skip
def engine_heads(facts: Facts) -> Verdict:
    """Divides the model's attention heads by tensor_model_parallel_size.

    What it does:
        Reads the heads from the model's config.json. Says nothing where the model is not known.

    Why it matters:
        The engine stops: "Total number of attention heads (28) must be divisible by tensor parallel size (8)". In a run
        with colocated engines that is after the training ranks have loaded their models.
    """
    run = config_of(facts)
    if run.spec.rollout.tensor_parallel > 1 and _model(run, run.spec.actor) is None:
        fact = run.models.get("actor")
        open_question = unclear(why_missing(fact)) if fact is not None else None
        if open_question is not None:
            return open_question
    return conclude(run, list(engine_cases(run)), "the engines' split fits the model")
