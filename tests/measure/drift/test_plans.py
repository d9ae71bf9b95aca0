"""What is measured and tried, before any process is started: config, prompts, changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import yaml
from safetensors.torch import load_file

from rlcheck.facts.drift import DriftFacts, Gap
from rlcheck.measure.config.read import read_run
from rltrain.config.schema import RunConfig
from rltrain.controller.prepare import tokenizer_of
from rltrain.core.errors import RunFailure, UserError
from rltrain.measure.drift.attempts import Attempts
from rltrain.measure.drift.configs import Subject, changed, subject_of
from rltrain.measure.drift.prompts import make_prompts
from rltrain.measure.drift.report import Report
from rltrain.measure.drift.variants import Change, readings, restarts

ROLLOUT = "actor_rollout_ref.rollout"
Made = Callable[..., Subject]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """The subject of a toy with overrides."""

    def make(*overrides: str, **request: Any) -> Subject:
        words = ["toy.num_train=64", "toy.num_demos=1", *overrides]
        return subject_of({"source": "toy-ppo", "overrides": words, "directory": str(tmp_path), **request})

    return make


def weights(subject: Subject) -> dict[str, torch.Tensor]:
    return load_file(Path(str(subject.config.actor_rollout_ref.model.path)) / "model.safetensors")


def test_only_the_actor_is_left(made: Made) -> None:
    words = ["actor_rollout_ref.actor.use_kl_loss=true", "algorithm.rollout_correction.bypass_mode=true"]
    config = made(*words, "data.max_response_length=200").config
    assert not any([config.critic.enable, config.needs_reference, config.trainer.audit])
    assert not config.algorithm.rollout_correction.bypass_mode
    assert (config.data.max_response_length, config.actor_rollout_ref.rollout.max_model_len) == (32, 216)


def test_weights_drawn_anew_are_others_of_the_same_shape(made: Made, tmp_path: Path) -> None:
    saved, random = made(), made(random_weights=True)
    assert (saved.weights_from, random.weights_from) == ("toy", "random")
    one, other = (
        load_file(Path(str(of.config.actor_rollout_ref.model.path)) / "model.safetensors") for of in (saved, random)
    )
    assert {name: tensor.shape for name, tensor in one.items()} == {
        name: tensor.shape for name, tensor in other.items()
    }
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    assert len(tokenizer_of(random.config)) == len(tokenizer_of(saved.config))


def test_a_directory_without_weights_gets_some(made: Made) -> None:
    model = Path(str(made().config.actor_rollout_ref.model.path))
    (model / "model.safetensors").unlink()
    found = made(f"actor_rollout_ref.model.path={model}")
    assert found.weights_from == "random"
    assert (Path(str(found.config.actor_rollout_ref.model.path)) / "model.safetensors").is_file()


def test_overrides_are_laid_over_a_resolved_config(made: Made) -> None:
    config = made().config
    variable = "+ray_kwargs.ray_init.runtime_env.env_vars.VLLM_BATCH_INVARIANT='1'"
    found = changed(
        config, (f"{ROLLOUT}.max_num_seqs=1", f"{ROLLOUT}.engine_kwargs.vllm.hf_overrides={{a: b}}", variable)
    )
    assert found.actor_rollout_ref.rollout.max_num_seqs == 1
    assert found.actor_rollout_ref.rollout.engine_kwargs == {"vllm": {"hf_overrides": {"a": "b"}}}
    assert found.ray_kwargs.ray_init["runtime_env"] == {"env_vars": {"VLLM_BATCH_INVARIANT": "1"}}
    assert found.actor_rollout_ref.model.path == config.actor_rollout_ref.model.path
    with pytest.raises(UserError, match="max_num_seqs"):
        changed(config, (f"{ROLLOUT}.max_num_seqs=0",))


def test_a_verl_config(made: Made, tmp_path: Path) -> None:
    """Dtypes, packing and data of the training side come along, and what FSDP2 does not reproduce is said."""
    toy = made().config
    config = tmp_path / "verl.yaml"
    config.write_text(yaml.safe_dump({
        "defaults": ["ppo_trainer", "_self_"],
        "data": {"max_prompt_length": 16, "max_response_length": 6, "train_files": [toy.data.train_files]},
        "actor_rollout_ref": {
            "model": {"path": toy.actor_rollout_ref.model.path, "use_remove_padding": True, "lora_rank": 8},
            "actor": {"fsdp_config": {"dtype": "float32"}},
            "rollout": {"name": "vllm", "temperature": 0.6},
        },
    }))  # fmt: skip
    run = msgspec.to_builtins(read_run(str(config), ()))
    found = subject_of({"run": run, "directory": str(tmp_path)})
    parts = found.config.actor_rollout_ref
    assert (parts.rollout.temperature, parts.actor.fsdp_config.dtype) == (0.6, "float32")
    assert parts.model.use_remove_padding
    assert found.config.data.train_files == (toy.data.train_files,)
    assert any("LoRA" in note for note in found.notes)


def test_prompts_of_every_kind_fit(made: Made) -> None:
    config = made().config
    prompts = make_prompts(config, tokenizer_of(config), 8)
    kinds = [sample.data_source for sample in prompts.usual]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "data": 8, "short": 2, "long": 2, "multi_turn": 2, "repeated_prefix": 8,
    }  # fmt: skip
    assert max(len(sample.prompt_ids) for sample in prompts.usual) == 16
    assert len({sample.uid for sample in prompts.usual}) == len(kinds)
    shared = {sample.prompt_ids[:12] for sample in prompts.usual if sample.data_source == "repeated_prefix"}
    assert len(shared) == 1
    assert prompts.hot
    assert not prompts.notes


def test_without_a_template_or_data_the_rest_is_asked(made: Made) -> None:
    config = made().config
    tokenizer = tokenizer_of(config)
    tokenizer.chat_template = None
    data = config.data.model_copy(update={"train_files": ("/nowhere/rows.jsonl",)})
    prompts = make_prompts(config.model_copy(update={"data": data}), tokenizer, 8)
    assert {sample.data_source for sample in prompts.usual} == {"short", "long", "repeated_prefix"}
    assert len(prompts.notes) == 2
    assert any("/nowhere/rows.jsonl" in note for note in prompts.notes)


def names(changes: list[Change]) -> list[str]:
    return [change.name for change in changes]


def on_gpus(config: RunConfig, *overrides: str) -> RunConfig:
    return changed(config, ("trainer.device=cuda", *overrides))


def test_on_a_cpu_little_can_be_changed(made: Made) -> None:
    config = made().config
    assert names(readings(config)) == ["alone", "eager_attention"]
    assert names(restarts(config)) == ["no_prefix_caching", "one_sequence"]
    assert restarts(changed(config, (f"{ROLLOUT}.name=hf",))) == []


def test_on_gpus_in_bfloat16(made: Made) -> None:
    dtypes = (f"{ROLLOUT}.dtype=bfloat16", "actor_rollout_ref.actor.fsdp_config.dtype=bfloat16")
    words = (*dtypes, f"{ROLLOUT}.enforce_eager=false", "actor_rollout_ref.model.use_remove_padding=true")
    config = on_gpus(made().config, *words, f"{ROLLOUT}.tensor_model_parallel_size=2")
    assert names(readings(config)) == ["alone", "padded", "eager_attention"]
    found = restarts(config)
    assert names(found) == [
        "enforce_eager", "no_prefix_caching", "no_chunked_prefill", "attention_backend", "engine_float32_head",
        "one_gpu", "batch_invariant", "one_sequence", "train_float32", "float32",
    ]  # fmt: skip
    for change in found:
        assert changed(config, change.overrides) != config, change.name


def test_dtypes_that_differ_are_tried_first(made: Made) -> None:
    config = changed(made().config, (f"{ROLLOUT}.dtype=bfloat16",))
    found = restarts(config)
    assert names(found)[:2] == ["engine_dtype", "float32"]
    assert found[0].overrides == ("actor_rollout_ref.actor.fsdp_config.dtype=bfloat16",)


def test_what_a_setting_has_off_is_not_turned_off(made: Made) -> None:
    words = (
        f"{ROLLOUT}.enable_prefix_caching=false",
        f"{ROLLOUT}.enable_chunked_prefill=false",
        f"{ROLLOUT}.max_num_seqs=1",
    )
    assert restarts(changed(made().config, words)) == []


@pytest.fixture
def trials() -> Attempts:
    return Attempts(Gap(log_probs_diff_mean=0.1), 0.001, Report(lambda _: None, DriftFacts()))


def test_what_removes_a_gap(trials: Attempts) -> None:
    assert trials.removes(0.01)
    assert not trials.removes(0.02)
    assert trials.is_large
    small = Attempts(Gap(log_probs_diff_mean=0.003), 0.001, Report(lambda _: None, DriftFacts()))
    assert small.removes(0.001)
    assert not small.removes(0.0011)
    assert not small.is_large


def test_a_change_that_cannot_be_tried_is_noted_and_ends_nothing(trials: Attempts) -> None:
    def refused() -> Gap:
        raise RunFailure("vLLM has\nno such switch")

    trials.attempt(Change("one", "a switch"), refused)
    assert (trials.found[0].error, trials.found[0].gap, trials.done) == ("vLLM has no such switch", None, False)
    trials.attempt(Change("two", "another"), lambda: Gap(log_probs_diff_mean=0.001))
    assert trials.done
    trials.try_all = True
    assert not trials.done
