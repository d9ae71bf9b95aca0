"""Fields of the spec and the keys, places and overrides of each framework."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rlcheck.facts.config import ConfigFacts, RunSpec
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.fields import FIELDS, actual, key_of, override, place_of
from rlcheck.measure.config.read import read_run

NAMED = ["actor_rollout_ref.rollout.name=vllm"]


@pytest.fixture(scope="module")
def verl() -> ConfigFacts:
    return read_run(
        "ppo_trainer", [*NAMED, "critic.enable=true", "actor_rollout_ref.actor.use_kl_loss=true"], look=False
    )


@pytest.fixture(scope="module")
def rltrain() -> ConfigFacts:
    return read_run("gsm8k-ppo", ["actor_rollout_ref.actor.use_kl_loss=true", "data.max_prompt_length=9"], look=False)


def test_every_field_is_one_of_the_spec_and_its_key_is_one_of_verl(verl: ConfigFacts) -> None:
    known = set(verl.values) | {"ray_kwargs.ray_init.address"}
    for field in FIELDS:
        if not field.startswith("reward_model."):
            actual(verl, field)  # raises where there is no such field
        key = key_of(verl, field)
        optional = key.endswith((".grad_offload", ".mixed_precision"))
        assert key in known or optional or any(name.startswith(f"{key}.") for name in known), (field, key)


def test_a_set_field_is_read_back_through_its_key(verl: ConfigFacts) -> None:
    for field, value in {
        "actor.micro_batch_size": 3, "actor.sharding.sequence_parallel": 2, "critic.sharding.param_offload": True,
        "rollout.memory_utilization": 0.25, "ref.infer_micro_batch_size": 5, "rollout.sync_bucket_bytes": 256 << 20,
        "actor.chunked_logits": True, "critic.optim.lr": 3e-6, "actor.model.lora_rank": 16, "rollout.max_model_len": 77,
        "actor.model.gradient_checkpointing": False, "gpus_per_node": 2, "actor.sharding.offload_policy": True,
        "loggers": ("console", "wandb"), "actor.sharding.strategy": "fsdp2", "actor.optim.grad_clip": 0.5,
    }.items():  # fmt: skip
        words = [*NAMED, "critic.enable=true", "actor_rollout_ref.actor.use_kl_loss=true", override(verl, field, value)]
        facts = read_run("ppo_trainer", words, look=False)
        assert actual(facts, field) == value, field
        assert [p for p in facts.problems if p.kind not in ("deprecated", "off")] == [], field
        assert place_of(facts, field) == f"override {words[-1]}"


def test_rltrains_keys_differ_where_it_does(rltrain: ConfigFacts) -> None:
    assert key_of(rltrain, "critic.sharding.param_offload") == "critic.fsdp_config.param_offload"
    assert key_of(rltrain, "actor.optim.grad_clip") == "actor_rollout_ref.actor.grad_clip"
    assert key_of(rltrain, "rollout.mode") == ""
    assert key_of(rltrain, "actor.model.lora_rank") == ""
    assert override(rltrain, "actor.micro_batch_size", 2) == "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"
    assert place_of(rltrain, "data.max_prompt_length") == "override data.max_prompt_length=9"
    assert place_of(rltrain, "algorithm.adv_estimator").startswith("gsm8k-ppo.yaml:")
    assert place_of(rltrain, "rollout.top_k") == "default"
    for field in FIELDS:
        key = key_of(rltrain, field)
        assert not key or key in rltrain.values or any(name.startswith(f"{key}.") for name in rltrain.values), field


def test_a_key_that_verl_lacks_is_typed_with_a_plus(verl: ConfigFacts) -> None:
    assert override(verl, "ray_address", "auto") == "+ray_kwargs.ray_init.address=auto"
    assert override(verl, "data.train_files", ["a b", "c"]) == "data.train_files=['a b',c]"
    assert override(verl, "actor.infer_micro_batch_size", None).endswith("=null")


def test_critics_section_moved_with_verls_version() -> None:
    old = read_run("ppo_trainer", NAMED, verl_version="0.7.1", look=False)
    assert key_of(old, "critic.sharding.param_offload") == "critic.model.fsdp_config.param_offload"
    megatron = read_run("ppo_megatron_trainer", NAMED, look=False)
    key = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"
    assert key_of(megatron, "actor.sharding.tensor_parallel") == key


def test_a_spec_file_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("gpus_per_node: 2\nactor:\n  micro_batch_size: 4\n  sharding: {param_offload: true}\nactr: 1\n")
    with pytest.raises(ReadError):
        read_run(str(path), ["actor.micro_batch_size=many"], framework="spec")
    facts = read_run(str(path), ["actor.optim.lr=1e-5", "rollout.nn=3"], framework="spec", look=False)
    assert (facts.framework, facts.spec.gpus_per_node, facts.spec.actor.micro_batch_size) == ("spec", 2, 4)
    assert facts.spec.actor.sharding.param_offload
    assert facts.spec.actor.optim.lr == 1e-5
    assert {p.key: p.instead for p in facts.problems} == {"actr": ("actor",), "rollout.nn": ("rollout.n",)}
    assert place_of(facts, "actor.micro_batch_size") == f"{path}:3:3"
    assert override(facts, "actor.micro_batch_size", 2) == "actor.micro_batch_size=2"
    path.write_text(json.dumps(msgspec.to_builtins(RunSpec(gpus_per_node=4))))
    assert read_run(str(path), [], look=False).spec == RunSpec(gpus_per_node=4)


def test_facts_survive_json(verl: ConfigFacts, rltrain: ConfigFacts) -> None:
    for facts in (verl, rltrain):
        assert msgspec.json.decode(msgspec.json.encode(facts), type=ConfigFacts) == facts
