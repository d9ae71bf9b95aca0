"""rltrain's keys, from `rlcheck/data/rltrain_keys.json`, and what the installed trainer package holds as files.

The trainer is not imported: the doctor runs where its dependencies are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.tables import table

_HERE = Path(__file__).resolve()
# Both packages come in one wheel; a checkout keeps the trainer's in a folder.
_CHECKOUT = _HERE.parents[3] / "trainer" / "rltrain"
TRAINER = _CHECKOUT if _CHECKOUT.is_dir() else _HERE.parents[3] / "rltrain"


class Key(msgspec.Struct, frozen=True):
    """A key that takes a value. `types`: int, float, bool, str, list, dict."""

    types: tuple[str, ...]
    default: Any = None
    nullable: bool = False
    required: bool = False
    choices: tuple[str, ...] = ()


class Estimator(msgspec.Struct, frozen=True):
    """An advantage estimator: what it needs (critic, group, greedy), and the scale of its advantages."""

    needs: frozenset[str]
    scale: str


class Engine(msgspec.Struct, frozen=True):
    """A rollout engine; `resident_bytes`: of its process with a model of no size, on a CPU."""

    has_kv_cache: bool
    sleeps: bool
    resident_bytes: int


class _Keys(msgspec.Struct, frozen=True):
    keys: dict[str, Key]
    sections: frozenset[str]
    estimators: dict[str, Estimator]
    engines: dict[str, Engine]


class Aliases(msgspec.Struct, frozen=True):
    """verl's names for rltrain's settings: `moved` (old to new), `instead` (advice), `accepted` (values that pass)."""

    moved: dict[str, str] = {}
    instead: dict[str, str] = {}
    accepted: dict[str, list[Any]] = {}

    def target(self, key: str) -> str | None:
        """Where KEY, or a section above it, has moved to; None if it has not."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            new = self.moved.get(".".join(parts[:length]))
            if new is not None:
                return ".".join([new, *parts[length:]])
        return None


def keys() -> Mapping[str, Key]:
    """Every dotted key that takes a value."""
    return table("rltrain_keys", _Keys).keys


def sections() -> frozenset[str]:
    """Every dotted key that is a section."""
    return table("rltrain_keys", _Keys).sections


def estimators() -> Mapping[str, Estimator]:
    """Every advantage estimator."""
    return table("rltrain_keys", _Keys).estimators


def engines() -> Mapping[str, Engine]:
    """Every rollout engine: those that can be started here."""
    return table("rltrain_keys", _Keys).engines


@lru_cache(maxsize=1)
def aliases() -> Aliases:
    """The aliases of the installed trainer; none where it is not installed."""
    path = TRAINER / "config" / "aliases.json"
    return msgspec.json.decode(path.read_bytes(), type=Aliases) if path.is_file() else Aliases()


def leaf_above(key: str) -> str | None:
    """KEY or the key above it that takes a value (`toy.model` for `toy.model.hidden_size`); None if none does."""
    parts = key.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in keys()), None)


def recipe_names() -> list[str]:
    """The recipes that come with rltrain."""
    return sorted(path.stem for path in (TRAINER / "recipes").glob("*.yaml"))


def micro_batch(shard: int, device: str) -> int:
    """The size that rltrain chooses: the largest for DEVICE that cuts SHARD samples without a rest."""
    most = min(shard, 64 if device == "cpu" else 4)
    return max(size for size in range(1, most + 1) if shard % size == 0)
