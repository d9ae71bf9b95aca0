"""The changes that one would try on a run that does not fit, in families from mild to strong, as spec fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rlcheck.facts.config import ConfigFacts, RoleSpec, RunSpec
from rlcheck.measure.config import fields
from rlcheck.measure.memory.shapes import ShapeError, shape_of

_MAX_GPUS_PER_NODE = 8
_LORA_RANK = 32
"""A rank that people train reasoning with; half of it saves next to nothing more."""
_LEAST_SHARE, _MOST_SHARE, _SHARE_STEP = 0.1, 0.9, 0.05


@dataclass(frozen=True)
class Step:
    """One change: spec fields with their new values, and the kind whose price is in `data/slowdowns.json`.

    `times`: how often the price is paid (halvings). `implied`: what the framework sets with it, untyped.
    """

    title: str
    kind: str
    settings: tuple[tuple[str, Any], ...]
    times: int = 1
    implied: tuple[tuple[str, Any], ...] = ()


_FOLLOWERS = {
    "actor.dynamic_batch": ("actor.infer_dynamic_batch", "ref.infer_dynamic_batch", "critic.dynamic_batch",
                            "critic.infer_dynamic_batch"),
    "actor.max_tokens": ("actor.infer_max_tokens", "ref.infer_max_tokens"),
    "critic.max_tokens": ("critic.infer_max_tokens",),
}  # fmt: skip
"""Fields whose keys take the first one's value by an interpolation in verl's rollout.yaml, ref.yaml and critic.yaml."""


def ladders(run: ConfigFacts) -> list[list[Step]]:
    """Families of changes in the order in which one would try them, each from mild to strong."""
    spec = run.spec
    roles = [role for role in (spec.actor, spec.critic) if role is not None and role.trained]
    judges = [role for role in (spec.actor, spec.ref, spec.critic) if role is not None]
    found = [list(_dynamic_batches(role, spec)) for role in roles]
    found += [list(_smaller_batches(role, spec)) for role in roles]
    found += [list(_smaller_passes(role, spec)) for role in judges]
    found += [list(_switches(role)) for role in judges]
    found += [[step] for role in roles for step in _training(role)]
    found += [list(_shorter(spec)), list(_engine(spec)), list(_larger_engine(spec)), list(_sleep(spec))]
    found += [[step] for role in judges for step in _offloads(role)]
    heads = _heads(run)
    found += [list(_sequence_parallel(spec, heads)), list(_engine_parallel(spec, heads)), list(_more_gpus(spec))]
    found += [[step] for step in _lora(spec)]
    # A setting that this framework has no key for cannot be advised.
    typed = ([_whole(run, step) for step in ladder if all(_settable(run, path) for path, _ in step.settings)]
             for ladder in found)  # fmt: skip
    return [ladder for ladder in typed if ladder]


def for_cache(run: ConfigFacts) -> tuple[list[Step], list[Step]]:
    """The engine's length as the run needs it, and larger engines: what leaves more tokens for a sequence."""
    found = [_shorter(run.spec), _engine_parallel(run.spec, _heads(run))]
    shorter, parallel = (
        [step for step in steps if all(_settable(run, path) for path, _ in step.settings)] for steps in found
    )
    return shorter, parallel


def _settable(run: ConfigFacts, path: str) -> bool:
    return bool(fields.key_of(run, path)) and fields.can_set(run, path)


def _whole(run: ConfigFacts, step: Step) -> Step:
    """The step with all that its keys set: one key may stand for a field of several roles, or be another's default."""
    settings = dict(step.settings)
    for path, value in step.settings:
        key = fields.key_of(run, path)
        settings |= {other: value for other in _fields_of_roles(run) if fields.key_of(run, other) == key}
    implied: dict[str, Any] = {}
    for path, value in settings.items() if run.framework == "verl" else ():
        there = (other for other in _FOLLOWERS.get(path, ()) if fields.actual(run, other.partition(".")[0]) is not None)
        implied |= {other: value for other in there if fields.key_of(run, other) not in run.given}
    return replace(step, settings=tuple(settings.items()), implied=tuple(implied.items()))


def typed(run: ConfigFacts, path: str, value: Any) -> tuple[str, ...]:
    """What one types to set the field at PATH. Megatron's checkpointing takes three keys of its own."""
    role, _, rest = path.partition(".")
    if run.spec.actor.sharding.strategy == "megatron" and rest == "model.gradient_checkpointing":
        above = fields.key_of(run, f"{role}.sharding.tensor_parallel").rpartition(".")[0]
        wanted = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        return tuple(
            fields.override(run, f"{above}.override_transformer_config.{name}", wanted[name]) for name in wanted
        )
    key = fields.key_of(run, path)
    if run.spec.actor.sharding.strategy == "megatron" and rest == "model.lora_rank":
        return (fields.override(run, key.replace("lora_rank", "lora.rank"), value),)
    return (fields.override(run, path, value),)


def _fields_of_roles(run: ConfigFacts) -> list[str]:
    there = {name for name in ("actor", "ref", "critic") if fields.actual(run, name) is not None}
    return [path for path in fields.FIELDS if "." in path and path.partition(".")[0] in there]


def _longest(spec: RunSpec) -> int:
    return spec.data.max_prompt_length + spec.data.max_response_length


def _dynamic_batches(role: RoleSpec, spec: RunSpec) -> Iterator[Step]:
    """Passes filled up to a number of tokens, without padding, in place of a number of samples."""
    if role.dynamic_batch or role.micro_batch_size is None or not role.model.remove_padding:
        return
    tokens = role.micro_batch_size * _longest(spec)
    while tokens > _longest(spec):
        tokens = max(_longest(spec), tokens // 2)
        settings = ((f"{role.name}.dynamic_batch", True), (f"{role.name}.max_tokens", tokens))
        yield Step(f"{role.name}: dynamic batch of {tokens} tokens", "dynamic_batch", settings)


def _smaller_batches(role: RoleSpec, spec: RunSpec) -> Iterator[Step]:
    """Fewer tokens at a time while training. The same numbers are computed: gradients are summed over more passes."""
    longest = _longest(spec)
    if role.dynamic_batch:
        yield from _halvings(f"{role.name}: fewer tokens a pass", "smaller_batch", f"{role.name}.max_tokens",
                             role.max_tokens, longest)  # fmt: skip
    elif role.micro_batch_size is not None:
        yield from _halvings(f"{role.name}: smaller micro batch", "smaller_batch", f"{role.name}.micro_batch_size",
                             role.micro_batch_size, 1)  # fmt: skip


def _smaller_passes(role: RoleSpec, spec: RunSpec) -> Iterator[Step]:
    """The same for log-probabilities and values."""
    longest = _longest(spec)
    title = f"{role.name}: fewer tokens in log-probs" if role.name != "critic" else "critic: fewer tokens in values"
    if role.infer_dynamic_batch:
        yield from _halvings(title, "smaller_inference_batch", f"{role.name}.infer_max_tokens",
                             role.infer_max_tokens, longest)  # fmt: skip
    elif role.infer_micro_batch_size is not None:
        yield from _halvings(title, "smaller_inference_batch", f"{role.name}.infer_micro_batch_size",
                             role.infer_micro_batch_size, 1)  # fmt: skip


def _halvings(title: str, kind: str, path: str, now: int, least: int) -> Iterator[Step]:
    value, times = now, 0
    while value > least:
        value, times = max(least, value // 2), times + 1
        yield Step(f"{title} ({value})", kind, ((path, value),), times)


def _switches(role: RoleSpec) -> Iterator[Step]:
    """Ways to compute the same log-probabilities with less memory. A critic has no logits."""
    if role.name != "critic" and not role.chunked_logits and not role.model.fused_kernels:
        yield Step(f"{role.name}: chunked logits", "chunked_logits", ((f"{role.name}.chunked_logits", True),))


def _training(role: RoleSpec) -> Iterator[Step]:
    if not role.model.gradient_checkpointing:
        yield Step(f"{role.name}: gradient checkpointing", "checkpointing",
                   ((f"{role.name}.model.gradient_checkpointing", True),))  # fmt: skip
    if not role.sharding.reshard_after_forward:
        yield Step(f"{role.name}: reshard after forward", "reshard",
                   ((f"{role.name}.sharding.reshard_after_forward", True),))  # fmt: skip
    if role.sharding.shard_size > 0:
        yield Step(f"{role.name}: shard over all GPUs", "sharding", ((f"{role.name}.sharding.shard_size", -1),))


def _sleep(spec: RunSpec) -> Iterator[Step]:
    if spec.colocated and not spec.rollout.sleeps:
        yield Step("the engine sleeps while training", "sleep", (("rollout.sleeps", True),))


def _engine(spec: RunSpec) -> Iterator[Step]:
    """A smaller share for the engine, in steps of 0.05; a halved share costs about what a halved cache does."""
    share = spec.rollout.memory_utilization
    steps = int((share - _LEAST_SHARE) / _SHARE_STEP)
    for n in range(1, steps + 1):
        value = round(share - n * _SHARE_STEP, 2)
        yield Step(f"engine's share of the GPU {value:g}", "less_cache", (("rollout.memory_utilization", value),),
                   times=max(1, round(share / value) - 1))  # fmt: skip


def _shorter(spec: RunSpec) -> Iterator[Step]:
    """The engine's greatest length as the run needs it: one sequence of that length must fit into its cache."""
    longest = spec.rollout.max_model_len
    if longest is not None and longest > _longest(spec):
        yield Step(f"engine for {_longest(spec)} tokens at most", "shorter_context",
                   (("rollout.max_model_len", _longest(spec)),))  # fmt: skip


def _larger_engine(spec: RunSpec) -> Iterator[Step]:
    """A larger share, for an engine that has no room for a sequence."""
    steps = int((_MOST_SHARE - spec.rollout.memory_utilization) / _SHARE_STEP)
    for n in range(1, steps + 1):
        value = round(spec.rollout.memory_utilization + n * _SHARE_STEP, 2)
        yield Step(f"engine's share of the GPU {value:g}", "more_cache", (("rollout.memory_utilization", value),))


def _offloads(role: RoleSpec) -> Iterator[Step]:
    sharding = role.sharding
    if role.trained and not sharding.optimizer_offload and not sharding.offload_policy:
        yield Step(f"{role.name}: optimizer on the host while idle", "optimizer_transfer",
                   ((f"{role.name}.sharding.optimizer_offload", True),))  # fmt: skip
    if not sharding.param_offload and not sharding.offload_policy:
        yield Step(f"{role.name}: weights on the host while idle", "param_transfer",
                   ((f"{role.name}.sharding.param_offload", True),))  # fmt: skip
    if role.trained and not role.model.activation_offload and role.model.gradient_checkpointing:
        yield Step(f"{role.name}: activations on the host", "activation_offload",
                   ((f"{role.name}.model.activation_offload", True),))  # fmt: skip
    if role.trained and sharding.strategy == "fsdp2" and not sharding.offload_policy:
        yield Step(f"{role.name}: everything on the host, optimizer on the CPU", "offload_policy",
                   ((f"{role.name}.sharding.offload_policy", True),))  # fmt: skip


def _heads(run: ConfigFacts) -> tuple[int, int]:
    """Attention heads of the actor's model, and those that share keys and values."""
    model = run.models.get("actor")
    try:
        shape = shape_of(model.value.sizes if model is not None and model.value is not None else {})
    except ShapeError:
        return 0, 0
    return shape.heads, shape.kv_heads


def _divides(size: int, heads: tuple[int, int]) -> bool:
    """Whether attention can be split so: all heads evenly, shared ones evenly or each to several GPUs."""
    all_heads, shared = heads
    return all_heads % size == 0 and (shared == 0 or shared % size == 0 or size % shared == 0)


def _sequence_parallel(spec: RunSpec, heads: tuple[int, int]) -> Iterator[Step]:
    """Ulysses over two, four, eight GPUs of a node, of all roles: they must agree."""
    size, times = spec.actor.sharding.sequence_parallel, 0
    while size * 2 <= min(spec.gpus_per_node, _MAX_GPUS_PER_NODE) and spec.gpus_per_node % (size * 2) == 0:
        size, times = size * 2, times + 1
        if not _divides(size, heads):
            return
        names = [role.name for role in (spec.actor, spec.ref, spec.critic) if role is not None]
        settings = tuple((f"{name}.sharding.sequence_parallel", size) for name in names)
        yield Step(f"sequence parallel over {size}", "sequence_parallel", settings, times)


def _engine_parallel(spec: RunSpec, heads: tuple[int, int]) -> Iterator[Step]:
    size, times = spec.rollout.tensor_parallel, 0
    here = spec.gpus_per_node if spec.colocated else spec.rollout_gpus_per_node
    while size * 2 <= here and here % (size * 2) == 0:
        size, times = size * 2, times + 1
        if not _divides(size, heads):
            return
        yield Step(f"engine over {size} GPUs", "tensor_parallel", (("rollout.tensor_parallel", size),), times)


def _more_gpus(spec: RunSpec) -> Iterator[Step]:
    gpus, nodes = spec.gpus_per_node, spec.nodes
    while gpus * 2 <= _MAX_GPUS_PER_NODE:
        gpus *= 2
        yield Step(f"{gpus} GPUs a node", "more_gpus", (("gpus_per_node", gpus),))
    for factor in (2, 4):
        settings: tuple[tuple[str, Any], ...] = (("nodes", nodes * factor),)
        if gpus != spec.gpus_per_node:
            settings = (("gpus_per_node", gpus), *settings)
        yield Step(f"{nodes * factor} nodes with {gpus} GPUs", "more_gpus", settings)


def _lora(spec: RunSpec) -> Iterator[Step]:
    for role in (spec.actor, spec.critic):
        if role is not None and role.trained and not role.model.lora_rank:
            yield Step(f"{role.name}: LoRA of rank {_LORA_RANK}, which is another training", "lora",
                       ((f"{role.name}.model.lora_rank", _LORA_RANK),))  # fmt: skip
