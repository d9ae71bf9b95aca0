"""What the commands that read a run's config take as Hydra does: `--config-name`, `--config-path`, overrides."""

from __future__ import annotations

import os
import re
import shlex

from rlcheck.cli.requests.configs import SourceRequest

_OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/]*=.*", re.S)


def named(source: SourceRequest) -> tuple[str, tuple[str, ...]]:
    """Return CONFIG and overrides, for a config that is named by Hydra's `--config-name` as a line that would start it.

    CONFIG is an override then: `rlcheck config --config-name ppo_trainer a=b`.
    """
    config, name, path = source.config, source.config_name, source.config_path
    if not name and not path:
        return config, source.overrides
    words = ["python", "-m", "verl.trainer.main_ppo"]
    words += [f"--config-path={os.path.abspath(path)}"] if path else []
    words += [f"--config-name={name}"] if name else []
    return shlex.join(words), (*((config,) if config else ()), *source.overrides)


def sorted_words(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files, and overrides of the config: `key=value` that is no file."""
    is_override = {word: bool(_OVERRIDE.fullmatch(word)) and not os.path.exists(word) for word in words}
    return (
        tuple(word for word in words if not is_override[word]),
        tuple(word for word in words if is_override[word]),
    )
