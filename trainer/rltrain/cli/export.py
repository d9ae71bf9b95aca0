"""`rltrain export`: a checkpoint as a model that transformers loads."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rltrain.cli.from_run import config_of, run_of
from rltrain.cli.requests import ExportRequest
from rltrain.config import Machine, resolve
from rltrain.controller.prepare import with_toy
from rltrain.core.errors import UserError
from rltrain.workers.fsdp.export import export_saved


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
        config = resolve(config_of(directory, (), Path(scratch)), Machine("cpu", 0, 1))
    if config.toy is not None:
        config = with_toy(config, directory)
    export_saved(found.path / "actor", output, config.actor_rollout_ref.model)
    print(f"Wrote {output}: load it with AutoModelForCausalLM.from_pretrained")  # noqa: T201
    return 0
