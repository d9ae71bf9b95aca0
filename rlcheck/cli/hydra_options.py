"""Hydra's own options, `--config-name` and `--config-path`, for the commands that read a run's config."""

from __future__ import annotations

import os
import shlex


def named(config: str, overrides: tuple[str, ...], name: str, path: str) -> tuple[str, tuple[str, ...]]:
    """CONFIG and overrides, for a config that is named by Hydra's `--config-name` as a line that would start it.

    CONFIG is an override then: `rlcheck config --config-name ppo_trainer a=b`.
    """
    if not name and not path:
        return config, overrides
    words = ["python", "-m", "verl.trainer.main_ppo"]
    words += [f"--config-path={os.path.abspath(path)}"] if path else []
    words += [f"--config-name={name}"] if name else []
    return shlex.join(words), (*((config,) if config else ()), *overrides)
