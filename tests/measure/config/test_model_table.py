"""Sizes of models by their names: the table is sound, and what is read from it is said and claims no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.model_table import Entry, models, sizes_by_name
from rlcheck.measure.config.read import read_run
from rlcheck.measure.memory.asked import gpu_called, profile_of
from rlcheck.measure.memory.shapes import shape_of
from tests.conftest import ROOT

CHECKS = {check.id: check for check in family_checks("CFG")}
MAIN = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"
)
BILLIONS = {
    "Qwen/Qwen2.5-0.5B": 0.49, "Qwen/Qwen2.5-7B-Instruct": 7.62, "Qwen/Qwen3-8B": 8.19, "Qwen/Qwen3-30B-A3B": 30.5,
    "Qwen/Qwen3-235B-A22B": 235, "meta-llama/Llama-3.1-8B-Instruct": 8.03, "meta-llama/Llama-3.2-1B": 1.24,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6, "mistralai/Mixtral-8x7B-v0.1": 46.7, "google/gemma-2-9b-it": 9.24,
    "microsoft/phi-4": 14.7, "deepseek-ai/DeepSeek-R1": 671, "openai/gpt-oss-20b": 20.9, "openai/gpt-oss-120b": 116.8,
    "zai-org/GLM-4.5-Air": 106.8, "HuggingFaceTB/SmolLM2-135M": 0.135, "allenai/OLMo-2-1124-7B": 7.3,
}  # fmt: skip
"""As their makers say (model cards; gpt-oss: arXiv:2508.10925; DeepSeek: arXiv:2412.19437, without its MTP layer)."""


def run_of(path: str, *words: str, look: bool = True, shape: str = "") -> ConfigFacts:
    return read_run(f"{MAIN} actor_rollout_ref.model.path={path}", words, look=look, model_shape=shape)


def verdict(id: str, run: ConfigFacts) -> Verdict:
    return CHECKS[id].judge(Facts(config=known(run)))


@pytest.mark.parametrize("entry", models().models, ids=lambda entry: entry.names[0])
def test_every_entry_has_a_shape_and_a_source(entry: Entry) -> None:
    assert set(entry.sources) <= set(models().sources)
    assert entry.sources
    shape = shape_of(entry.sizes)
    assert shape.layers > 1 < shape.kv_heads * shape.key_width
    text = entry.sizes.get("text_config", entry.sizes)
    assert "tie_word_embeddings" in text, "a billion parameters hang on it"
    assert all(name.count("/") == 1 for name in entry.names)


def test_one_entry_a_line_and_no_name_twice() -> None:
    lines = (ROOT / "rlcheck/data/models.json").read_text().splitlines()
    entries = [json.loads(line.rstrip(",")) for line in lines if line.startswith('  {"names"')]
    assert len(entries) == len(models().models) >= 60
    short = [name.rpartition("/")[2].lower() for entry in entries for name in entry["names"]]
    assert len(short) == len(set(short)), "a directory's name says which model it is"


@pytest.mark.parametrize("name", BILLIONS)
def test_parameters_are_those_that_the_makers_say(name: str) -> None:
    sizes = sizes_by_name(name)
    assert sizes is not None
    assert shape_of(sizes).parameters / 1e9 == pytest.approx(BILLIONS[name], rel=0.01)


@pytest.mark.parametrize(
    "path", ["Qwen/Qwen2.5-7B-Instruct", "$HOME/nowhere/qwen2.5-7b-instruct/", "unsloth/Qwen2.5-7B"]
)
def test_memory_of_a_model_without_files(path: str) -> None:
    run = run_of(path)
    model = run.models["actor"].value
    assert model is not None
    assert (model.sizes["hidden_size"], model.sizes["num_hidden_layers"]) == (3584, 28)
    assert any(
        f"the sizes of {model.path} are those of rlcheck's table of models, 2026-" in note for note in run.fallbacks
    )
    found = profile_of(run, gpu_called("H100-80GB"), 0)
    assert found.parameters["actor"] == pytest.approx(7.62e9, rel=0.001)
    assert any("--model-shape gives others" in note for note in found.notes)


def test_no_file_is_claimed(tmp_path: Path) -> None:
    there, elsewhere = tmp_path / "Qwen2.5-7B", run_of(str(tmp_path / "Qwen2.5-7B"))
    assert verdict("CFG030", elsewhere).status == "fail"
    assert verdict("CFG030", run_of("Qwen/Qwen2.5-7B")).status == "info"
    assert verdict("CFG030", run_of("Qwen/Qwen2.5-7B", look=False)).status == "unknown"
    for id in ("CFG031", "CFG032", "CFG035", "CFG037"):
        strange = run_of("Org/Unheard-Of", look=False)
        assert verdict(id, run_of("Qwen/Qwen2.5-7B", look=False)).status == verdict(id, strange).status != "pass", id
    heads = "actor_rollout_ref.rollout.tensor_model_parallel_size=3"
    assert verdict("CFG019", run_of("Qwen/Qwen2.5-7B", heads, look=False)).status == "fail", "sizes are known"
    there.mkdir()
    (there / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": 64}))
    model = run_of(str(there)).models["actor"].value
    assert model is not None
    assert (model.sizes["hidden_size"], model.lacking) == (64, None), "files come first"


def test_a_shape_by_name() -> None:
    model = run_of("Org/Mine", look=False, shape="Qwen/Qwen3-8B").models["actor"].value
    assert model is not None
    assert model.sizes["hidden_size"] == 4096
    with pytest.raises(ReadError, match="a model such as Qwen/"):
        run_of("Org/Mine", look=False, shape="Org/Unheard-Of")
