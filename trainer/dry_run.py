"""What `rltrain run --dry-run` prints: the config in force, the placement, the batch arithmetic, memory.

Plain text from plain arithmetic: needs no GPU, no Ray, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from trainer.config.batch_plan import BatchPlan
from trainer.config.model_file import TOY, count, count_or, sizes_in
from trainer.config.schema import FsdpConfig, RunConfig
from trainer.errors import UserError

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Special tokens, roles, digits and task names of the toy tokenizer, roughly.
_TOY_VOCABULARY = 32


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer that count for memory."""

    parameters: int
    output_head: int
    """Parameters of an output head of its own; 0 where it shares the embedding."""
    hidden_size: int
    vocab_size: int
    kv_elements_per_token: int
    """Keys and values of all layers."""
    exact: bool
    """False: an architecture that is counted as if it were Llama."""


@dataclass(frozen=True)
class RoleMemory:
    """What one role holds on one device while it works, in bytes."""

    role: str
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    where: str

    @property
    def total_bytes(self) -> float:
        """The sum."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


def config_yaml(config: RunConfig) -> str:
    """CONFIG as YAML, in the order of the schema."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """HEADER and ROWS with columns aligned, one line each."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def report(config: RunConfig, placement: Sequence[str], shape: ModelShape | None) -> list[str]:
    """The whole dry run.

    Args:
        config: resolved.
        placement: lines of the placement table.
        shape: of the actor's model; None where it is not known.
    """
    batches = ["actor", *BatchPlan.of(config).lines()]
    if config.critic.enable and BatchPlan.of_critic(config) != BatchPlan.of(config):
        batches += ["critic", *BatchPlan.of_critic(config).lines()]
    memory = ["unknown: the model's config.json is not there"] if shape is None else memory_lines(config, shape)
    sections = {
        "Config": config_yaml(config).splitlines(),
        "Placement": placement,
        "Batches": batches,
        "Memory": memory,
    }
    return [line for title, lines in sections.items() for line in (f"== {title} ==", *lines, "")]


def shape_of(config: RunConfig) -> ModelShape | None:
    """The shape of the actor's model, from its `config.json` or from `toy.model`; None if neither is there.

    Raises:
        UserError: a `config.json` that is not one, or a size that is missing or none.
    """
    model, toy = config.actor_rollout_ref.model, config.toy
    if model.path is not None:
        found = sizes_in(model)
        return None if found is None else model_shape(*found)
    if toy is None:
        return None
    return model_shape({"vocab_size": toy.vocab_size or _TOY_VOCABULARY, **toy.model}, TOY)


def model_shape(sizes: Mapping[str, Any], place: str) -> ModelShape:
    """Count the parameters of the model that SIZES (a `config.json`) describe.

    Exact for llama, mistral, qwen2, qwen3 and opt as transformers builds them; other architectures count as llama.

    Raises:
        UserError: a size is missing or no integer > 0; PLACE names the file.
    """
    if "model_type" not in sizes:
        raise UserError(f"{place}: no 'model_type', which memory is counted from")
    kind = str(sizes["model_type"])
    return _opt(sizes, place) if kind == "opt" else _llama_like(sizes, kind, place)


def _llama_like(sizes: Mapping[str, Any], kind: str, place: str) -> ModelShape:
    hidden, layers, heads, vocab, wide = (
        count(sizes, name, place)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    )
    # These are left out of a config.json, or null, where they have the usual value.
    kv_heads = count_or(sizes, "num_key_value_heads", place, usual=heads)
    head_dim = count_or(sizes, "head_dim", place, usual=hidden // heads)
    tied = bool(sizes.get("tie_word_embeddings", kind == "qwen3"))
    queries, keys = heads * head_dim, kv_heads * head_dim
    attention = 2 * hidden * queries + 2 * hidden * keys
    if kind == "qwen2":
        attention += queries + 2 * keys
    elif sizes.get("attention_bias"):
        attention += queries + 2 * keys + hidden
    if kind == "qwen3":
        attention += 2 * head_dim
    feed_forward = 3 * hidden * wide
    if sizes.get("mlp_bias"):
        feed_forward += 2 * wide + hidden
    head = 0 if tied else vocab * hidden
    return ModelShape(
        parameters=vocab * hidden + layers * (attention + feed_forward + 2 * hidden) + hidden + head,
        output_head=head,
        hidden_size=hidden,
        vocab_size=vocab,
        kv_elements_per_token=2 * layers * keys,
        exact=kind in ("llama", "mistral", "qwen2", "qwen3"),
    )


def _opt(sizes: Mapping[str, Any], place: str) -> ModelShape:
    hidden, layers, vocab, wide, positions = (
        count(sizes, name, place)
        for name in ("hidden_size", "num_hidden_layers", "vocab_size", "ffn_dim", "max_position_embeddings")
    )
    embedding = count_or(sizes, "word_embed_proj_dim", place, usual=hidden)
    block = 4 * (hidden * hidden + hidden) + 2 * hidden * wide + wide + hidden + 4 * hidden
    projections = 0 if embedding == hidden else 2 * embedding * hidden
    # OPT's table of positions has two rows that no position uses.
    table_of_positions = (positions + 2) * hidden
    return ModelShape(
        parameters=vocab * embedding + table_of_positions + projections + layers * block + 2 * hidden,
        output_head=0,
        hidden_size=hidden,
        vocab_size=vocab,
        kv_elements_per_token=2 * layers * hidden,
        exact=True,
    )


def roles_memory(config: RunConfig, shape: ModelShape) -> list[RoleMemory]:
    """What each training role that CONFIG (resolved) needs holds on one device.

    Sharded over all ranks by FSDP; AdamW keeps two states per parameter in the parameter's type. The critic counts as
    the actor's backbone with a value head; a reward model, whose size its own file says, is left out.
    """
    parts = config.actor_rollout_ref
    plan = BatchPlan.of(config)
    found = [_trained("actor", shape.parameters, parts.actor.fsdp_config, plan.world_size)]
    if config.critic.enable:
        count = shape.parameters - shape.output_head + shape.hidden_size + 1
        found.append(_trained("critic", count, config.critic.fsdp_config, plan.world_size))
    if config.needs_reference:
        weights = shape.parameters * _BYTES[parts.ref.fsdp_config.model_dtype] / plan.world_size
        idle = parts.ref.fsdp_config.param_offload or parts.ref.fsdp_config.offload_policy
        found.append(RoleMemory("reference", weights, 0, 0, "host while idle" if idle else "device"))
    return found


def _trained(role: str, parameters: int, fsdp: FsdpConfig, world_size: int) -> RoleMemory:
    shard = parameters * _BYTES[fsdp.model_dtype] / world_size
    if fsdp.offload_policy:
        where = "host"
    else:
        away = [name for name, on in (("weights", fsdp.param_offload), ("optimizer", fsdp.optimizer_offload)) if on]
        where = f"device; {' and '.join(away)} on the host while idle" if away else "device"
    return RoleMemory(role, shard, shard, 2 * shard, where)


def memory_lines(config: RunConfig, shape: ModelShape) -> list[str]:
    """The memory table of CONFIG (resolved) for a model of SHAPE, per device."""
    rollout = config.actor_rollout_ref.rollout
    rows = [
        [
            role.role,
            *map(size, (role.weights_bytes, role.gradients_bytes, role.optimizer_bytes, role.total_bytes)),
            role.where,
        ]
        for role in roles_memory(config, shape)
    ]
    element = _BYTES[rollout.dtype]
    weights = shape.parameters * element / rollout.tensor_model_parallel_size
    engine = "device; asleep while the actor trains" if rollout.free_cache_engine else "device, all the time"
    if config.trainer.device == "cpu":
        engine = "a process of its own"
    rows.append(["engine", size(weights), "-", "-", size(weights), engine])
    about = "" if shape.exact else "about "
    return [
        f"{about}{shape.parameters:,} parameters, vocabulary {shape.vocab_size:,}; per device:",
        *table(["role", "weights", "gradients", "optimizer", "sum", "where"], rows),
        *_on_top(config, shape, shape.kv_elements_per_token * element),
    ]


def _on_top(config: RunConfig, shape: ModelShape, kv_bytes_per_token: int) -> list[str]:
    rollout, data, plan = config.actor_rollout_ref.rollout, config.data, BatchPlan.of(config)
    longest = data.max_prompt_length + data.max_response_length
    tokens = plan.max_tokens_per_micro_batch or (plan.micro_batch_size or 1) * longest
    engines = rollout.num_replicas or 1
    samples = -(-plan.samples_per_step // engines)
    cache = kv_bytes_per_token * longest * min(samples, rollout.max_num_seqs) / rollout.tensor_model_parallel_size
    lines = [
        f"logits of one micro batch: {tokens:,} tokens x {shape.vocab_size:,} x 4 bytes = "
        f"{size(tokens * shape.vocab_size * 4)} at most, for each copy that the loss needs (2 to 4)",
        f"KV cache: {size(kv_bytes_per_token)} a token; {size(cache)} for {min(samples, rollout.max_num_seqs)} samples "
        "of full length at a time",
    ]
    if config.trainer.device == "cuda":
        lines.append(
            f"the engine takes {rollout.gpu_memory_utilization:.0%} of a GPU's memory, weights and cache together"
        )
    return [*lines, "activations, communication buffers and a reward model come on top"]


def size(number: float) -> str:
    """NUMBER of bytes in words.

    >>> size(3 * 2**30)
    '3.0 GiB'
    """
    if number < 1024:
        return f"{number:.0f} B"
    for unit in ("KiB", "MiB"):
        number /= 1024
        if number < 1024:
            return f"{number:.1f} {unit}"
    return f"{number / 1024:.1f} GiB"
