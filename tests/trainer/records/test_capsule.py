"""A capsule is written whole or not at all; its head can be written again; a proof of other files is not shown."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from rlcheck.facts.capsule import Capsule, EngineRecord
from rlcheck.facts.step import CapsuleProof, Link
from rlcheck.measure.step import PROOF, digest_of, proven_before
from rltrain.controller.callbacks.capsule import not_moved
from rltrain.records import capsule as files

HEAD = Capsule(1, "rltrain", "0", 1, 2, 0, 1, {}, {}, {}, 1)
BATCH = {"input_ids": torch.ones(1, 4, dtype=torch.long)}


def save(place: Path) -> None:
    place.mkdir()
    (place / "tokenizer.json").write_text("{}")


def written(place: Path, weights: dict[str, torch.Tensor]) -> Path:
    files.write(place, HEAD, [], BATCH, weights, save)
    return place


def test_states_before_a_skipped_update_are_written_beside_those_after(tmp_path: Path) -> None:
    after = {"actor.after/w": torch.ones(3), "actor.exp_avg.after/w": torch.zeros(3), "reference/w": torch.ones(3),
             "critic.after/w": torch.ones(3)}  # fmt: skip
    before = not_moved(after, {"actor/skipped_steps": 2, "actor/optimizer_steps": 0, "critic/optimizer_steps": 1})
    assert set(before) == {"actor.before/w", "actor.exp_avg.before/w"}
    place = written(tmp_path / "step_1", after | before)
    assert torch.equal(load_file(place / "weights.safetensors")["actor.before/w"], torch.ones(3))


def test_the_head_is_written_again(tmp_path: Path) -> None:
    place = written(tmp_path / "step_1", {})
    head = msgspec.structs.replace(HEAD, engines=(EngineRecord(0, "after", held={"w": "1"}),))
    files.write_head(place, head)
    assert msgspec.json.decode((place / "capsule.json").read_bytes(), type=Capsule) == head
    assert not [file for file in place.iterdir() if file.name.startswith(".")]


def proven(place: Path) -> None:
    link = Link(name="loss", status="differs", said="it differs", compared=1)
    proof = CapsuleProof(str(place), 1, "rltrain", 1, 1, (link,), 0.1, digest=digest_of(place))
    (place / PROOF).write_bytes(msgspec.json.encode(proof))


def test_a_proof_is_shown_of_the_files_that_it_read(tmp_path: Path) -> None:
    place = written(tmp_path / "capsules" / "step_1", {"actor.after/w": torch.ones(3)})
    proven(place)
    found = proven_before(tmp_path)
    assert found is not None
    assert found.capsules[0].links[0].said == "it differs"
    for name in ("weights.safetensors", "tokenizer/tokenizer.json"):
        kept = (place / name).read_bytes()
        (place / name).write_bytes(kept[:-1] + b"x")
        assert proven_before(tmp_path) is None, name
        (place / name).write_bytes(kept)
        assert proven_before(tmp_path) is not None


def test_a_proof_without_a_digest_or_of_another_kind_is_not_shown(tmp_path: Path) -> None:
    place = written(tmp_path / "capsules" / "step_1", {})
    proof = CapsuleProof(str(place), 1, "rltrain", 1, 1, (), 0.1)
    (place / PROOF).write_bytes(msgspec.json.encode(proof))
    assert proven_before(tmp_path) is None


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_proof_is_not_waited_for(tmp_path: Path) -> None:
    place = written(tmp_path / "capsules" / "step_1", {})
    os.mkfifo(place / PROOF)
    assert proven_before(tmp_path) is None
    (place / PROOF).unlink()
    proven(place)
    (place / "rows.jsonl").unlink()
    os.mkfifo(place / "rows.jsonl")
    assert proven_before(tmp_path) is None
