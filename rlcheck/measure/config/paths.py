"""Paths in a config, looked at without waiting for a file server that does not answer."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

from rlcheck.facts.config import PathFacts, RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.models import is_hub_name
from rlcheck.measure.config.mounts import DEADLINE_S, mode_of, on_network
from rlcheck.measure.config.trainers import trainer_of

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://")


def paths_of(config: Config, spec: RunSpec, *, look: bool) -> tuple[PathFacts, ...]:
    """Every path that the run reads, resolved; with `look` false nothing is claimed of them."""
    return tuple(_looked(key, given, want, look) for key, given, want in _wanted(config, spec))


def _wanted(config: Config, spec: RunSpec) -> Iterator[tuple[str, str, str]]:
    verl = config.framework == "verl"
    sections = {"actor": "actor_rollout_ref.model", "critic": "critic.model", "reward_model": "reward_model.model"}
    plain = config.framework == "spec"
    seen: set[str] = set()
    for role, use in (("actor", spec.actor), ("critic", spec.critic), ("reward_model", spec.reward_model)):
        section = f"{role}.model" if plain else sections[role]
        if use is None:
            continue
        for name, path in (("path", use.model.path), ("tokenizer_path", use.model.tokenizer_path)):
            key = f"{section}.{name}"
            if verl and role == "reward_model":
                key = "reward.reward_model.model_path"
            key = _key(config, f"{role}.model.{name}", key)
            if path is not None and path not in seen and not is_hub_name(path):
                yield key, path, "directory"
            seen.add(path or "")
    for name, files in (("train_files", spec.data.train_files), ("val_files", spec.data.val_files)):
        for path in files:
            yield _key(config, f"data.{name}", f"data.{name}"), path, "either"
    if spec.reward.function_path is not None:
        key = "reward.custom_reward_function.path"
        old = "custom_reward_function.path"
        key = "reward.function_path" if plain else old if old in config.given or not verl else key
        yield _key(config, "reward.function_path", key), spec.reward.function_path, "file"
    for key in ("trainer.resume_from_path", "actor_rollout_ref.rollout.multi_turn.tool_config_path"):
        path = config.pick.text(key)
        if path:
            yield key, path, "either"


def _key(config: Config, field: str, usual: str) -> str:
    """The key of FIELD where another trainer has the config; USUAL elsewhere."""
    trainer = trainer_of(config.framework)
    return usual if trainer is None else trainer.fields.get(field) or trainer.named.get(field, field)


def _looked(key: str, given: str, want: str, look: bool) -> PathFacts:
    if _REMOTE.match(given):
        return PathFacts(key=key, given=given, resolved=given, want=want, looked=False)
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given)))
    if not look:
        return PathFacts(key=key, given=given, resolved=resolved, want=want, looked=False)
    exists, problem = _state(resolved, want)
    if not exists and "$" in resolved:
        problem = "a variable in it is not set"
    return PathFacts(key=key, given=given, resolved=resolved, want=want, exists=exists, problem=problem)


def _state(path: str, want: str) -> tuple[bool, str]:
    """Whether PATH is there, and why it cannot be used."""
    try:
        mode = mode_of(path)
    except subprocess.TimeoutExpired:
        return False, f"its file system did not answer within {DEADLINE_S:.0f} s"
    except FileNotFoundError:
        return False, "there is no such file or directory"
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return False, why.lower()
    is_directory = (mode & 0o170000) == 0o040000
    if want == "directory" and not is_directory:
        return True, "is a file, not a directory"
    if want == "file" and is_directory:
        return True, "is a directory, not a file"
    if not on_network(path) and not os.access(path, os.R_OK):
        return True, "may not be read"
    return True, ""
