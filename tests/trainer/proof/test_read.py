"""What is no capsule, or a damaged one, is one line; nothing in it runs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

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


def test_stages_are_said(capsule: Path) -> None:
    said: list[str] = []
    run({"capsules": [str(capsule)], "checkpoint": None}, lambda about: said.append(str(about.get("stage", ""))))
    assert "step 1: gradient" in said
