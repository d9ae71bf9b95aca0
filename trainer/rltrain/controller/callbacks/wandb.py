"""Weights & Biases, where the user asks for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.core.errors import UserError
from rltrain.records.redaction import redacted, redacted_command


def require_wandb() -> Any:
    """The module, which is no requirement of the trainer.

    Raises:
        UserError: it is not installed, or does not load.
    """
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise UserError(
            f"trainer.logger names wandb, which cannot be imported ({error}): pip install wandb, or leave it out"
        ) from None


@contextmanager
def _redacted_argv() -> Generator[None]:
    """wandb records `sys.argv` as well."""
    typed = sys.argv
    sys.argv = redacted_command(typed)
    try:
        yield
    finally:
        sys.argv = typed


class Wandb(Callback):
    """Sends every metric to wandb, and the config without secrets; `trainer.wandb_proxy` is a proxy for it alone."""

    def __init__(self) -> None:
        self._run: Any = None

    def on_run_start(self, run: RunInfo) -> None:
        """Open the wandb run.

        Raises:
            UserError: its service cannot be reached.
        """
        wandb = require_wandb()
        trainer = run.config.trainer
        settings: dict[str, Any] = {}
        if trainer.wandb_proxy:
            settings = {"http_proxy": trainer.wandb_proxy, "https_proxy": trainer.wandb_proxy}
        try:
            with _redacted_argv():
                self._run = wandb.init(
                    project=trainer.project_name,
                    name=trainer.experiment_name,
                    dir=str(run.directory.path),
                    config=redacted(run.config.model_dump(mode="json")),
                    settings=wandb.Settings(**settings),
                )
        except wandb.errors.Error as error:
            raise UserError(
                f"wandb cannot start: {redacted(str(error))}; set WANDB_MODE=offline, or trainer.wandb_proxy=URL"
            ) from None

    def on_step_end(self, record: StepRecord) -> None:
        """Send the step's metrics."""
        self._run.log(record.metrics, step=record.step)

    def on_run_end(self, outcome: str) -> None:
        """Close the wandb run."""
        if self._run is not None:
            self._run.finish(exit_code=0 if outcome == "finished" else 1)
            self._run = None
