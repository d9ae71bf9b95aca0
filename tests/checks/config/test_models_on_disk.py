"""The checks of models, lengths, paths and rewards on directories and files as they lie on a disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.measure.config.read import read_run
from rlcheck.playbook import Library

CHECKS = family_checks("CFG")

SIZES: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 16,
    "max_position_embeddings": 2048,
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
NAMES = {"eos_token": "<|im_end|>", "pad_token": "<pad>", "tokenizer_class": "TokenizersBackend"}
VOCABULARY = {"<|im_end|>": 0, "<pad>": 1, **{chr(97 + number): number + 2 for number in range(10)}}
MODEL, ACTOR, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def write_model(
    directory: Path,
    sizes: dict[str, Any] | None = None,
    tokenizer: dict[str, Any] | None = NAMES,
    template: str = TEMPLATE,
    vocabulary: dict[str, int] = VOCABULARY,
    modules: tuple[str, ...] = ("q_proj", "v_proj"),
) -> Path:
    """A model's directory as `save_pretrained` leaves it, but for the weights themselves."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({**SIZES, **(sizes or {})}))
    header = json.dumps({f"model.layers.0.{name}.weight": {"shape": [8, 8]} for name in modules}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    if tokenizer is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    if template:
        (directory / "chat_template.jinja").write_text(template)
    return directory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with data, and a config that is sound but for its model."""
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    (tmp_path / "run.yaml").write_text(f"""
defaults: [ppo_trainer, _self_]
data: {{train_files: {tmp_path}/rows.parquet, val_files: {tmp_path}/rows.parquet}}
algorithm: {{adv_estimator: grpo}}
actor_rollout_ref:
  model: {{path: {tmp_path}/model}}
  actor: {{ppo_micro_batch_size_per_gpu: 4}}
  rollout: {{name: vllm, n: 8, log_prob_micro_batch_size_per_gpu: 4}}
trainer: {{logger: [console], default_local_dir: {tmp_path}/out, total_training_steps: 10}}
""")
    return tmp_path


def found(place: Path, *overrides: str, look: bool = True) -> dict[str, str]:
    """Check ID to status, of the checks of this half of the family that are neither content nor idle."""
    run = read_run(str(place / "run.yaml"), overrides, look=look)
    findings = judging.judge(Facts(config=known(run)), CHECKS, Library())
    return {f.id: f.status for f in findings if f.id >= "CFG030" and f.status not in ("pass", "skip")}


def test_a_sound_model_draws_nothing(place: Path) -> None:
    write_model(place / "model")
    assert found(place) == {}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"tokenizer": None}, {"CFG035": "fail"}),
        ({"template": ""}, {"CFG036": "fail"}),
        ({"tokenizer": {**NAMES, "eos_token": None}}, {"CFG037": "warn"}),
        ({"tokenizer": {**NAMES, "eos_token": None, "tokenizer_class": "GPT2Tokenizer"}}, {"CFG037": "unknown"}),
        ({"tokenizer": {**NAMES, "eos_token": "a"}}, {"CFG038": "info"}),
        ({"vocabulary": {**VOCABULARY, "<pad>": 16}}, {"CFG034": "fail"}),
        ({"vocabulary": {**VOCABULARY, "z": 16}}, {"CFG034": "warn"}),
        ({"sizes": {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}}, {"CFG031": "fail"}),
        ({"sizes": {"architectures": []}}, {"CFG031": "fail"}),
        ({"sizes": {"model_type": "own", "auto_map": {"AutoConfig": "c.C"}}}, {"CFG032": "fail"}),
        ({"sizes": {"auto_map": {"AutoConfig": "c.C"}}}, {}),
        ({"sizes": {"max_position_embeddings": 512}}, {"CFG041": "warn"}),
    ],
)
def test_what_a_directory_lacks(place: Path, how: dict[str, Any], expected: dict[str, str]) -> None:
    write_model(place / "model", **how)
    assert found(place) == expected


LORA = (f"{MODEL}.lora_rank=32", f"{MODEL}.lora_alpha=32", f"{ACTOR}.optim.lr=3e-5")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (LORA, {}),
        ((*LORA, f"{MODEL}.target_modules=[q_proj,v_proj]"), {}),
        ((*LORA, f"{MODEL}.target_modules=[q_proj,c_attn]"), {"CFG044": "warn"}),
        ((*LORA, f"{MODEL}.target_modules=[c_attn]"), {"CFG044": "fail"}),
        ((*LORA, f"{MODEL}.target_modules=q_proj"), {"CFG044": "fail"}),
        ((f"{ACTOR}.clip_ratio=0.1",), {"CFG053": "warn"}),
        ((f"{ACTOR}.grad_clip=0.5",), {"CFG054": "warn"}),
        ((f"{ACTOR}.optim.clip_grad=null",), {"CFG054": "fail"}),
        ((f"{ROLLOUT}.max_model_len=4096",), {"CFG041": "fail"}),
        ((f"{ROLLOUT}.max_model_len=600",), {"CFG040": "warn"}),
        (("+data.trust_remote_code=True",), {}),
        (("data.train_files=nowhere.parquet",), {"CFG065": "fail"}),
        (("data.train_files=hdfs://a/b.parquet",), {"CFG065": "unknown"}),
        (("trainer.logger=[console,wanbd]",), {"CFG069": "fail"}),
    ],
)
def test_overrides_on_a_sound_model(place: Path, overrides: tuple[str, ...], expected: dict[str, str]) -> None:
    write_model(place / "model")
    assert found(place, *overrides) == expected


def test_without_the_disk_nothing_about_files_passes(place: Path) -> None:
    write_model(place / "model", tokenizer=None)
    statuses = found(place, look=False)
    assert set(statuses.values()) == {"unknown"}
    assert {"CFG030", "CFG032", "CFG034", "CFG035", "CFG036", "CFG041", "CFG065", "CFG066"} <= set(statuses)


def test_spellings_of_paths(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(place / "model")
    monkeypatch.setenv("HOME", str(place))
    assert found(place, f"{MODEL}.path={place}/model/") == {"CFG065": "fail"}, "verl asserts the last character"
    assert found(place, f"{MODEL}.path=~/model") == {"CFG065": "fail"}, "verl does not expand it"
    assert found(place, f"{MODEL}.path={place}/modle") == {"CFG030": "fail"}
    assert found(place, f"trainer.default_local_dir={place}/rows.parquet/out") == {"CFG066": "fail"}


def test_the_reward_function(place: Path) -> None:
    write_model(place / "model")
    file = place / "score.py"
    overrides = (f"custom_reward_function.path={file}", "custom_reward_function.name=score")
    file.write_text("try:\n    from fast import score\nexcept ImportError:\n    def score(): ...\n")
    assert found(place, *overrides) == {}
    file.write_text("def compute_score(): ...\n")
    assert found(place, *overrides) == {"CFG067": "fail"}
    file.write_text("from others import *\n")
    assert found(place, *overrides) == {}
    file.write_text("def score(:\n")
    assert found(place, *overrides) == {"CFG067": "warn"}
    file.unlink()
    assert found(place, *overrides) == {"CFG065": "fail"}


GRPO = (
    "algorithm.adv_estimator=grpo",
    f"{MODEL}.path=Qwen/Qwen3-8B",
    f"{ACTOR}.optim.lr=1e-6",
    f"{ACTOR}.use_kl_loss=True",
    f"{ACTOR}.kl_loss_coef=0.001",
    f"{ACTOR}.entropy_coeff=0",
    f"{ROLLOUT}.name=vllm",
    f"{ROLLOUT}.n=5",
)
EXAMPLES = {
    "grpo": GRPO,
    "ppo": (
        f"{MODEL}.path=Qwen/Qwen3-8B",
        "critic.model.path=Qwen/Qwen3-8B",
        f"{ROLLOUT}.name=vllm",
        "critic.optim.lr=1e-5",
    ),
    "dapo": (*GRPO, f"{ACTOR}.clip_ratio_low=0.2", f"{ACTOR}.clip_ratio_high=0.28", f"{ACTOR}.clip_ratio_c=10.0"),
    "gspo": (
        *GRPO,
        f"{ACTOR}.policy_loss.loss_mode=gspo",
        f"{ACTOR}.clip_ratio_low=3e-4",
        f"{ACTOR}.clip_ratio_high=4e-4",
    ),
    "cispo": (
        *GRPO,
        f"{ACTOR}.policy_loss.loss_mode=cispo",
        f"{ACTOR}.clip_ratio_low=10",
        f"{ACTOR}.clip_ratio_high=0.2",
    ),
    "gmpo": (
        *GRPO,
        f"{ACTOR}.policy_loss.loss_mode=geo_mean",
        f"{ACTOR}.clip_ratio_low=0.4",
        f"{ACTOR}.clip_ratio_high=0.4",
    ),
    "lora": (*GRPO, f"{MODEL}.lora_rank=64", f"{MODEL}.lora_alpha=32", f"{ACTOR}.optim.lr=3e-6"),
    "validation": (*GRPO, f"{ROLLOUT}.val_kwargs.top_p=0.7", f"{ROLLOUT}.val_kwargs.do_sample=True"),
    "no chunks": (*GRPO, f"{ROLLOUT}.enable_chunked_prefill=False", f"{ROLLOUT}.free_cache_engine=False"),
    "unclipped keys": (*GRPO, f"{ACTOR}.grad_clip=1.0", f"{ACTOR}.clip_ratio=0.2"),
}


@pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.0", "0.9.1"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_examples_of_verl_set_draws_no_problem(name: str, version: str) -> None:
    run = read_run("ppo_trainer", EXAMPLES[name], framework=f"verl@{version}", look=False)
    findings = judging.judge(Facts(config=known(run)), CHECKS, Library())
    assert [(f.id, f.message) for f in findings if f.id >= "CFG030" and f.status in ("fail", "warn", "error")] == []


@pytest.mark.parametrize("recipe", ["toy-ppo", "toy-grpo", "gsm8k-ppo", "gsm8k-grpo"])
def test_recipes_of_rltrain_draw_no_problem(recipe: str) -> None:
    findings = judging.judge(Facts(config=known(read_run(recipe, ()))), CHECKS, Library())
    assert [(f.id, f.message) for f in findings if f.id >= "CFG030" and f.status in ("fail", "warn", "error")] == []
