"""Predictions made up by hand: one that fits, one that does not, and a run that they could be of."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts, DataSpec, ModelFacts, ModelUse, RoleSpec, RolloutSpec, RunSpec
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import Change, Limits, MeasuredPhase, MemoryProfile, Owner, Phase

GIB = 1 << 30
H200 = 143771 << 20
ROLES = ("actor_", "critic_", "ref_", "rollout_")
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


def phase(name: str, pool: str = "train", **owners: float) -> Phase:
    """A phase of owners in GiB; `actor_weights=7` is of the actor, `context=1` of the process."""
    found: list[Owner] = []
    for key, size in owners.items():
        role, _, kind = key.partition("_") if key.startswith(ROLES) else ("", "", key)
        found.append(Owner(kind=kind, role=role, num_bytes=round(size * GIB)))
    return Phase(name=name, owners=tuple(found), pool=pool)


RESIDUE = {"actor_weights": 7.1, "actor_optimizer": 14.2, "context": 1.6, "slack": 1.2}
PHASES = (
    phase("load", actor_weights=28.4, context=1.6),
    phase("rollout", **RESIDUE, rollout_weights=14.2, rollout_kv_cache=48.0, rollout_graphs=1.1, rollout_context=1.4),
    phase("weight sync", **RESIDUE, rollout_weights=14.2, buffers=2.0, actor_unsharded=1.1),
    phase("log-probs", **RESIDUE, actor_activations=3.2, actor_logits=9.3, actor_unsharded=2.2),
    phase(
        "actor update", **RESIDUE, actor_gradients=7.1, actor_activations=22.4, actor_logits=18.6, actor_unsharded=2.2
    ),
    phase("actor step", **RESIDUE, actor_gradients=7.1),
    phase("checkpoint", **RESIDUE, buffers=3.0),
)
HOST = (phase("load", "host", actor_weights=56.8), phase("rollout", "host", engine=12.0, actor_weights=28.4))


def memory(**changes: Any) -> MemoryProfile:
    """A prediction that fits."""
    usual: dict[str, Any] = {
        "gpu": "H200",
        "gpu_bytes": H200,
        "usable_bytes": H200 - GIB,
        "host_bytes": 1024 * GIB,
        "num_nodes": 1,
        "gpus_per_node": 4,
        "parameters": {"actor": 7_615_616_512},
        "architecture": "Qwen2ForCausalLM",
        "phases": PHASES,
        "host_phases": HOST,
        "limits": Limits(
            micro_batch_size=12, max_tokens=49152, memory_utilization=0.78, kv_tokens=898_000, concurrent_sequences=438
        ),
    }
    return MemoryProfile(**{**usual, **changes})


def run(spec: dict[str, Any] | None = None, **changes: Any) -> ConfigFacts:
    """A GRPO run of a 7B model on four GPUs, in the words of `RunSpec`."""
    actor = RoleSpec(name="actor", model=ModelUse(path="/models/qwen"), micro_batch_size=4, mini_batch_size=64,
                     infer_micro_batch_size=8)  # fmt: skip
    usual: dict[str, Any] = {
        "gpus_per_node": 4,
        "actor": actor,
        "rollout": RolloutSpec(n=8, memory_utilization=0.5),
        "data": DataSpec(max_prompt_length=1024, max_response_length=1024, train_batch_size=256),
    }
    facts = ConfigFacts(
        framework="spec",
        source="run.yaml",
        spec=RunSpec(**{**usual, **(spec or {})}),
        models={"actor": known(ModelFacts(path="/models/qwen", source="config.json", sizes=QWEN))},
    )
    return msgspec.structs.replace(facts, **changes)


CHANGES = (
    Change(title="actor: smaller micro batch (2)", overrides=("actor.micro_batch_size=2",), peak_bytes=55 * GIB,
           fits=True, slowdown=1.02),
    Change(title="actor: optimizer on the host while idle", overrides=("actor.sharding.optimizer_offload=true",),
           peak_bytes=61 * GIB, fits=True, slowdown=1.08),
    Change(title="actor: chunked logits", overrides=("actor.chunked_logits=true",), peak_bytes=74 * GIB, fits=False),
)  # fmt: skip


def too_much() -> MemoryProfile:
    """The same run on GPUs that are too small for it."""
    return memory(gpu="RTX A6000", gpu_bytes=49140 << 20, usable_bytes=47 * GIB, changes=CHANGES)


def measured() -> MemoryProfile:
    """A prediction beside a measurement that differs in one phase and broke in another."""
    update = phase("actor update", activations=38.5, logits=18)
    found = (
        MeasuredPhase(name="rollout", peak_bytes=round(88.1 * GIB)),
        MeasuredPhase(name="actor update", peak_bytes=round(90.5 * GIB), owners=update.owners),
        MeasuredPhase(name="checkpoint", peak_bytes=0, error="out of memory: 3.00 GiB asked for"),
    )  # fmt: skip
    return memory(measured=found)


def facts(memory_facts: MemoryProfile | None = None, run_facts: ConfigFacts | None = None) -> Facts:
    """A document with a run and its prediction."""
    return Facts(node="gpu-01", config=known(run_facts or run()), memory=known(memory_facts or memory()))
