"""A memory model of a few lines, whose answers one can work out by hand: for testing what is built on a prediction."""

from __future__ import annotations

from typing import Any

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import Limits, MemoryProfile
from tests.measure.memory.samples import GIB, phase

SEQUENCE_GIB = 1.0
"""Activations of one sample, and again as much in logits."""


def predict(run: ConfigFacts, gpu: Any, host_bytes: int) -> MemoryProfile:
    """Weights 8, optimizer 16, gradients 8 GiB over the GPUs; 1 GiB of activations and 1 of logits a sample."""
    spec = run.spec
    actor, longest = spec.actor, spec.data.max_prompt_length + spec.data.max_response_length
    gpus = spec.nodes * spec.gpus_per_node
    samples = actor.max_tokens / longest if actor.dynamic_batch else actor.micro_batch_size or 1
    kept = 0.0 if actor.sharding.param_offload else 8 / gpus
    moments = 0.0 if actor.sharding.optimizer_offload else 16 / gpus
    share = spec.rollout.memory_utilization * gpu.total_bytes / GIB
    awake = share if not spec.rollout.sleeps else 0.0
    logits = samples * SEQUENCE_GIB * (0.1 if actor.chunked_logits else 1.0)
    activations = samples * SEQUENCE_GIB * (1.0 if actor.model.gradient_checkpointing else 6.0)
    phases = (
        phase("rollout", actor_weights=kept, actor_optimizer=moments, rollout_kv_cache=share),
        phase("actor update", actor_weights=8 / gpus, actor_optimizer=moments, actor_gradients=8 / gpus,
              actor_activations=activations, actor_logits=logits, rollout_kv_cache=awake),
        phase("actor step", actor_weights=8 / gpus, actor_optimizer=16 / gpus, actor_gradients=8 / gpus,
              rollout_kv_cache=awake),
    )  # fmt: skip
    on_host = (8 - kept * gpus) + (16 - moments * gpus)
    return MemoryProfile(
        gpu=gpu.name,
        gpu_bytes=gpu.total_bytes,
        usable_bytes=gpu.total_bytes,
        host_bytes=host_bytes,
        num_nodes=spec.nodes,
        gpus_per_node=spec.gpus_per_node,
        parameters={"actor": 2 * GIB},
        phases=phases,
        host_phases=(phase("rollout", "host", actor_weights=on_host),),
        limits=Limits(kv_tokens=1000, concurrent_sequences=10),
    )
