"""The toy: a model of any architecture, a tokenizer that all load alike, data that a blind policy cannot answer."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rltrain.config.schema import DataConfig, RunConfig
from rltrain.config.schema.data import ToyDemonstrator, ToyTask
from rltrain.core.errors import UserError
from rltrain.data.dataset import build_dataset
from rltrain.data.demonstrations import IGNORED
from rltrain.data.sft import SftSettings, build_sft
from rltrain.data.template import load_tokenizer
from rltrain.toy.make import ToyPaths, make_toy
from rltrain.toy.tasks import DEMONSTRATORS, NAMES, TASKS
from rltrain.toy.tokenizer import build_tokenizer, hold_loaded_equal

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
QWEN2 = {"model_type": "qwen2", **SIZES, "intermediate_size": 64, "num_key_value_heads": 2}
LLAMA = {**QWEN2, "model_type": "llama"}
OPT = {"model_type": "opt", **SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}


def config(seed: int = 1, **toy: Any) -> RunConfig:
    sizes = {"model": QWEN2, "num_train": 64, "num_val": 16, "num_demos": 100}
    return RunConfig.model_validate(
        {
            "actor_rollout_ref": {"rollout": {"name": "hf"}},
            "toy": {**sizes, **toy},
            "trainer": {"seed": seed},
        }
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def contents(paths: ToyPaths) -> dict[str, bytes]:
    files = [file for file in paths.directory.rglob("*") if file.is_file()]
    return {str(file.relative_to(paths.directory)): file.read_bytes() for file in files}


@pytest.mark.parametrize("model", [QWEN2, LLAMA, OPT], ids=lambda model: model["model_type"])
def test_model_and_tokenizer_load_from_disk(tmp_path: Path, model: dict[str, Any]) -> None:
    paths = make_toy(config(model=model, vocab_size=32), tmp_path / "toy")
    tokenizer: Any = load_tokenizer(paths.model)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "reverse 0123456789"}], add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.convert_ids_to_tokens(ids) == ["<|user|>", "reverse", *"0123456789", "<|assistant|>"]
    assert tokenizer.decode([*ids[2:5], tokenizer.eos_token_id], skip_special_tokens=True) == "012"
    loaded: Any = AutoModelForCausalLM.from_pretrained(str(paths.model))
    assert loaded.config.model_type == model["model_type"]
    assert loaded.get_input_embeddings().weight.shape == (32, 32)
    assert loaded.dtype == torch.float32
    assert torch.isfinite(loaded(torch.tensor([ids])).logits).all()
    for settings in (AutoConfig.from_pretrained(paths.model), GenerationConfig.from_pretrained(paths.model)):
        assert (settings.eos_token_id, settings.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert (paths.model / "model.safetensors").is_file()


def test_every_id_that_can_be_sampled_has_a_text(tmp_path: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(str(make_toy(config(vocab_size=40), tmp_path / "toy").model))
    texts = [tokenizer.decode([number]) for number in range(40)]
    assert len(set(texts)) == 40
    assert all(texts)
    assert [tokenizer.decode([number], skip_special_tokens=True) for number in (39, 7)] == [texts[39], "0"]


def test_a_tokenizer_that_loads_otherwise_than_it_was_built_is_refused(tmp_path: Path) -> None:
    model = make_toy(config(), tmp_path / "toy").model
    hold_loaded_equal(model, build_tokenizer(None), "qwen2")
    # Without the names of the tasks among the added tokens, Qwen2's own splitting would lose them.
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in NAMES]
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="transformers loads Qwen2Tokenizer for it"):
        hold_loaded_equal(model, build_tokenizer(None), "qwen2")


def test_an_assistant_turn_ends_as_a_response_does(tmp_path: Path) -> None:
    tokenizer: Any = load_tokenizer(make_toy(config(), tmp_path / "toy").model)
    chat = [{"role": "user", "content": "copy 1"}, {"role": "assistant", "content": "1"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|user|>copy 1<|assistant|>1<eos>"


def test_data_pass_the_readers_and_validation_is_held_out(tmp_path: Path) -> None:
    paths = make_toy(config(num_digits=3), tmp_path / "toy")
    tokenizer, data = load_tokenizer(paths.model), DataConfig()
    train = build_dataset(str(paths.train_file), data, tokenizer, "train")
    val = build_dataset(str(paths.val_file), data, tokenizer, "val")
    assert (len(train), len(val)) == (64, 16)
    prompts = [{row.prompt_ids for row in part} for part in (train, val)]
    assert (len(prompts[0]), len(prompts[1])) == (64, 16)
    assert not prompts[0] & prompts[1]
    settings = SftSettings(max_length=32, length_key="data.max_length", overlong="error")
    for file, count, asked in ((paths.sft_file, 100, prompts[0]), (paths.sft_val_file, 16, prompts[1])):
        demos = build_sft(str(file), "data.train_files", settings, tokenizer)
        assert len(demos) == count
        for demo in demos:
            prompt = tuple(token for token, label in zip(demo.input_ids, demo.labels, strict=True) if label == IGNORED)
            digits = tokenizer.decode(prompt).split("reverse")[1].removesuffix("<|assistant|>").strip()
            assert prompt in asked
            assert tokenizer.decode(demo.input_ids[len(prompt) :]) == f"{digits[::-1]}<eos>"
    for row in (*train, *val):
        assert row.ground_truth == row.messages[0]["content"].removeprefix("reverse ")[::-1]
        assert row.data_source == "toy/reverse"


@pytest.mark.parametrize(
    ("task", "answer"), [("reverse", "2091"), ("copy", "1902"), ("sort", "0129"), ("rotate", "9021")]
)
def test_tasks(task: ToyTask, answer: str) -> None:
    assert TASKS[task].solve("1902") == answer
    assert TASKS[task].prompt("1902") == f"{task} 1902"
    assert DEMONSTRATORS[task]("1902", random.Random(0)) == answer


def test_the_config_knows_the_tasks_there_are() -> None:
    assert set(get_args(ToyTask)) == set(TASKS) == {task.name for task in TASKS.values()}
    assert set(get_args(ToyDemonstrator)) == set(DEMONSTRATORS)


def test_demonstration_mixture(tmp_path: Path) -> None:
    mixture = {"permutation": 0.5, "copy": 0.25}
    demos = rows(make_toy(config(num_demos=2000, demo_mixture=mixture), tmp_path / "toy").sft_file)
    drawn = Counter(row["extra_info"]["demonstrator"] for row in demos)
    for name, share in {**mixture, "reverse": 0.25}.items():
        assert drawn[name] / 2000 == pytest.approx(share, abs=0.05)
    answers: dict[str, set[str]] = {}
    for row in demos:
        digits = row["prompt"][0]["content"].split()[1]
        name = row["extra_info"]["demonstrator"]
        if name == "permutation":
            assert sorted(row["response"]) == sorted(digits)
            answers.setdefault(digits, set()).add(row["response"])
        else:
            assert row["response"] == TASKS[name].solve(digits)
    assert max(map(len, answers.values())) > 3  # drawn anew each time, not learnt by heart


def test_noise_is_any_digits() -> None:
    drawn = [DEMONSTRATORS["noise"]("0000", random.Random(seed)) for seed in range(20)]
    assert {len(answer) for answer in drawn} == {4}
    assert len(set("".join(drawn))) == 10


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    first, again, other = (
        contents(make_toy(config(seed), tmp_path / name)) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    changed = {name for name in first if first[name] != other[name]}
    assert changed == {"train.jsonl", "val.jsonl", "sft.jsonl", "sft_val.jsonl", "toy.json", "model/model.safetensors"}


def test_making_draws_nothing_from_the_callers_generator(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_toy(config(), tmp_path / "toy")
    assert torch.equal(torch.rand(3), expected)


def test_made_once_and_anew_when_the_settings_change(tmp_path: Path) -> None:
    paths = make_toy(config(), tmp_path / "toy")
    before = os.stat(paths.train_file)
    assert make_toy(config(), tmp_path / "toy").directory == paths.directory
    assert os.stat(paths.train_file) == before
    make_toy(config(task="copy"), tmp_path / "toy")
    assert rows(paths.train_file)[0]["data_source"] == "toy/copy"
    assert [file.name for file in tmp_path.iterdir()] == ["toy"]


def test_without_a_model_only_data_are_made(tmp_path: Path) -> None:
    paths = make_toy(config(model={}), tmp_path / "toy")
    assert not paths.model.exists()
    with_model = make_toy(config(), tmp_path / "other")
    assert paths.train_file.read_bytes() == with_model.train_file.read_bytes()
    before = os.stat(paths.train_file)
    make_toy(config(model={}), tmp_path / "toy")
    assert os.stat(paths.train_file) == before


def test_a_part_that_went_missing_is_made_anew(tmp_path: Path) -> None:
    paths = make_toy(config(), tmp_path / "toy")
    before = contents(paths)
    paths.val_file.unlink()
    assert contents(make_toy(config(), tmp_path / "toy")) == before


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        make_toy(config(model={"model_type": "no-such-model"}), tmp_path / "toy")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_toy_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and holds no toy"):
        make_toy(config(), tmp_path / "toy")
    assert [file.name for file in tmp_path.rglob("*")] == ["toy", "thesis.txt"]


@pytest.mark.parametrize(
    ("toy", "message"),
    [
        ({"num_digits": 2, "num_train": 100}, "toy.num_digits=2 gives 100 different prompts, .* asks for 116"),
        ({"vocab_size": 8}, "toy.vocab_size=8 is less than the 21 tokens"),
        ({"model": {"hidden_size": 32}}, "toy.model has no model_type"),
        ({"model": {**QWEN2, "vocab_size": 99}}, "toy.model: remove vocab_size"),
        ({"model": {"model_type": "no-such-model"}}, "no model can be built"),
        ({"model": {**QWEN2, "hidden_size": "wide"}}, "no model can be built"),
        ({"model": {**QWEN2, "num_attention_heads": 5, "head_dim": None}}, "no model can be built"),
        ({"model": {"model_type": "t5"}}, "no model can be built"),
    ],
)
def test_settings_that_cannot_be_met(tmp_path: Path, toy: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_toy(config(**toy), tmp_path / "toy")


def test_no_toy_section(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the config has no toy section"):
        make_toy(config().model_copy(update={"toy": None}), tmp_path)


@pytest.mark.parametrize("mixture", [{"copy": 0.6, "noise": 0.5}, {"copy": 1.5}, {"copy": -0.1}, {"juggle": 0.1}])
def test_mixtures_that_make_no_sense(mixture: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="demo_mixture"):
        config(demo_mixture=mixture)
