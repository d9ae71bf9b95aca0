"""A finished or running run as the source of another command: its config, its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trainer.checkpoints import Checkpoint, at
from trainer.config import RunConfig, load
from trainer.errors import UserError
from trainer.run_dir import RunDir


def run_of(checkpoint: Path) -> tuple[Checkpoint, RunDir]:
    """The finished checkpoint at CHECKPOINT, unharmed, and the directory of its run.

    Raises:
        UserError: it is no checkpoint of a run, or it is damaged.
    """
    found = at(checkpoint.expanduser().absolute())
    directory = RunDir(found.path.parent.parent)
    if not directory.record.is_file():
        raise UserError(f"{directory.record} is missing: {found.path} does not lie in a run directory")
    found.verify()
    return found, directory


def config_of(directory: RunDir, overrides: Sequence[str], scratch: Path) -> RunConfig:
    """The config that the run in DIRECTORY had, with OVERRIDES; SCRATCH is a directory for a copy of it.

    Raises:
        UserError: `run.json` holds no config, or an override cannot be used.
    """
    try:
        record: dict[str, Any] = json.loads(directory.record.read_text(encoding="utf-8"))
        config = record["config"]
    except (ValueError, KeyError):
        raise UserError(f"{directory.record} holds no run config") from None
    copy = scratch / "config.yaml"
    copy.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return load(copy, overrides)
