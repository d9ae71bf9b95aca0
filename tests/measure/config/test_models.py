"""What a model's files say, and where they are looked for."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.config import ModelFacts
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.models import model_directory
from rlcheck.measure.config.read import read_run

SIZES = {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 99}


def _write(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {
        "config.json": {**SIZES, "auto_map": {"AutoModelForCausalLM": "modeling.X"}},
        "generation_config.json": {"eos_token_id": [5, 6]},
        "tokenizer.json": {
            "model": {"vocab": {"a": 0, "b": 1}, "merges": []},
            "added_tokens": [{"id": 5, "content": "<end>"}, {"id": 7, "content": "<pad>"}],
        },
        "tokenizer_config.json": {
            "eos_token": "<end>",
            "pad_token": {"content": "<pad>"},
            "chat_template": [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}],
            "tokenizer_class": "Fast",
        },
        "special_tokens_map.json": {"bos_token": "a"},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    header = {
        "__metadata__": {"format": "pt"},
        "model.embed_tokens.weight": {"shape": [8, 64]},
        "model.layers.0.self_attn.q_proj.weight": {"shape": [64, 64]},
        "model.layers.0.mlp.up_proj.weight": {"shape": [128, 64]},
        "model.layers.0.input_layernorm.weight": {"shape": [64]},
    }
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 10)
    return directory


def _actor(words: list[str], **options: Any) -> ModelFacts:
    found = read_run("ppo_trainer", words, **options).models["actor"].value
    assert found is not None
    return found


def test_a_directory_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path / "m")
    model = _actor([f"actor_rollout_ref.model.path={path}", "+actor_rollout_ref.model.override_config.hidden_size=32"])
    assert model.sizes["hidden_size"] == 32
    assert (model.source, model.generation_eos) == (str(path / "config.json"), (5, 6))
    assert model.auto_map == {"AutoModelForCausalLM": "modeling.X"}
    assert model.modules.value == ("q_proj", "up_proj")
    assert model.weight_bytes.value == (path / "model.safetensors").stat().st_size
    tokenizer = model.tokenizer.value
    assert tokenizer is not None
    assert (tokenizer.num_tokens, tokenizer.max_token_id) == (4, 7)
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_token) == (5, 7, "a")
    assert tokenizer.chat_template == "D"
    (path / "chat_template.jinja").write_text("J")
    assert _actor([f"actor_rollout_ref.model.path={path}"]).tokenizer.value.chat_template == "J"  # type: ignore[union-attr]


def test_the_hubs_cache_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hub" / "models--Org--Name"
    _write(repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert model_directory("Org/Name") == repository / "snapshots" / "c0ffee"
    assert _actor(["actor_rollout_ref.model.path=Org/Name"]).sizes["hidden_size"] == 64
    facts = read_run("ppo_trainer", ["actor_rollout_ref.model.path=Org/Other"])
    assert facts.models["actor"].missing is not None
    assert "Org/Other is not in the Hugging Face cache" in facts.models["actor"].missing.reason
    assert not [path for path in facts.paths if path.given == "Org/Other"]


def test_a_shape_stands_for_a_model_that_is_not_here(tmp_path: Path) -> None:
    sizes = "hidden_size=8,model_type=llama,tie_word_embeddings=true"
    assert _actor([], model_shape=sizes, look=False).sizes == {
        "hidden_size": 8, "model_type": "llama", "tie_word_embeddings": True}  # fmt: skip
    assert _actor([], model_shape=_write(tmp_path / "m"), look=False).sizes["num_hidden_layers"] == 2
    with pytest.raises(ReadError, match="--model-shape"):
        read_run("ppo_trainer", [], model_shape="qwen-of-mine")


def test_nothing_is_claimed_of_a_disk_that_is_not_looked_at(tmp_path: Path) -> None:
    words = [f"actor_rollout_ref.model.path={_write(tmp_path / 'm')}", "data.val_files=s3://b/a.parquet"]
    facts = read_run("ppo_trainer", words, look=False)
    assert facts.models["actor"].value is None
    assert not any(path.looked for path in facts.paths)
    assert facts.credentials == {}
    seen = {path.key: path for path in read_run("ppo_trainer", [*words, "data.train_files=[no.parquet]"]).paths}
    assert not seen["data.val_files"].looked
    assert (seen["data.train_files"].exists, seen["actor_rollout_ref.model.path"].exists) == (False, True)


def test_loggers_lack_what_they_lack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DISABLED", "NETRC", "SWANLAB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def lacking() -> dict[str, str]:
        return read_run("ppo_trainer", ["trainer.logger=[console,wandb,swanlab]"]).credentials

    assert lacking()["console"] == ""
    assert "WANDB_API_KEY" in lacking()["wandb"]
    assert "SWANLAB_API_KEY" in lacking()["swanlab"]
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai login user password x\n")
    netrc.chmod(0o600)
    assert lacking()["wandb"] == ""
    netrc.unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert lacking()["wandb"] == ""
