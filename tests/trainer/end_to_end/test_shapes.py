"""Other architectures than the recipes' Qwen2, from `rltrain run` to `rltrain export`: Llama, and OPT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.end_to_end.conftest import STEPS
from tests.trainer.end_to_end.runs import SMALL, Run, column, rltrain, training
from tests.trainer.fsdp import scenes
from trainer.config import Machine, resolve
from trainer.export_command import OVERRIDES
from trainer.from_run import config_of
from trainer.prepare import with_toy
from trainer.run_dir import RunDir

pytestmark = pytest.mark.timeout(1800)

OPT = (
    "~toy.model",
    "toy.model={model_type: opt, hidden_size: 64, word_embed_proj_dim: 64, ffn_dim: 96, num_hidden_layers: 2, "
    "num_attention_heads: 2, max_position_embeddings: 64}",
)
"""Learned positions, biases, a head that is the embedding."""


@pytest.fixture(scope="module")
def opt(place: Path) -> Run:
    directory = place / "opt"
    values = (
        *SMALL,
        *OPT,
        "trainer.num_cpu_ranks=1",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
    )
    return rltrain(directory, *training(directory, "toy-ppo", *values)).succeeded()


def _exports_its_logits(run: Run, step: int, kind: str, scratch: Path) -> None:
    """The export of RUN's checkpoint of STEP, loaded by transformers alone, computes what the actor did."""
    checkpoint, exported = run.checkpoint(step), scratch / "exported"
    rltrain(exported, "export", checkpoint, exported).succeeded()
    # Who may read the config may read the weights.
    assert (exported / "model.safetensors").stat().st_mode == (exported / "config.json").stat().st_mode
    directory = RunDir(run.directory)
    config = with_toy(resolve(config_of(directory, OVERRIDES, scratch), Machine("cpu", 0, 1)), directory)
    with scenes.worker(config) as worker:
        before = scenes.full(worker)
        worker.load(checkpoint)
        trained = scenes.full(worker)
    assert not [name for name in before if torch.equal(before[name], trained[name])]
    source: Any = AutoModelForCausalLM.from_pretrained(directory.toy / "model", dtype=torch.float32)
    missing, unexpected = source.load_state_dict(trained, strict=False)
    assert set(missing) <= {"lm_head.weight"}  # tied: it is the embedding
    assert not unexpected
    model: Any = AutoModelForCausalLM.from_pretrained(exported)
    assert (model.config.model_type, model.dtype) == (kind, torch.float32)
    ids = torch.randint(7, 17, (8, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.eval()(ids).logits, source.eval()(ids).logits)


def test_llama(whole: Run, tmp_path: Path) -> None:
    """Two training ranks, a head of its own."""
    _exports_its_logits(whole, STEPS, "llama", tmp_path)


def test_opt(opt: Run, tmp_path: Path) -> None:
    _exports_its_logits(opt, 2, "opt", tmp_path)


@pytest.mark.parametrize("shape", ["whole", "opt"])
def test_engine_and_actor_agree(shape: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(shape)
    trained = [step for step in run.steps if step["step"] > 0]
    for name, bar in (("training/rollout_probs_diff_mean", 5e-6), ("training/rollout_log_probs_diff_mean", 1e-5)):
        values = column(trained, name)
        assert len(values) == len(trained) > 1
        assert 0 < max(values) <= bar
