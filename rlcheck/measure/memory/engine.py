"""The rollout engine on one GPU: weights, KV cache, graphs, sampler; what it keeps asleep."""

from __future__ import annotations

from dataclasses import dataclass

from rlcheck.facts.config import RunSpec
from rlcheck.facts.memory import Owner
from rlcheck.measure.config.engines import traits_of
from rlcheck.measure.memory.constants import CONSTANTS
from rlcheck.measure.memory.shapes import Shape
from rlcheck.measure.memory.transient import BYTES

# float32 logits and two copies of them, for every sequence that runs.
_SAMPLER_BYTES = 12


@dataclass(frozen=True)
class EngineMemory:
    """The engine's share of one GPU, in bytes. `asleep`: what is left while it sleeps, or all of it if it does not."""

    weights: int
    cache: int
    graphs: int
    activations: int
    context: int
    asleep: int
    kv_bytes_per_token: float
    wanted_bytes: int
    """What `memory_utilization` of the GPU comes to."""

    def awake(self) -> list[Owner]:
        """What it holds while it generates."""
        return [
            Owner(kind="weights", role="rollout", num_bytes=self.weights),
            Owner(kind="kv_cache", role="rollout", num_bytes=max(self.cache, 0)),
            Owner(kind="activations", role="rollout", num_bytes=self.activations),
            Owner(kind="graphs", role="rollout", num_bytes=self.graphs),
            Owner(kind="context", role="rollout", num_bytes=self.context),
        ]

    def resting(self) -> list[Owner]:
        """What it holds while the actor trains."""
        return [Owner(kind="engine", role="rollout", num_bytes=self.asleep)]

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds on this GPU."""
        return max(int(self.cache / self.kv_bytes_per_token), 0) if self.kv_bytes_per_token else 0


def engine_memory(run: RunSpec, shape: Shape, gpu_bytes: int) -> EngineMemory:
    """The engine of RUN on a GPU of GPU_BYTES.

    vLLM fills `memory_utilization` of the whole GPU: weights, the activations of its largest batch, graphs, and what
    is left becomes KV cache. The process's own CUDA context comes on top of that share.
    """
    rollout = run.rollout
    size = max(rollout.tensor_parallel, 1)
    element = BYTES.get(rollout.dtype, 2)
    weight = 1 if rollout.quantization else element
    expert_size = size * max(rollout.expert_parallel // size, 1)
    weights = shape.parameters * weight // (expert_size if shape.experts else size)
    cache_element = 1 if "fp8" in rollout.kv_cache_dtype else element
    per_token = shape.kv_per_token * cache_element / min(size, shape.kv_heads)
    own_context = 0 if rollout.in_process else CONSTANTS.engine_context_bytes
    if not traits_of(rollout.name).has_kv_cache and rollout.in_process:
        return _actor_itself(run, shape, per_token)
    if not traits_of(rollout.name).has_kv_cache:
        return EngineMemory(weights, 0, 0, 0, CONSTANTS.engine_context_bytes, weights, per_token, 0)
    length = rollout.max_model_len or run.data.max_prompt_length + run.data.max_response_length
    batch = min(rollout.max_batched_tokens, rollout.max_seqs * length)
    wide = shape.wide if shape.experts is None else shape.experts.per_token * shape.experts.wide
    activations = element * batch * (4 * shape.hidden + 3 * wide // size)
    activations += _SAMPLER_BYTES * min(rollout.max_seqs, batch) * shape.vocab
    graphs = 0 if rollout.enforce_eager else CONSTANTS.engine_graph_bytes_per_layer * shape.layers
    wanted = int(rollout.memory_utilization * gpu_bytes)
    cache = wanted - weights - activations - graphs
    awake = max(wanted, weights + activations + graphs) + own_context
    sleeps = rollout.sleeps and run.colocated
    return EngineMemory(
        weights=weights,
        cache=cache,
        graphs=graphs,
        activations=activations,
        context=own_context,
        # A head of its own stayed on the device through vLLM 0.26's sleep, a tied one did not.
        asleep=CONSTANTS.engine_asleep_bytes + shape.head * weight // size if sleeps else awake,
        kv_bytes_per_token=per_token,
        wanted_bytes=wanted,
    )


def _actor_itself(run: RunSpec, shape: Shape, per_token: float) -> EngineMemory:
    """The actor generates: whole where its parameters are spread, with a cache for the samples it makes at once."""
    shards, data = run.actor.sharding, run.data
    spread = shards.strategy in ("fsdp", "fsdp2") or shards.zero_stage == 3
    element = BYTES.get(shards.dtype, 2)
    rows = max(data.train_batch_size * run.rollout.n // max(run.nodes * run.gpus_per_node, 1), 1)
    rows = min(rows, max(run.rollout.max_seqs, 1))
    cache = int(per_token * rows * (data.max_prompt_length + data.max_response_length))
    weights = shape.parameters * element if spread else 0
    sampler = _SAMPLER_BYTES * rows * shape.vocab
    return EngineMemory(weights, cache, 0, sampler, 0, 0, per_token, 0)
