"""What transformers alone makes of an export, against what the actor computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rltrain.cli.from_run import config_of
from rltrain.config import Machine, RunConfig, resolve
from rltrain.controller.prepare import with_toy
from rltrain.records.run_dir import RunDir
from tests.trainer.end_to_end.runs import Run
from tests.trainer.workers.fsdp import scenes

OVERRIDES = ("trainer.device=cpu", "trainer.nnodes=1", "trainer.n_gpus_per_node=1", "critic.enable=false")
"""One rank on the CPU, without critic."""


def _config(run: Run, scratch: Path) -> RunConfig:
    """Of RUN, for one rank in this process."""
    directory = RunDir(run.directory)
    return with_toy(resolve(config_of(directory, OVERRIDES, scratch), Machine("cpu", 0, 1)), directory)


def computes_what_the_actor_did(run: Run, step: int, exported: Path, scratch: Path) -> None:
    """EXPORTED, of RUN's checkpoint of STEP, has the logits of the actor, whose weights have all been trained."""
    with scenes.worker(_config(run, scratch)) as worker:
        before = scenes.full(worker)
        worker.load(run.checkpoint(step))
        trained = scenes.full(worker)
    assert not [name for name in before if torch.equal(before[name], trained[name])]
    source: Any = AutoModelForCausalLM.from_pretrained(RunDir(run.directory).toy / "model", dtype=torch.float32)
    missing, unexpected = source.load_state_dict(trained, strict=False)
    assert set(missing) <= {"lm_head.weight"}  # tied: it is the embedding
    assert not unexpected
    model: Any = AutoModelForCausalLM.from_pretrained(exported)
    assert model.dtype == torch.float32
    assert torch.equal(_logits(model), _logits(source))


def _logits(model: Any) -> Tensor:
    ids = torch.randint(7, 17, (8, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model.eval()(ids).logits
