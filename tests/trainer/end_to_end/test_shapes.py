"""Other architectures than the recipes' Qwen2, from `rltrain run` to `rltrain export`: Llama, and OPT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.end_to_end.conftest import STEPS
from tests.trainer.end_to_end.exported import computes_what_the_actor_did
from tests.trainer.end_to_end.runs import SMALL, Run, anew, column, rltrain, training

pytestmark = pytest.mark.timeout(1800)

OPT = (
    "~toy.model",
    "toy.model={model_type: opt, hidden_size: 64, word_embed_proj_dim: 64, ffn_dim: 96, num_hidden_layers: 2, "
    "num_attention_heads: 2, max_position_embeddings: 64}",
)
"""Learned positions, biases, a head that is the embedding."""


@pytest.fixture(scope="module")
def opt(place: Path) -> Run:
    directory = anew(place / "opt")
    values = (
        *SMALL,
        *OPT,
        "trainer.num_cpu_ranks=1",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
    )
    return rltrain(directory, *training(directory, "toy-ppo", *values)).succeeded()


def _export(run: Run, step: int, kind: str, exported: Path) -> None:
    rltrain(exported, "export", run.checkpoint(step), exported).succeeded()
    assert json.loads((exported / "config.json").read_text(encoding="utf-8"))["model_type"] == kind
    # Who may read the config may read the weights.
    assert (exported / "model.safetensors").stat().st_mode == (exported / "config.json").stat().st_mode


def test_llama(whole: Run, tmp_path: Path) -> None:
    """Two training ranks, a head of its own."""
    _export(whole, STEPS, "llama", tmp_path / "exported")
    computes_what_the_actor_did(whole, STEPS, tmp_path / "exported", tmp_path)


def test_opt(opt: Run, tmp_path: Path) -> None:
    _export(opt, 2, "opt", tmp_path / "exported")
    computes_what_the_actor_did(opt, 2, tmp_path / "exported", tmp_path)


@pytest.mark.parametrize("shape", ["whole", "opt"])
def test_engine_and_actor_agree(shape: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(shape)
    trained = [step for step in run.steps if step["step"] > 0]
    for name, bar in (("training/rollout_probs_diff_mean", 5e-6), ("training/rollout_log_probs_diff_mean", 1e-5)):
        values = column(trained, name)
        assert len(values) == len(trained) > 1
        assert 0 < max(values) <= bar
