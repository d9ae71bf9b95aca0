"""Steps of real runs, run again by the trainer: the same bits; one bit that is planted is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rltrain.measure.replay.plugin import run
from tests.conftest import rlcheck
from tests.trainer.end_to_end.runs import Run, rltrain, training
from tests.trainer.replay.planted import FIRST, MODULE, OneComputesWrongly

pytestmark = pytest.mark.timeout(1800)
AGAIN_S = 600
WEIGHT = f"actor.before/{MODULE}.weight"


VALUES = (
    "trainer.capsule_steps=[2]", "trainer.total_training_steps=2", "trainer.num_cpu_ranks=1",
    "actor_rollout_ref.rollout.name=hf", "trainer.val_before_train=false", "trainer.logger=[console]",
    "data.val_max_samples=8",
)  # fmt: skip
LARGE = ("toy.model.hidden_size=256", "toy.model.intermediate_size=768", "toy.model.num_hidden_layers=3",
         "data.train_batch_size=16", "sft_warmup.steps=0", "trainer.save_freq=1")  # fmt: skip
"""Above the size up to which a capsule holds whole tensors."""


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second step of toy-grpo on one rank: with moments, and several mini batches."""
    directory = tmp_path_factory.mktemp("runs") / "grpo"
    rltrain(directory, *training(directory, "toy-grpo", *VALUES, "data.train_batch_size=32")).succeeded()
    return directory / "capsules" / "step_2"


def links_of(capsule: Path, record: Path, code: int, *words: str | Path) -> dict[str, dict[str, str]]:
    done = rlcheck("step", capsule, "--again", "--record", record, *words, timeout=AGAIN_S)
    assert done.code == code, done.out + done.err
    (replay,) = json.loads(record.read_text())["nodes"][0]["step"]["value"]["replays"]
    assert not replay.get("changed")
    return {link["name"]: link for link in replay["links"]}


def test_a_step_of_one_rank_has_the_same_bits(capsule: Path, tmp_path: Path) -> None:
    links = links_of(capsule, tmp_path / "facts.json", 0)
    assert {link["status"] for link in links.values()} == {"same"}
    assert {"weights", "outputs", "old-log-probs", "advantages", "update", "loss", "gradient", "norm", "further",
            "after", "answers"} == set(links)  # fmt: skip


@pytest.mark.long
def test_a_step_of_two_ranks_with_a_critic_has_the_same_bits(whole: Run, tmp_path: Path) -> None:
    links = links_of(whole.directory / "capsules" / "step_1", tmp_path / "facts.json", 0)
    assert {link["status"] for name, link in links.items() if name != "answers"} == {"same"}
    assert {"reference-log-probs", "critic-outputs", "values", "critic-gradient", "critic-after"} <= set(links)


def test_one_ulp_in_a_weight_is_named_by_its_module(capsule: Path, tmp_path: Path) -> None:
    place = tmp_path / "step_2"
    shutil.copytree(capsule, place)
    weights = load_file(place / "weights.safetensors")
    numbers = weights[WEIGHT].view(-1)
    at = int(numbers.abs().argmax())
    numbers[at] = torch.nextafter(numbers[at], torch.tensor(float("inf")))
    save_file(weights, place / "weights.safetensors")
    links = links_of(place, tmp_path / "facts.json", 1)
    first = next(link for link in links.values() if link["status"] == "differs")
    assert first["name"] == "outputs"
    assert first["said"].startswith(f"{MODULE} gives other numbers on rank 0")


def test_the_device_that_computes_wrongly_is_named(
    capsule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FIRST, str(tmp_path / "first"))
    found = run({"capsules": [str(capsule)], "each_device": True}, lambda _: None, OneComputesWrongly)
    whole, wrong = found["replays"]
    assert {link["status"] for link in whole["links"]} == {"same"}
    first = next(link for link in wrong["links"] if link["status"] == "differs")
    assert (wrong["device"], wrong["against"], first["name"]) == ("process 1", "process 0", "outputs")
    assert first["said"].startswith(MODULE)
    assert "is not known" in wrong["notes"][0]


@pytest.mark.long
def test_a_step_of_a_larger_model_begins_with_its_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "large"
    rltrain(directory, *training(directory, "toy-grpo", *VALUES, *LARGE)).succeeded()
    capsule, saved = directory / "capsules" / "step_2", directory / "checkpoints"
    assert json.loads((capsule / "capsule.json").read_text())["tensors"] != "all"
    right = links_of(capsule, tmp_path / "facts.json", 0, "--checkpoint", saved / "global_step_1")
    assert {link["status"] for link in right.values()} == {"same"}
    wrong = links_of(capsule, tmp_path / "facts.json", 1, "--checkpoint", saved / "global_step_2")
    first = next(link for link in wrong.values() if link["status"] == "differs")
    assert first["name"] == "weights"
    assert first["said"].startswith("actor.before of model.embed_tokens.weight") or "exp_avg" in first["said"]
