"""verl configs: defaults of each version, files over them, overrides as Hydra takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.facts.config import ConfigFacts
from rlcheck.measure.config import verl_data
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.read import read_run

NAMED = ["actor_rollout_ref.rollout.name=vllm"]
SIZES = "hidden_size=64,num_hidden_layers=2,max_position_embeddings=2048"


def _said(facts: ConfigFacts, *kinds: str) -> dict[str, str]:
    return {problem.key: problem.message for problem in facts.problems if not kinds or problem.kind in kinds}


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.0", "0.9.1"])
@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_defaults_of_every_version_lack_the_engines_name_alone(version: str, name: str) -> None:
    facts = read_run(name, [], framework=f"verl@{version}", look=False)
    assert facts.version == version
    assert set(_said(facts)) == {"actor_rollout_ref.rollout.name"}
    assert facts.spec.actor.sharding.strategy == ("megatron" if "megatron" in name else "fsdp")
    assert facts.spec.critic is not None  # gae
    assert facts.spec.ref is None


def test_versions_differ_where_verl_does() -> None:
    new, old = (read_run("ppo_trainer", [], verl_version=v, look=False) for v in ("0.9.1", "0.7.1"))
    assert (new.spec.rollout.max_seqs, old.spec.rollout.max_seqs) == (256, 1024)
    assert "critic.fsdp.param_offload" in new.values
    assert "critic.model.fsdp_config.param_offload" in old.values
    assert "critic.fsdp.param_offload" not in old.values


def test_a_file_over_ppo_trainer_is_composed_and_its_keys_have_places(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "hydra:\n  searchpath: [file://verl/trainer/config]\ndefaults:\n  - ppo_trainer\n  - _self_\n"
        "data:\n  train_batch_size: 64\nactor_rollout_ref:\n  rollout:\n    name: sglang\n    n: 8\n"
    )
    facts = read_run(str(path), ["actor_rollout_ref.rollout.n=4", "algorithm.adv_estimator=grpo"])
    spec = facts.spec
    assert (facts.framework, spec.rollout.name, spec.rollout.n, spec.data.train_batch_size) == ("verl", "sglang", 4, 64)
    assert spec.critic is None
    place = facts.given["data.train_batch_size"]
    assert (place.file, place.line, place.column) == (str(path), 7, 3)
    assert facts.given["actor_rollout_ref.rollout.n"].text == "actor_rollout_ref.rollout.n=4"


def test_interpolations_follow_what_was_given() -> None:
    words = [*NAMED, "actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_epochs=3"]
    words += ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=9000", "actor_rollout_ref.actor.use_kl_loss=True"]
    facts = read_run("ppo_trainer", [*words, "trainer.project_name=p", "trainer.experiment_name=e"], look=False)
    assert facts.spec.ref is not None
    assert (facts.spec.ref.infer_dynamic_batch, facts.spec.ref.infer_max_tokens) == (True, 9000)
    assert (facts.spec.actor.infer_dynamic_batch, facts.spec.actor.infer_max_tokens) == (True, 9000)
    assert facts.spec.critic is not None
    assert facts.spec.critic.epochs == 3
    assert facts.spec.run_dir == "checkpoints/p/e"


@pytest.mark.parametrize(
    ("word", "kind", "instead"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batch_sizes=3", "unknown", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("+actor_rollout_ref.actor.ppo_mini_batch_sizes=3", "unknown", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        ("trainer.wandb_proxy=http://a", "unknown", "+trainer.wandb_proxy"),
        ("+trainer.total_epoch=3", "unread", "trainer.total_epochs"),
        ("critic.model.fsdp_config.param_offload=True", "moved", "critic.fsdp.param_offload"),
        ("ray_init.num_cpus=8", "moved", "ray_kwargs.ray_init.num_cpus"),
        ("critic.ppo_micro_batch_size=8", "deprecated", "critic.ppo_micro_batch_size_per_gpu"),
        ("reward_model.reward_manager=dapo", "deprecated", "reward.reward_manager.name"),
        ("+data.train_batch_size=3", "refused", ""),
        ("~data.nothing", "refused", ""),
        ("trainer.n_gpus_per_node=many", "type", ""),
        ("trainer.logger=[console", "syntax", ""),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", "unknown", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_key_is_said(word: str, kind: str, instead: str) -> None:
    facts = read_run("ppo_trainer", [*NAMED, word], look=False)
    found = [problem for problem in facts.problems if problem.place.text == word]
    assert [problem.kind for problem in found] == [kind]
    assert found[0].instead == ((instead,) if instead else ())


@pytest.mark.parametrize(
    "word",
    [
        "+trainer.wandb_proxy=http://a",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.disable_cascade_attn=True",
        "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "+ray_kwargs.ray_init.address=auto",
        "+algorithm.gdpo_reward_keys=[a,b]",
        "+actor_rollout_ref.actor.checkpoint.save_lora_only=True",
        "trainer.total_training_steps=10",
        "actor_rollout_ref.actor.entropy_coeff=0.001",
        "hydra.run.dir=/tmp",
    ],
)
def test_what_verl_accepts_is_not_complained_of(word: str) -> None:
    engine = ["model_engine=megatron"] if "megatron" in word else []
    assert _said(read_run("ppo_trainer", [*NAMED, *engine, word], look=False)) == {}


def test_megatron_is_read_from_its_own_section() -> None:
    words = ["model_engine=megatron", *NAMED, "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"]
    words += ["+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full"]
    words += ["actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.megatron.param_offload=true"]
    facts = read_run("ppo_trainer", words, look=False)
    actor = facts.spec.actor
    assert actor.sharding.tensor_parallel == 4
    assert actor.sharding.grad_offload
    assert actor.model.gradient_checkpointing
    assert facts.spec.ref is not None
    assert facts.spec.ref.sharding.tensor_parallel == 4  # follows the actor's
    assert not read_run("ppo_megatron_trainer", NAMED, look=False).spec.actor.model.gradient_checkpointing


def test_lora_needs_no_second_copy_and_deprecated_totals_are_divided() -> None:
    words = [*NAMED, "actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.actor.use_kl_loss=True"]
    facts = read_run("ppo_trainer", [*words, "actor_rollout_ref.actor.ppo_micro_batch_size=32"], look=False)
    assert facts.spec.ref is not None
    assert facts.spec.ref.shares_actor
    assert facts.spec.actor.micro_batch_size == 4
    assert facts.spec.ref.infer_micro_batch_size == 4
    assert any("log_prob_micro_batch_size_per_gpu" in line for line in facts.fallbacks)


def test_the_engines_length_is_the_models() -> None:
    assert read_run("ppo_trainer", NAMED, look=False, model_shape=SIZES).spec.rollout.max_model_len == 2048
    assert read_run("ppo_trainer", NAMED, look=False).spec.rollout.max_model_len == 1024


def test_a_full_dump_reads_as_its_own_defaults(tmp_path: Path) -> None:
    import json

    from rlcheck.measure.config.trees import unflatten

    path = tmp_path / "dump.json"
    path.write_text(json.dumps(unflatten(verl_data.defaults("0.9.1", "veomni"))))
    facts = read_run(str(path), NAMED, look=False)
    assert facts.spec.actor.sharding.strategy == "veomni"
    assert _said(facts) == {}


def test_the_reward_model_is_served_by_an_engine() -> None:
    words = [
        "reward.reward_model.enable=True",
        "reward.reward_model.model_path=a/b",
        "reward.reward_model.rollout.name=vllm",
    ]
    facts = read_run("ppo_trainer", [*NAMED, *words, "reward.reward_model.enable_resource_pool=True",
                                     "reward.reward_model.nnodes=1"], look=False)  # fmt: skip
    role = facts.spec.reward_model
    assert role is not None
    assert role.engine is not None
    assert (role.model.path, role.engine.name, role.own_gpus) == ("a/b", "vllm", 8)


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("trainer:\n\ttotal_epochs: 1\n")
    for source in (str(bad), str(tmp_path), str(tmp_path / "no.yaml")):
        with pytest.raises(ReadError) as caught:
            read_run(source, [])
        assert "\n" not in str(caught.value)
    with pytest.raises(ReadError, match=r"bad.yaml:2:.*tab"):
        read_run(str(bad), [])
    bad.write_text("data: {a: 1}\ndata: {train_batch_size: 2}\n")
    assert _said(read_run(str(bad), [], framework="verl"), "syntax") == {
        "data": "given twice; line 1 is overruled by this one"
    }
