"""What is no capsule, or a damaged one, is one line; nothing in it runs."""

from __future__ import annotations

import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rltrain.proof.plugin import run
from tests.trainer.proof.make import make
from tests.trainer.proof.plan import Plan


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("it ran",))


@pytest.fixture
def capsule(tmp_path: Path) -> Path:
    return make(tmp_path / "step_1", Plan(prompts=1, n=2))


def failure_of(capsule: Path) -> str:
    found = run({"capsules": [str(capsule)], "checkpoint": None}, lambda _: None)
    assert "\n" not in found["failure"]["line"]
    return found["failure"]["line"]


def test_no_directory(tmp_path: Path) -> None:
    assert "is no directory" in failure_of(tmp_path / "none")


@pytest.mark.parametrize("name", ["capsule.json", "rows.jsonl", "batch.safetensors"])
def test_a_missing_file(capsule: Path, name: str) -> None:
    (capsule / name).unlink()
    assert name in failure_of(capsule)


@pytest.mark.parametrize("name", ["capsule.json", "rows.jsonl", "batch.safetensors", "weights.safetensors"])
def test_a_damaged_file(capsule: Path, name: str) -> None:
    data = (capsule / name).read_bytes()
    (capsule / name).write_bytes(data[: len(data) // 2])
    assert name in failure_of(capsule)


@pytest.mark.parametrize("name", ["capsule.json", "batch.safetensors", "weights.safetensors"])
def test_a_pickle_does_not_run(capsule: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (capsule / name).write_bytes(pickle.dumps(Evil()))
    assert failure_of(capsule)
    assert "it ran" not in capsys.readouterr().out


def test_another_schema(capsule: Path) -> None:
    head = json.loads((capsule / "capsule.json").read_bytes())
    (capsule / "capsule.json").write_text(json.dumps({**head, "schema": 99}))
    assert "schema 99" in failure_of(capsule)


def test_tokens_outside_the_vocabulary_and_other_sizes(capsule: Path) -> None:
    batch = load_file(capsule / "batch.safetensors")
    save_file({**batch, "input_ids": batch["input_ids"] + 10**6}, capsule / "batch.safetensors")
    assert "vocabulary" in failure_of(capsule)
    save_file({**batch, "values": torch.zeros(9, 3)}, capsule / "batch.safetensors")
    assert "'values'" in failure_of(capsule)


def test_what_is_not_there_is_unknown(capsule: Path) -> None:
    (capsule / "weights.safetensors").unlink()
    found = run({"capsules": [str(capsule)], "checkpoint": None}, lambda _: None)
    links = {link["name"]: link for link in found["capsules"][0]["links"]}
    assert links["old-log-probs"]["status"] == links["gradient"]["status"] == "unknown"
    assert links["rewards"]["status"] == links["advantages"]["status"] == "same"


@pytest.mark.parametrize("name", ["capsule.json", "rows.jsonl", "batch.safetensors", "weights.safetensors"])
@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(capsule: Path, name: str) -> None:
    (capsule / name).unlink()
    os.mkfifo(capsule / name)
    assert "no regular file" in failure_of(capsule)


@pytest.mark.timeout(60)
def test_a_pipe_in_the_tokenizer_is_not_waited_for(capsule: Path) -> None:
    (capsule / "tokenizer" / "tokenizer.json").unlink()
    os.mkfifo(capsule / "tokenizer" / "tokenizer.json")
    assert links_of(capsule)["prompt-ids"]["status"] == "unknown"


def head_with(capsule: Path, **changed: object) -> None:
    head = json.loads((capsule / "capsule.json").read_bytes())
    (capsule / "capsule.json").write_text(json.dumps({**head, **changed}))


def links_of(capsule: Path) -> dict[str, Any]:
    found = run({"capsules": [str(capsule)], "checkpoint": None}, lambda _: None)
    return {link["name"]: link for link in found["capsules"][0]["links"]}


@pytest.mark.parametrize(
    "size", [{"hidden_size": 10**9}, {"num_hidden_layers": 10**9}, {"vocab_size": 10**9}, {"intermediate_size": 10**10}]
)
@pytest.mark.timeout(120)
def test_a_model_larger_than_its_weights_is_not_allocated(capsule: Path, size: dict[str, int]) -> None:
    config = json.loads((capsule / "capsule.json").read_bytes())["model_config"]
    head_with(capsule, model_config={**config, **size})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    link = links_of(capsule)["old-log-probs"]
    assert link["status"] == "unknown"
    assert "shape" in link["said"] or "asks for" in link["said"], link
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


@pytest.mark.timeout(60)
def test_numbers_that_no_step_has(capsule: Path) -> None:
    for name in ("world_size", "total_steps", "rows", "step"):
        before = (capsule / "capsule.json").read_bytes()
        head_with(capsule, **{name: 10**12})
        assert failure_of(capsule)
        (capsule / "capsule.json").write_bytes(before)
    head_with(capsule, data_rows=10**12)
    assert "too long to be drawn" in links_of(capsule)["prompts"]["said"]


@pytest.mark.timeout(60)
def test_config_numbers_that_no_step_has(capsule: Path) -> None:
    config = json.loads((capsule / "capsule.json").read_bytes())["config"]
    rollout = {**config["actor_rollout_ref"]["rollout"], "n": 10**12}
    actor = {**config["actor_rollout_ref"]["actor"], "ppo_epochs": 10**12}
    head_with(capsule, config={**config, "actor_rollout_ref": {**config["actor_rollout_ref"], "rollout": rollout}})
    assert links_of(capsule)["prompts"]["status"] == "differs"
    head_with(capsule, config={**config, "actor_rollout_ref": {**config["actor_rollout_ref"], "actor": actor}})
    assert "too many" in links_of(capsule)["update-rows"]["said"]


def test_rows_of_an_update_are_rows_of_the_step(capsule: Path) -> None:
    head = json.loads((capsule / "capsule.json").read_bytes())
    head["actor"][0]["micro_batches"][0]["rows"] = [10**6]
    head_with(capsule, **head)
    assert "an update has row 1000000" in failure_of(capsule)


def test_stages_are_said(capsule: Path) -> None:
    said: list[str] = []
    run({"capsules": [str(capsule)], "checkpoint": None}, lambda about: said.append(str(about.get("stage", ""))))
    assert "step 1: gradient" in said
