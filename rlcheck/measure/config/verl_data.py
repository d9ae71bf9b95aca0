"""verl's keys and defaults by version and model engine, from `rlcheck/data/verl_*.json`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from rlcheck.tables import table


class _Newest(msgspec.Struct, frozen=True):
    keys: dict[str, Any]


class _Layout(msgspec.Struct, frozen=True):
    """A version with a model engine, as what differs from another: keys set, keys (or `sections.`) dropped."""

    version: str
    engine: str
    over: tuple[str, str]
    set: dict[str, Any]
    drop: tuple[str, ...]


class _Versions(msgspec.Struct, frozen=True):
    versions: tuple[str, ...]
    model_engines: dict[str, tuple[str, ...]]
    extra: frozenset[str]
    asked: frozenset[str]
    layouts: tuple[_Layout, ...]


class Moves(msgspec.Struct, frozen=True):
    """What became of keys. Keys end in `.` where a whole section is meant.

    `moved`: old to new. `deprecated`: still read, with what to write in its place. `gone`: neither, with why.
    """

    moved: dict[str, str]
    deprecated: dict[str, str]
    gone: dict[str, str]


def _versions() -> _Versions:
    return table("verl_versions", _Versions)


def moves() -> Moves:
    """Return the keys that moved between versions."""
    return table("verl_moves", Moves)


def versions() -> tuple[str, ...]:
    """The versions that are known, the newest first."""
    return _versions().versions


def engines(version: str) -> tuple[str, ...]:
    """The model engines of VERSION whose defaults are known."""
    return (
        "dp",
        *(layout.engine for layout in _versions().layouts if layout.version == version and layout.engine != "dp"),
    )


def choices(version: str) -> tuple[str, ...]:
    """What `model_engine=` may name in VERSION."""
    return _versions().model_engines[version]


@lru_cache(maxsize=16)
def defaults(version: str, engine: str) -> Mapping[str, Any]:
    """Dotted keys and defaults (some are interpolations) of VERSION with the model engine ENGINE."""
    found = next((part for part in _versions().layouts if (part.version, part.engine) == (version, engine)), None)
    if found is None:
        return table("verl_keys", _Newest).keys
    gone = set(found.drop)
    sections = tuple(name for name in found.drop if name.endswith("."))
    below = defaults(*found.over)
    kept = {
        key: value for key, value in below.items() if key not in gone and not (sections and key.startswith(sections))
    }
    return {**kept, **found.set}


@lru_cache(maxsize=1)
def every_key() -> Mapping[str, tuple[str, ...]]:
    """Every key of every version and engine, with the versions that have it, the newest first."""
    found: dict[str, list[str]] = {}
    for version in versions():
        for engine in engines(version):
            for key in defaults(version, engine):
                seen = found.setdefault(key, [])
                if version not in seen:
                    seen.append(version)
    return {key: tuple(seen) for key, seen in found.items()}


def extra() -> frozenset[str]:
    """Keys that are in no YAML file of verl, but that the classes of their sections take."""
    return _versions().extra


def asked() -> frozenset[str]:
    """Words that verl's code asks sections for with a default, such as `wandb_proxy`."""
    return _versions().asked
