"""The config of a run, and how it ended."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import yaml

from rlcheck.measure.run.locate import LOCK, RECORD

_CONFIGS = (".hydra/config.yaml", "config.yaml", "config/config.yaml")
_LARGEST = 4 * 2**20
_LONGEST_ERROR = 500
_DEEPEST = 30
_MOST_KEYS = 20_000
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Record(NamedTuple):
    """What a run says of itself. `settings`: dotted keys. `outcome`, `error`: as in `RunFacts`. `kind`: run or sft."""

    settings: dict[str, Any] = {}
    outcome: str = ""
    error: str = ""
    note: str = ""
    kind: str = "run"


def read_record(directory: Path) -> Record:
    """The `run.json` of rltrain in DIRECTORY, and whether the run's process lives."""
    try:
        record: Any = msgspec.json.decode((directory / RECORD).read_bytes())
    except OSError as error:
        return Record(outcome=_alive(directory), note=f"{RECORD} cannot be read: {error.strerror or error}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Record(outcome=_alive(directory), note=f"{RECORD} is not JSON")
    if not isinstance(record, dict):
        return Record(outcome=_alive(directory), note=f"{RECORD} is not an object")
    entries = cast("dict[str, Any]", record)
    outcome = entries.get("outcome")
    return Record(
        settings=dotted(entries.get("config")),
        outcome=outcome if isinstance(outcome, str) and outcome else _alive(directory),
        error=str(entries.get("error") or "").partition("\n")[0][:_LONGEST_ERROR],
        kind=str(entries.get("kind") or "run"),
    )


def read_config(directory: Path) -> dict[str, Any]:
    """The settings of a verl run in DIRECTORY, where it (or Hydra) left its config; none where it did not."""
    for name in _CONFIGS:
        path = directory / name
        try:
            if path.stat().st_size > _LARGEST:
                continue
            settings = dotted(yaml.load(path.read_bytes(), Loader=_Loader))
        except (OSError, yaml.YAMLError, ValueError, RecursionError):
            continue
        if any(key.startswith(("actor_rollout_ref.", "trainer.", "algorithm.")) for key in settings):
            return settings
    return {}


def dotted(tree: object) -> dict[str, Any]:
    """Dotted keys of the nested mappings in TREE with their values; empty mappings are left out."""
    found: dict[str, Any] = {}
    _flatten(tree, "", 0, found)
    return found


def total_steps(settings: dict[str, Any]) -> int:
    """The steps that SETTINGS plan; 0 where they do not say."""
    value = settings.get("trainer.total_training_steps")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _flatten(tree: object, prefix: str, depth: int, found: dict[str, Any]) -> None:
    if not isinstance(tree, dict) or depth > _DEEPEST:
        return
    for name, value in cast("dict[object, Any]", tree).items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            _flatten(cast("object", value), f"{key}.", depth + 1, found)
        elif len(found) < _MOST_KEYS and _is_plain(value):
            found[key] = value


def _is_plain(value: object) -> bool:
    """Whether VALUE is a number, text, nothing, or a list of such, or of flat tables of such (rules of rewards)."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        tables = [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]
        return all(_is_single(item) or isinstance(item, dict) for item in items) and all(
            _is_single(entry) for table in tables for entry in table.values()
        )
    return _is_single(value)


def _is_single(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _alive(directory: Path) -> str:
    """`running` if a process holds the run's lock, `dead` if none does, "" if that is not known."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return "dead"
