"""Checkpoints: training goes on as if it had never stopped; one that is not whole or does not fit is refused."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from rltrain.workers.fsdp import state
from rltrain.workers.fsdp.rng import rng_state, set_rng_state
from rltrain.workers.fsdp.state import FACTS
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config


def timeless(steps: list[dict[str, float]]) -> list[dict[str, float]]:
    return [scenes.timeless(step) for step in steps]


@pytest.fixture(scope="module")
def config(models: Path) -> RunConfig:
    return make_config(models / "opt-projected")


@pytest.fixture(scope="module")
def saved(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint after two steps, and what the two steps after it gave."""
    path = tmp_path_factory.mktemp("checkpoint") / "train"
    with scenes.worker(config) as worker:
        run = scenes.Run(worker, config)
        run.steps(0, 2)
        worker.save(path)
        after = timeless(run.steps(2, 4))
        return path, (after, worker.parameter_hash(), torch.get_rng_state())


def test_a_resumed_rank_goes_on_bit_for_bit(config: RunConfig, saved: tuple[Path, Any]) -> None:
    path, (after, digest, random_state) = saved
    with scenes.worker(config) as worker:
        fresh = worker.parameter_hash()
        worker.load(path)
        assert timeless(scenes.Run(worker, config).steps(2, 4)) == after
        assert worker.parameter_hash() == digest != fresh
        assert torch.equal(torch.get_rng_state(), random_state)


def test_two_resumed_ranks_go_on_bit_for_bit(played: list[dict[str, Any]]) -> None:
    for rank in played:
        first, again = rank["resume"]["first"], rank["resume"]["again"]
        assert timeless(first[0]) == timeless(again[0])
        assert first[1] == again[1]
        assert rank["resume"]["same_random"]


def test_a_checkpoint_of_two_ranks_goes_on_with_one(models: Path, played: list[dict[str, Any]]) -> None:
    """The reference that was taken after two steps must come back too: kl_loss tells."""
    config = make_config(models / "qwen2")
    with scenes.worker(config) as worker:
        worker.load(models / "checkpoint")
        alone = scenes.Run(worker, config).steps(3, 6)
    for mine, theirs in zip(alone, played[0]["resume"]["first"][0], strict=True):
        for name in ("actor/grad_norm", "critic/vf_loss", "actor/kl_loss", "actor/entropy_loss", "actor/lr"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4), name
        assert mine["actor/pg_loss"] == pytest.approx(theirs["actor/pg_loss"], abs=1e-5)


def test_each_rank_hashes_what_it_writes(models: Path, played: list[dict[str, Any]]) -> None:
    place = models / "checkpoint"
    first, second = (rank["resume"]["digests"] for rank in played)
    assert set(second) == {"rng_00001.pt", "actor/__1_0.distcp", "critic/__1_0.distcp", "ref/__1_0.distcp"}
    assert not set(first) & set(second)
    files = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == {**first, **second}


def test_before_the_first_step_there_is_nothing_but_weights(config: RunConfig, tmp_path: Path) -> None:
    with scenes.worker(config) as worker:
        worker.save(tmp_path / "train")
        first = timeless(scenes.Run(worker, config).steps(0, 1))
        worker.load(tmp_path / "train")
        assert timeless(scenes.Run(worker, config).steps(0, 1)) == first


def test_a_shard_that_is_cut_short_ends_every_rank(played: list[dict[str, Any]]) -> None:
    """As words, and none waits for the others. (What is changed, but not shorter, the controller's checksums find.)"""
    for rank in played:
        assert "is not whole: rank" in rank["damaged"]


def test_without_its_facts_a_checkpoint_is_not_complete(config: RunConfig, saved: tuple[Path, Any]) -> None:
    path = saved[0] / FACTS
    path.rename(saved[0] / "elsewhere")
    try:
        with scenes.worker(config) as worker, pytest.raises(UserError, match=f"{FACTS} is missing"):
            worker.load(saved[0])
    finally:
        (saved[0] / "elsewhere").rename(path)


def test_unreadable_facts_are_named(config: RunConfig, saved: tuple[Path, Any]) -> None:
    path = saved[0] / FACTS
    kept = path.read_text()
    path.write_text(kept[:40])
    try:
        with scenes.worker(config) as worker, pytest.raises(UserError, match=f"{FACTS} cannot be read"):
            worker.load(saved[0])
    finally:
        path.write_text(kept)


def test_a_checkpoint_of_another_model_is_refused(models: Path, saved: tuple[Path, Any]) -> None:
    with scenes.worker(make_config(models / "llama")) as worker, pytest.raises(UserError, match="does not fit"):
        worker.load(saved[0])


def test_a_checkpoint_without_a_critic_is_refused(config: RunConfig, models: Path, tmp_path: Path) -> None:
    without = make_config(models / "opt-projected", critic={"enable": False})
    with scenes.worker(without) as worker:
        worker.save(tmp_path / "train")
    with scenes.worker(config) as worker, pytest.raises(UserError, match="has no critic"):
        worker.load(tmp_path / "train")


def test_a_reference_that_no_checkpoint_holds_is_not_made_up(models: Path, tmp_path: Path) -> None:
    """The model's directory is no reference for a run that began with a warm-up; without one it is."""
    warm = {"sft_warmup": {"steps": 1}, "critic": {"enable": False}}
    without = make_config(models / "opt-projected", actor={"use_kl_loss": False}, **warm)
    with scenes.worker(without) as worker:
        worker.save(tmp_path / "train")
    refused = pytest.raises(UserError, match=r"holds no reference.*take sft_warmup\.steps=0")
    with scenes.worker(make_config(models / "opt-projected", **warm)) as worker, refused:
        worker.load(tmp_path / "train")
    with scenes.worker(make_config(models / "opt-projected", critic={"enable": False})) as worker:
        worker.load(tmp_path / "train")


def test_to_answer_with_an_actor_its_weights_are_all_that_is_loaded(
    config: RunConfig, saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with scenes.worker(config) as worker:
        worker.load(saved[0])
        expected = scenes.full(worker)
    monkeypatch.setattr(state, "make_optimizer_state", lambda _: pytest.fail("made the optimizer's state"))
    with scenes.worker(config) as worker:
        random_state = torch.get_rng_state()
        worker.load_actor(saved[0])
        found = scenes.full(worker)
        assert found.keys() == expected.keys()
        assert [name for name in found if not torch.equal(found[name], expected[name])] == []
        assert worker.optimizer_steps() == (0, 0)
        assert torch.equal(torch.get_rng_state(), random_state)


def test_to_answer_with_an_actor_nobody_needs_the_reference(models: Path, tmp_path: Path) -> None:
    """That a warm-up had made, and that the checkpoint does not hold."""
    warm = {"sft_warmup": {"steps": 1}, "critic": {"enable": False}}
    with scenes.worker(make_config(models / "opt-projected", actor={"use_kl_loss": False}, **warm)) as worker:
        worker.save(tmp_path / "train")
        digest = worker.parameter_hash()
    with scenes.worker(make_config(models / "opt-projected", **warm)) as worker:
        worker.load_actor(tmp_path / "train")
        assert worker.parameter_hash() == digest


@pytest.mark.parametrize("model", ["llama", "none"])
def test_weights_of_another_model_are_refused(
    model: str, config: RunConfig, models: Path, saved: tuple[Path, Any], tmp_path: Path
) -> None:
    other, place, words = (make_config(models / "llama"), saved[0], "does not fit")
    if model == "none":
        other, place, words = config, tmp_path, f"{FACTS} is missing"
    with scenes.worker(other) as worker, pytest.raises(UserError, match=words):
        worker.load_actor(place)


def test_a_directory_that_cannot_be_written_is_a_user_error(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with scenes.worker(config) as worker, pytest.raises(UserError, match="cannot be written"):
        worker.save(tmp_path / "file" / "train")


def test_random_numbers_come_back(tmp_path: Path) -> None:
    torch.save(rng_state(), tmp_path / "rng.pt")

    def draw() -> list[float]:
        return [float(torch.rand(())), float(np.random.normal()), random.gauss(0, 1), random.random()]

    first = draw()
    assert draw() != first
    set_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert draw() == first
