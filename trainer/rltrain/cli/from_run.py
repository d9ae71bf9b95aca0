"""A finished or running run as the source of another command: its config, its checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from rltrain.config import RunConfig, load
from rltrain.config.estimators import needing
from rltrain.config.load import load_sft
from rltrain.config.schema import AlgorithmConfig
from rltrain.config.sft import as_run
from rltrain.core.errors import UserError, first_line
from rltrain.records.checkpoints import LEFT_BEHIND, Checkpoint, at
from rltrain.records.redaction import hidden_keys
from rltrain.records.run_dir import RunDir


def run_of(checkpoint: Path) -> tuple[Checkpoint, RunDir]:
    """The finished checkpoint at CHECKPOINT, unharmed, and the directory of its run.

    Raises:
        UserError: it is no checkpoint of a run, or it is damaged.
    """
    found = at(Path(os.path.abspath(checkpoint.expanduser())))  # without `..`: the run is looked for above it
    place = found.path.parent
    directory = RunDir(place.parent.parent if place.name == LEFT_BEHIND else place.parent)
    if not directory.record.is_file():
        raise UserError(f"{directory.record} is missing: {found.path} does not lie in a run directory")
    found.verify()
    return found, directory


def config_of(directory: RunDir, overrides: Sequence[str], scratch: Path) -> RunConfig:
    """The config that the run in DIRECTORY had, with OVERRIDES; SCRATCH is a directory for a copy of it.

    That of supervised training is given as training ranks know it.

    Raises:
        UserError: `run.json` holds no config, or an override cannot be used.
    """
    record = _record(directory)
    config = record.get("config")
    if not isinstance(config, dict):
        raise UserError(f"{directory.record} holds no run config")
    copy = scratch / "config.yaml"
    copy.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return as_run(load_sft(copy, overrides).config) if record.get("kind") == "sft" else load(copy, overrides)


def refuse_sft(found: Checkpoint, directory: RunDir) -> None:
    """Make sure that the run in DIRECTORY, of which FOUND is a checkpoint, has rewards to score answers with.

    Raises:
        UserError: it is supervised training.
    """
    if _record(directory).get("kind") == "sft":
        raise UserError(
            f"{found.path} is of rltrain sft, which has no rewards to score answers with (its loss on held-out rows is "
            "val/loss); start a run from it with actor_rollout_ref.model.path, whose step 0 validates it"
        )


def _record(directory: RunDir) -> dict[str, Any]:
    try:
        record: Any = json.loads(directory.record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{directory.record} cannot be read: {first_line(error)}") from None
    if not isinstance(record, dict):
        raise UserError(f"{directory.record} holds no run config")
    return cast("dict[str, Any]", record)


def actor_alone(config: RunConfig) -> RunConfig:
    """CONFIG (resolved) for who only reads the actor: without critic and reference, and what would ask for them."""
    parts = config.actor_rollout_ref
    actor = parts.actor.model_copy(update={"use_kl_loss": False})
    return config.model_copy(
        update={
            "actor_rollout_ref": parts.model_copy(update={"actor": actor}),
            "critic": config.critic.model_copy(update={"enable": False}),
            # Nobody computes advantages: take an estimator that needs nothing.
            "algorithm": AlgorithmConfig(adv_estimator=needing()[0]),
        }
    )


def refuse_hidden(config: RunConfig, directory: RunDir) -> None:
    """Make sure that CONFIG has again what the record of the run in DIRECTORY does not hold: secrets.

    Raises:
        UserError: it has not; which keys.
    """
    if keys := list(hidden_keys(config.model_dump(mode="json"))):
        again = " ".join(f"{key}=VALUE" for key in keys)
        raise UserError(f"{directory.record} holds no secrets; give again what the run was given: {again}")
