"""What the commands that read a run's config take as Hydra does: `--config-name`, `--config-path`, overrides."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # diagnose asks of words, too, and has no such request
    from rlcheck.cli.requests.configs import SourceRequest

_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/]*=.*", re.S)


def named(source: SourceRequest) -> tuple[str, tuple[str, ...]]:
    """Return CONFIG and overrides; Hydra's `--config-name` and `--config-path` are among the overrides of a script.

    Without CONFIG they are a line that would start the config that they name. A CONFIG that is `key=value` and no file
    is an override then: `rlcheck config --config-name ppo_trainer a=b`.
    """
    config, name, path = source.config, source.config_name, source.config_path
    flags = [f"--config-path={os.path.abspath(path)}"] if path else []
    flags += [f"--config-name={name}"] if name else []
    if not flags or (config and not _is_override(config)):
        return config, (*flags, *source.overrides)
    words = ["python", "-m", "verl.trainer.main_ppo", *flags]
    return shlex.join(words), (*((config,) if config else ()), *source.overrides)


def sorted_words(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files, and overrides of the config: `key=value` that is no file."""
    return (
        tuple(word for word in words if not _is_override(word)),
        tuple(word for word in words if _is_override(word)),
    )


def _is_override(word: str) -> bool:
    return bool(_OVERRIDE.fullmatch(word)) and not os.path.exists(word)
