"""Models that cannot be loaded or trained are refused in one line; ranks that do not meet give up."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rltrain.config.schema import FsdpConfig, ModelConfig
from rltrain.core.errors import UserError
from rltrain.workers.fsdp.build import load_causal_lm, load_config
from rltrain.workers.fsdp.rank import RankInfo, connect, derive_seed, disconnect
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config

FLOAT32 = FsdpConfig(dtype="float32")


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one: loading is collective."""
    connect(RankInfo(0, 1, "127.0.0.1", scenes.free_port(), "cpu"), timeout_s=10)
    yield
    disconnect()


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.usefixtures("alone")
def test_a_path_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json there") as error:
        load_causal_lm(ModelConfig(path=str(tmp_path)), FLOAT32)
    assert str(tmp_path) in one_line(error)
    with pytest.raises(UserError, match="path is not set"):
        load_causal_lm(ModelConfig(), FLOAT32)


@pytest.mark.usefixtures("alone")
def test_an_unreadable_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nosuchmodel"}')
    with pytest.raises(UserError, match="cannot read") as error:
        load_causal_lm(ModelConfig(path=str(tmp_path)), FLOAT32)
    assert "nosuchmodel" in one_line(error)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("damage", ["missing file", "truncated file"])
def test_weights_that_cannot_be_read_are_refused(models: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "model"
    shutil.copytree(models / "qwen2", path)
    file = path / "model.safetensors"
    if damage == "missing file":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be loaded") as error:
        load_causal_lm(ModelConfig(path=str(path)), FLOAT32)
    one_line(error)


@pytest.mark.usefixtures("alone")
def test_weights_that_are_not_there_are_not_made_up(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(models / "llama", path)
    weights = load_file(path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"no weights for model\.norm\.weight") as error:
        load_causal_lm(ModelConfig(path=str(path)), FLOAT32)
    one_line(error)


def test_training_in_float16_is_refused(models: Path) -> None:
    half = {"fsdp_config": {"dtype": "float16"}}
    with pytest.raises(UserError, match="underflow"), scenes.worker(make_config(models / "llama", actor=half)):
        pass


def test_a_key_of_the_models_config_can_be_replaced(models: Path) -> None:
    original = json.loads((models / "llama" / "config.json").read_text())
    model = ModelConfig(path=str(models / "llama"), override_config={"max_position_embeddings": 99})
    assert load_config(model).max_position_embeddings == 99 != original["max_position_embeddings"]


def test_ranks_that_do_not_meet_give_up_with_the_reason() -> None:
    port = scenes.free_port()
    with pytest.raises(UserError, match=f"127.0.0.1:{port} in 1 s") as error:
        connect(RankInfo(0, 2, "127.0.0.1", port, "cpu"), timeout_s=1)
    one_line(error)


def test_meeting_reads_and_writes_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("RANK", "7")
    before = dict(os.environ)
    mesh = connect(RankInfo(0, 1, "127.0.0.1", scenes.free_port(), "cpu"), timeout_s=10)
    assert mesh.data == 1
    disconnect()
    disconnect()
    assert dict(os.environ) == before


def test_seeds_differ_by_purpose_and_repeat() -> None:
    words: list[tuple[Any, ...]] = [("train", 0), ("train", 1), ("head", 0)]
    seeds = [derive_seed(1, *each) for each in words]
    assert len({*seeds, derive_seed(2, "train", 0)}) == 4
    assert seeds == [derive_seed(1, *each) for each in words]
