"""`rltrain export`: a checkpoint as a model that transformers loads."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

from trainer.config import Machine, RunConfig, resolve
from trainer.errors import UserError
from trainer.from_run import actor_alone, config_of, run_of
from trainer.fsdp.rank import RankInfo
from trainer.fsdp.worker import TrainWorker
from trainer.prepare import with_toy

OVERRIDES = (
    "trainer.device=cpu",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=1",
    "critic.enable=false",
    "reward_model.enable=false",
)
"""One rank on the CPU, without critic and reward model; `actor_alone` takes the reference away."""


def export_checkpoint(checkpoint: Path, output: Path) -> int:
    """Write the actor of CHECKPOINT to OUTPUT in Hugging Face layout; returns the exit code.

    Raises:
        UserError: the checkpoint cannot be used, or OUTPUT is in the way.
    """
    found, directory = run_of(checkpoint)
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
    worker = TrainWorker(config, RankInfo(0, 1, "127.0.0.1", _free_port(), "cpu"))
    worker.setup(1)
    try:
        worker.load_actor(checkpoint)
        worker.export(output)
    finally:
        worker.shutdown()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
