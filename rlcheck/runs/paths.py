"""Paths in a config, looked at without waiting for a file server that does not answer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache

from rlcheck.facts.run import PathFacts, RunSpec
from rlcheck.runs.config import Config
from rlcheck.runs.models import is_hub_name

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://")
# File systems that are another machine's; a dead one holds a `stat` for ever.
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "fuse.sshfs",
    "beegfs",
    "gpfs",
    "glusterfs",
    "9p",
    "wekafs",
)
_DEADLINE_S = 5.0
_LOOK = "import os,sys; s=os.stat(sys.argv[1]); print(s.st_mode)"


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
            if path is not None and path not in seen and not is_hub_name(path):
                yield key, path, "directory"
            seen.add(path or "")
    for name, files in (("train_files", spec.data.train_files), ("val_files", spec.data.val_files)):
        for path in files:
            yield f"data.{name}", path, "either"
    if spec.reward.function_path is not None:
        key = "reward.custom_reward_function.path"
        old = "custom_reward_function.path"
        yield (
            "reward.function_path" if plain else old if old in config.given or not verl else key,
            (spec.reward.function_path),
            "file",
        )
    for key in ("trainer.resume_from_path", "actor_rollout_ref.rollout.multi_turn.tool_config_path"):
        path = config.pick.text(key)
        if path:
            yield key, path, "either"


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
        mode = _mode(path)
    except subprocess.TimeoutExpired:
        return False, f"its file system did not answer within {_DEADLINE_S:.0f} s"
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


def _mode(path: str) -> int:
    if not on_network(path):
        return os.stat(path).st_mode
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LOOK, path], capture_output=True, timeout=_DEADLINE_S, check=False
    )
    if done.returncode:
        raise FileNotFoundError(path)
    return int(done.stdout)


def on_network(path: str) -> bool:
    """Whether PATH lies on a mount of another machine, as far as the list of mounts says; PATH is not touched."""
    longest = max(
        (mount for mount in _network_mounts() if path == mount or path.startswith(f"{mount}/")), key=len, default=""
    )
    if not longest:
        return False
    local = (mount for mount in _local_mounts() if path == mount or path.startswith(f"{mount.rstrip('/')}/"))
    return len(longest) >= max((len(mount) for mount in local), default=0)


@lru_cache(maxsize=1)
def _mounts() -> tuple[tuple[str, str], ...]:
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ()
    return tuple((row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2)


def _network_mounts() -> list[str]:
    return [mount for mount, kind in _mounts() if kind in _NETWORK]


def _local_mounts() -> list[str]:
    return [mount for mount, kind in _mounts() if kind not in _NETWORK]
