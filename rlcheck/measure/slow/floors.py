"""What the stages of a step take at least on a GPU of known speed: operations and bytes, from the run's config."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rlcheck.facts.config import ConfigFacts, RoleSpec, RunSpec
from rlcheck.measure.memory.shapes import Shape, ShapeError, shape_of
from rlcheck.measure.slow.limits import Speed, limit

_WIDTHS = (
    (re.compile(r"fp8|int8|w8a|8.?bit", re.I), 1.0),
    (re.compile(r"4.?bit|int4|fp4|w4a|awq|gptq|bitsandbytes", re.I), 0.5),
)
_BYTES = 2.0
"""Of a weight or a cached number in bfloat16; `_WIDTHS`: in what is narrower."""
_FORWARD, _BACKWARD = 1, 2
_PASSES = {"old_log_prob": "actor", "ref": "ref", "values": "critic"}
_UPDATES = {"update_actor": "actor", "update_critic": "critic"}


@dataclass(frozen=True)
class Batch:
    """A step's answers: how many, and tokens of a prompt and of an answer (means), and of the longest answer."""

    requests: float
    prompt: float
    answer: float
    longest: float

    @property
    def tokens(self) -> float:
        """All of the step."""
        return self.requests * (self.prompt + self.answer)


@dataclass(frozen=True)
class Floor:
    """Seconds, and what they are made of."""

    seconds: float
    why: str


def floors(run: ConfigFacts, batch: Batch, gpu: str, speed: Speed) -> dict[str, Floor]:
    """Floors by the stage's name in `timing_s/`. A role whose model is not known has none."""
    spec = run.spec
    roles: Mapping[str, RoleSpec | None] = {"actor": spec.actor, "ref": spec.ref, "critic": spec.critic}
    shapes = {name: _shape(run, name) for name, role in roles.items() if role is not None}
    found: dict[str, Floor] = {}
    for stage, name in (_PASSES | _UPDATES).items():
        role, shape = roles[name], shapes.get(name)
        if role is not None and shape is not None:
            found[stage] = _training(spec, role, shape, batch, gpu, speed, update=stage in _UPDATES)
    actor = shapes.get("actor")
    if actor is not None and batch.answer > 0:
        found["gen"] = _generation(spec, actor, batch, gpu, speed)
    return found


def _shape(run: ConfigFacts, role: str) -> Shape | None:
    fact = run.models.get(role) or run.models.get("actor")
    model = fact.value if fact is not None else None
    try:
        return shape_of(model.sizes) if model is not None else None
    except ShapeError:
        return None


def active_parameters(shape: Shape) -> int:
    """Parameters that a token is multiplied by: without the table of embeddings, and with the experts it is sent to."""
    looked_up = shape.embedding if shape.head else 0
    return max(shape.parameters - looked_up - idle_experts(shape, 1), 1)


def idle_experts(shape: Shape, tokens: float) -> int:
    """Parameters of the experts to which none of TOKENS is sent, at best."""
    if shape.experts is None:
        return 0
    used = min(shape.experts.count, shape.experts.per_token * max(1.0, tokens))
    layers = shape.layers - shape.experts.dense_layers
    return int(layers * (shape.experts.count - used) * 3 * shape.hidden * shape.experts.wide)


def _training(
    spec: RunSpec, role: RoleSpec, shape: Shape, batch: Batch, gpu: str, speed: Speed, *, update: bool
) -> Floor:
    """A pass over all tokens; an update also goes back, and forward again where activations are recomputed."""
    passes, words = _FORWARD, "a forward pass"
    if update:
        passes, words = _FORWARD + _BACKWARD, "forward and backward"
        if role.model.lora_rank:
            passes = _FORWARD + 1
        if role.model.gradient_checkpointing:
            passes, words = passes + 1, f"{words}, recomputed"
        passes *= max(1, role.epochs)
    gpus = max(1, role.own_gpus or spec.nodes * spec.gpus_per_node)
    context = (batch.prompt + batch.answer) / 2
    operations = passes * batch.tokens * (2 * active_parameters(shape) + 4 * shape.layers * shape.query_width * context)
    rate = limit("compute_share") * speed.tflops * 1e12
    share = limit("compute_share")
    return Floor(
        operations / gpus / rate,
        f"{words} of {batch.tokens:.3g} tokens: {operations:.2g} operations, {gpus} {gpu} at {share:.0%} of their peak",
    )


def _bytes_of(kind: str | None) -> float:
    """Bytes of a number that an engine keeps as KIND, its name for the format."""
    return next((width for names, width in _WIDTHS if names.search(kind or "")), _BYTES)


def engines_of(spec: RunSpec) -> int:
    """How many engines the run's GPUs hold."""
    gpus = spec.nodes * spec.gpus_per_node
    if not spec.colocated:
        gpus = max(spec.rollout_nodes, 1) * max(spec.rollout_gpus_per_node, 1)
    return max(1, gpus // max(1, spec.rollout.tensor_parallel * spec.rollout.pipeline_parallel))


def _generation(spec: RunSpec, shape: Shape, batch: Batch, gpu: str, speed: Speed) -> Floor:
    """Prompts once, then as many passes as an answer of mean length has tokens, with every place in use."""
    rollout = spec.rollout
    size = max(1, rollout.tensor_parallel * rollout.pipeline_parallel)
    engines = engines_of(spec)
    each = batch.requests / engines
    places = max(1.0, min(each, float(rollout.max_seqs)))
    rate = limit("compute_share") * speed.tflops * 1e12 * size
    width = limit("bytes_share") * speed.gb_s * 1e9 * size
    prompts = each / max(1, rollout.n) if rollout.prefix_caching else each
    # Of a prompt only the last token goes through the head.
    prefill = 2 * (active_parameters(shape) - (shape.head or shape.embedding)) * prompts * batch.prompt / rate
    passes = each * batch.answer / places
    read = shape.parameters - (shape.embedding if shape.head else 0) - idle_experts(shape, places)
    cache = places * (batch.prompt + batch.answer / 2) * shape.kv_per_token
    num_bytes = read * _bytes_of(rollout.quantization) + cache * _bytes_of(rollout.kv_cache_dtype)
    one = max(2 * active_parameters(shape) * places / rate, num_bytes / width)
    return Floor(
        prefill + passes * one,
        f"{math.ceil(passes)} passes with {places:.0f} requests on each of {engines} engines of {size} {gpu}, "
        f"{one * 1e3:.2g} ms each: answers of {batch.answer:.0f} tokens without a tail",
    )
