"""`rltrain export`: a checkpoint as a model that transformers loads."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rltrain.cli.from_run import actor_alone, config_of, run_of
from rltrain.cli.requests import ExportRequest
from rltrain.config import Machine, RunConfig, resolve
from rltrain.controller.prepare import with_toy
from rltrain.core.errors import UserError
from rltrain.workers.fsdp.rank import RankInfo, free_port
from rltrain.workers.fsdp.worker import TrainWorker

OVERRIDES = (
    "trainer.device=cpu",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=1",
    "critic.enable=false",
    "reward_model.enable=false",
)
"""One rank on the CPU, without critic and reward model; `actor_alone` takes the reference away."""


def run(request: ExportRequest) -> int:
    """Write the actor of the checkpoint in Hugging Face layout; returns the exit code.

    Raises:
        UserError: the checkpoint cannot be used, or something is in the way.
    """
    output, (found, directory) = request.output, run_of(request.checkpoint)
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file: name a directory")
    if output.exists() and any(output.iterdir()):
        raise UserError(f"{output} is not empty: name another directory")
    with tempfile.TemporaryDirectory() as scratch:
        config = actor_alone(resolve(config_of(directory, OVERRIDES, Path(scratch)), Machine("cpu", 0, 1)))
    if config.toy is not None:
        config = with_toy(config, directory)
    _export(config, found.path, output)
    print(f"Wrote {output}: load it with AutoModelForCausalLM.from_pretrained")  # noqa: T201
    return 0


def _export(config: RunConfig, checkpoint: Path, output: Path) -> None:
    worker = TrainWorker(config, RankInfo(0, 1, "127.0.0.1", free_port(), "cpu"))
    worker.setup(1)
    try:
        worker.load_actor(checkpoint)
        worker.export(output)
    finally:
        worker.shutdown()
