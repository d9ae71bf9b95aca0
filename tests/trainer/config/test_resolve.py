"""What a config leaves open is filled in from the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from rltrain.config import Machine, RunConfig, load, resolve
from rltrain.config.resolve import chosen
from rltrain.core.errors import UserError
from tests.trainer.config import SMALL

CPU, GPU = Machine("cpu", 0, 2), Machine("cuda", 8, 64)


def resolved(*overrides: str, machine: Machine = CPU, recipe: str = SMALL) -> RunConfig:
    return resolve(load(recipe, overrides), machine)


@pytest.mark.parametrize("machine", [CPU, GPU])
@pytest.mark.parametrize("recipe", ["toy-ppo", "toy-grpo"])
def test_resolving_twice_changes_nothing(machine: Machine, recipe: str) -> None:
    once = resolved(machine=machine, recipe=recipe)
    assert resolve(once, machine) == once
    assert chosen(once, once) == []


def test_a_cpu_computes_in_float32_and_a_gpu_in_bfloat16() -> None:
    for machine, dtype in ((CPU, "float32"), (GPU, "bfloat16")):
        config = resolved(machine=machine)
        parts = config.actor_rollout_ref
        found = {parts.actor.fsdp_config.dtype, parts.ref.fsdp_config.dtype, parts.rollout.dtype}
        assert found | {config.critic.fsdp_config.dtype, config.reward_model.fsdp_config.dtype} == {dtype}
        assert parts.actor.fsdp_config.model_dtype == "float32"
        assert config.trainer.device == machine.device


def test_ranks_and_engines() -> None:
    assert resolved("trainer.num_cpu_ranks=2").trainer.n_gpus_per_node == 2
    assert resolved("trainer.num_cpu_ranks=2").actor_rollout_ref.rollout.num_replicas == 1
    assert resolved(machine=GPU).trainer.n_gpus_per_node == 8
    tp = "actor_rollout_ref.rollout.tensor_model_parallel_size=2"
    assert resolved(tp, machine=GPU).actor_rollout_ref.rollout.num_replicas == 4
    apart = ["actor_rollout_ref.hybrid_engine=false", "actor_rollout_ref.rollout.n_gpus_per_node=2"]
    separate = resolved(*apart, machine=GPU)
    assert (separate.trainer.n_gpus_per_node, separate.actor_rollout_ref.rollout.num_replicas) == (6, 2)


def test_a_gpu_run_can_be_planned_without_a_gpu() -> None:
    config = resolved("trainer.device=cuda", "trainer.n_gpus_per_node=4")
    assert config.actor_rollout_ref.rollout.num_replicas == 4
    with pytest.raises(UserError, match=r"this machine has 0 GPUs; give the number"):
        resolved("trainer.device=cuda")


def test_micro_batches_that_nobody_named() -> None:
    free = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null"
    small = "actor_rollout_ref.actor.ppo_mini_batch_size=2"
    assert resolved(free).actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 64
    assert resolved(free, small).actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 16
    on_gpu = resolved(free, machine=GPU)
    assert on_gpu.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 4
    assert on_gpu.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu == 4
    assert on_gpu.critic.ppo_micro_batch_size_per_gpu == 4


def test_the_critic_inherits_from_the_actor() -> None:
    critic = resolved("actor_rollout_ref.actor.ppo_epochs=3", "actor_rollout_ref.actor.shuffle=true").critic
    assert (critic.enable, critic.ppo_epochs, critic.shuffle, critic.ppo_mini_batch_size) == (True, 3, True, 32)
    assert resolved(recipe="toy-grpo").critic.enable is False
    assert resolved("critic.ppo_epochs=5").critic.ppo_epochs == 5


def test_the_critic_takes_the_actors_model(tmp_path: Path) -> None:
    model = f"actor_rollout_ref.model.path={tmp_path}"
    critic = resolved(model, "actor_rollout_ref.model.override_config={attention_dropout: 0.1}").critic
    assert critic.model.path == critic.model.tokenizer_path == str(tmp_path)
    assert critic.model.override_config == {"attention_dropout": 0.1}


def test_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.chdir(tmp_path)
    config = resolved("data.train_files=[~/a.parquet, $DATA/b.parquet]", "data.val_files=c.jsonl")
    assert config.data.train_files == ("/home/me/a.parquet", "/data/b.parquet")
    assert config.data.val_files == (str(tmp_path / "c.jsonl"),)
    assert config.trainer.default_local_dir == str(tmp_path / "runs/rltrain/toy-ppo")


def test_a_hub_name_is_found_in_the_local_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert resolved("actor_rollout_ref.model.path=owner/tiny").actor_rollout_ref.model.path == str(snapshot)
    absent = resolved("actor_rollout_ref.model.path=owner/absent").actor_rollout_ref.model.path
    assert absent == str(Path.cwd() / "owner" / "absent")


def test_what_was_chosen_is_told() -> None:
    before = load(SMALL)
    told = chosen(before, resolve(before, CPU))
    assert "actor_rollout_ref.rollout.max_model_len = 30" in told
    assert "trainer.device = 'cpu'" in told
    assert not any(line.startswith("trainer.total_training_steps") for line in told)


@pytest.mark.parametrize(
    ("overrides", "twice"),
    [
        ((), True),
        (("reward_model.rules=[{kind: exact},{kind: regex, pattern: a}]",), True),
        (("reward_model.rules=[{kind: exact},{kind: math}]",), False),
        (("custom_reward_function.path=rewards.py",), False),
        (("reward_model.enable=true", "reward_model.model.path=/m"), False),
        (("custom_reward_function.path=rewards.py", "reward_model.rescore=true"), True),
        (("reward_model.rescore=false",), False),
    ],
)
def test_a_users_function_is_asked_twice_only_on_request(overrides: tuple[str, ...], twice: bool) -> None:
    assert resolved("reward_model.rescore=null", *overrides).reward_model.rescore is twice


def test_the_critics_loss_is_aggregated_as_the_actors_unless_it_says() -> None:
    mode = "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    assert resolved(mode).critic.loss_agg_mode == "seq-mean-token-mean"
    assert resolved(mode, "critic.loss_agg_mode=token-mean").critic.loss_agg_mode == "token-mean"
