"""What cannot be run again is one line; nothing of a capsule runs."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcheck.capsules.write import MOST_BYTES
from rltrain.core.errors import UserError
from rltrain.measure.replay.read import read
from tests.trainer.proof.make import make
from tests.trainer.proof.plan import Plan


@pytest.fixture
def capsule(tmp_path: Path) -> Path:
    return make(tmp_path / "step_1", Plan(prompts=1, n=2))


def head(capsule: Path, **values: Any) -> None:
    file = capsule / "capsule.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def fifo(capsule: Path) -> None:
    (capsule / "rows.jsonl").unlink()
    os.mkfifo(capsule / "rows.jsonl")


def large(capsule: Path) -> None:
    with (capsule / "weights.safetensors").open("r+b") as file:
        file.truncate(MOST_BYTES + 1)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda path: (path / "weights.safetensors").unlink(), "weights.safetensors is missing"),
    "a pipe": (fifo, "rows.jsonl is missing"),
    "too large": (large, "larger than 64 MB"),
    "a pickle": (lambda path: (path / "batch.safetensors").write_bytes(pickle.dumps({})), "is damaged"),
    "half a line": (lambda path: (path / "rows.jsonl").write_text('{"uid": '), "is damaged"),
    "another schema": (lambda path: head(path, schema=99), "schema 99"),
    "another trainer": (lambda path: head(path, trainer="trl"), "is a step of trl"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_step_of_rltrain_is_refused(capsule: Path, name: str) -> None:
    change, words = REFUSED[name]
    change(capsule)
    with pytest.raises(UserError) as error:
        read(capsule)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_experience_holds_nothing_that_the_step_computed(capsule: Path) -> None:
    batch = read(capsule).experience()
    assert {"input_ids", "prompts", "token_level_scores", "rollout_log_probs"} <= batch.names
    assert not {"old_log_probs", "advantages", "returns"} & batch.names
    assert [sample.sample for sample in batch.samples] == [0, 1]


def test_some_of_the_rows_are_no_step(capsule: Path) -> None:
    head(capsule, rows=9, kept_rows=[0, 1])
    with pytest.raises(UserError, match="2 of 9 rows"):
        read(capsule).experience()
