"""The parts of a measurement: configs, rows, weights that are made up, and phases put together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlcheck.facts.config import DataSpec, RoleSpec, RolloutSpec, RunSpec, Sharding
from rlcheck.facts.memory import MeasuredPhase, Owner
from rlcheck.measure.memory.roles import role_memory
from rlcheck.measure.memory.shapes import shape_of
from rltrain.config.as_facts import facts_of
from rltrain.config.schema import ModelConfig
from rltrain.core.errors import UserError
from rltrain.measure.memory.as_config import config_of
from rltrain.measure.memory.plugin import EngineMemory, together
from rltrain.measure.memory.random_weights import RandomWeights
from rltrain.measure.memory.rows import full_rows, mini_batch
from rltrain.workers.fsdp.micro import MicroSize, cut, row_lengths

SPEC = RunSpec(
    gpus_per_node=2,
    actor=RoleSpec(name="actor", mini_batch_size=8, micro_batch_size=3, infer_micro_batch_size=5, chunked_logits=True),
    ref=RoleSpec(name="ref", trained=False),
    critic=RoleSpec(name="critic", mini_batch_size=8, dynamic_batch=True, max_tokens=4000),
    rollout=RolloutSpec(n=2, memory_utilization=0.3, enforce_eager=True, sync_bucket_bytes=64 << 20),
    data=DataSpec(max_prompt_length=100, max_response_length=50, train_batch_size=16),
)
DIRECTORIES = {"actor": "/models/a", "critic": "/models/c"}


def test_a_config_asks_for_what_the_run_asked_for() -> None:
    found = facts_of(config_of(SPEC, DIRECTORIES, 2)).spec
    assert (found.gpus_per_node, found.device) == (2, "cuda")
    assert (found.actor.model.path, found.critic and found.critic.model.path) == ("/models/a", "/models/c")
    assert (found.actor.micro_batch_size, found.actor.infer_micro_batch_size) == (3, 5)
    assert found.critic is not None
    assert (found.critic.dynamic_batch, found.critic.max_tokens) == (True, 4000)
    assert found.ref is not None
    for name in ("n", "memory_utilization", "enforce_eager", "sync_bucket_bytes", "sleeps", "tensor_parallel"):
        assert getattr(found.rollout, name) == getattr(SPEC.rollout, name), name
    assert found.actor.sharding == SPEC.actor.sharding
    assert found.actor.chunked_logits


def test_copies_of_a_model_are_measured_as_copies() -> None:
    """And predicted so: a rank of eight holds half of the model where two hold a copy together."""
    role = msgspec.structs.replace(SPEC.actor, sharding=msgspec.structs.replace(SPEC.actor.sharding, shard_size=2))
    config = config_of(msgspec.structs.replace(SPEC, actor=role, gpus_per_node=8), DIRECTORIES, 8)
    assert config.actor_rollout_ref.actor.fsdp_config.fsdp_size == 2
    found = facts_of(config).spec
    assert (found.actor.sharding.shard_size, found.critic and found.critic.sharding.shard_size) == (2, -1)
    model = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96}
    shape = shape_of({"model_type": "llama", "vocab_size": 64, **model})
    memory = role_memory(found.actor, shape, 8)
    assert memory.weights == memory.parameters * 4 // 2


def test_without_a_critic_and_a_reference_there_are_none() -> None:
    found = facts_of(config_of(msgspec.structs.replace(SPEC, critic=None, ref=None), DIRECTORIES, 0)).spec
    assert (found.critic, found.ref, found.device, found.gpus_per_node) == (None, None, "cpu", 1)


@pytest.mark.parametrize("shards", [Sharding(strategy="megatron"), Sharding(sequence_parallel=2)])
def test_what_rltrain_does_not_have_is_refused(shards: Sharding) -> None:
    role = msgspec.structs.replace(SPEC.actor, sharding=shards)
    with pytest.raises(UserError, match=r"actor: .* cannot be measured"):
        config_of(msgspec.structs.replace(SPEC, actor=role), DIRECTORIES, 1)


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (MicroSize(3, None), [15, 15, 15]),
        (MicroSize(None, 40), [15, 15, 10]),
        (MicroSize(None, 32), [15, 15]),
        (MicroSize(None, 12), [12]),
    ],
)
def test_rows_fill_a_micro_batch_to_its_brim(size: MicroSize, lengths: list[int]) -> None:
    for passes in (1, 2):
        rows = full_rows(size, 10, 5, 100, passes)
        assert row_lengths(rows) == lengths * passes
        assert len(cut(row_lengths(rows), size)) == passes, "as many micro batches as were asked for"
        assert rows["response_mask"].shape[1] == 5
        assert bool(rows["response_mask"].any(-1).all()), "each row has a response"
        assert int(rows["input_ids"].max()) < 100
        mini = mini_batch(rows, size, passes)
        assert mini.micro_batches == passes
        assert mini.shard.keys() >= {"old_log_probs", "ref_log_probs", "advantages", "returns", "values"}


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_made_where_they_are_wanted_and_what_is_tied_stays_tied(tied: bool) -> None:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 50}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": tied}
    weights = RandomWeights()
    keywords = {"config": AutoConfig.for_model("qwen2", **sizes), "dtype": torch.bfloat16}
    model = weights.load(AutoModelForCausalLM, ModelConfig(), keywords)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    here = torch.device("cpu")
    weights.place_parameters(model, here)
    weights.place_buffers(model, here)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) is tied
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    out = model(input_ids=torch.tensor([[1, 2, 3]])).logits
    assert bool(out.isfinite().all())
    assert float(out.detach().std()) > 0


def test_training_stands_beside_the_sleeping_engine_and_rollout_beside_idle_ranks() -> None:
    ranks = [
        MeasuredPhase(name="actor update", peak_bytes=100),
        MeasuredPhase(name="weight sync", peak_bytes=50),
        MeasuredPhase(name="idle", peak_bytes=30),
        MeasuredPhase(name="out of memory", peak_bytes=0, error="no room"),
    ]
    engine = EngineMemory(awake_bytes=60, asleep_bytes=5, syncing_bytes=20, kv={}, host_bytes=0)
    found = {phase.name: phase for phase in together(ranks, engine)}
    assert {name: phase.peak_bytes for name, phase in found.items()} == {
        "actor update": 105,
        "weight sync": 70,
        "idle": 35,
        "out of memory": 0,
        "rollout": 90,
    }
    assert found["actor update"].owners == (Owner(kind="engine", role="rollout", num_bytes=5),)
    assert together(ranks, None) == ranks
