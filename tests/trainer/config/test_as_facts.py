"""A resolved config in the doctor's words: the same run as the doctor reads from the file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.read import read_run
from rltrain.config import Machine, load, resolve
from rltrain.config.as_facts import facts_of

FILES = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=/no/such/model")
GPU, CPU = Machine("cuda", 2, 8), Machine("cpu", 0, 2)


def compared(spec: RunSpec) -> RunSpec:
    """SPEC without what a resolved config spells in full: paths of files, and rules with their defaults."""
    data = msgspec.structs.replace(spec.data, train_files=(), val_files=())
    reward = msgspec.structs.replace(spec.reward, rules=(), function_path=None)
    return msgspec.structs.replace(spec, run_dir="", data=data, reward=reward)


@pytest.mark.parametrize("machine", [GPU, CPU], ids=["cuda", "cpu"])
@pytest.mark.parametrize("recipe", ["toy-ppo", "toy-grpo", "gsm8k-ppo", "gsm8k-grpo"])
def test_a_recipe_is_what_the_doctor_reads(recipe: str, machine: Machine) -> None:
    given = [*(FILES if recipe.startswith("gsm8k") else ()), f"trainer.device={machine.device}"]
    given += ["trainer.n_gpus_per_node=2"] if machine is GPU else []
    ours, doctors = facts_of(resolve(load(recipe, given), machine)), read_run(recipe, given)
    assert compared(ours.spec) == compared(doctors.spec)
    assert ours.spec.run_dir == str(Path(doctors.spec.run_dir).absolute())
    assert {role: fact.value for role, fact in ours.models.items()} == {
        role: fact.value for role, fact in doctors.models.items()
    }


def test_what_resolve_has_chosen_arrives() -> None:
    wanted = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null", "trainer.nnodes=2", "critic.enable=true"]
    config = resolve(load("toy-grpo", wanted), Machine("cuda", 4, 8))
    spec = facts_of(config).spec
    assert (spec.nodes, spec.gpus_per_node, spec.device) == (2, 4, "cuda")
    assert spec.actor.micro_batch_size == config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
    assert spec.critic is not None
    assert spec.critic.mini_batch_size == config.critic.ppo_mini_batch_size
    assert spec.actor.sharding.dtype == "bfloat16"


def test_the_models_sizes_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 8, "vocab_size": 50}')
    paths = [f"actor_rollout_ref.model.path={tmp_path}", *FILES[:2]]
    facts = facts_of(resolve(load("gsm8k-ppo", [*paths, "critic.model.override_config={vocab_size: 60}"]), CPU))
    actor, critic = facts.models["actor"].value, facts.models["critic"].value
    assert actor is not None
    assert critic is not None
    assert (actor.sizes["hidden_size"], actor.sizes["vocab_size"], critic.sizes["vocab_size"]) == (8, 50, 60)
