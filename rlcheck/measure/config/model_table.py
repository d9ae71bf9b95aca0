"""Sizes of much used models by their names, for a model whose files are not here: `rlcheck/data/models.json`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.tables import table


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """Models of one shape. `names` on the hub; `sizes` as in config.json, what memory needs; `sources` that say so."""

    names: tuple[str, ...]
    sources: tuple[str, ...] = msgspec.field(name="from")
    sizes: dict[str, Any] = {}


class Models(Struct, frozen=True, forbid_unknown_fields=True):
    """The table. `checked`: the day on which it was held against its sources."""

    checked: str
    sources: dict[str, str]
    models: tuple[Entry, ...]


def models() -> Models:
    """Return the table."""
    return table("models", Models)


def checked() -> str:
    """The day of the table."""
    return models().checked


def sizes_by_name(path: str) -> dict[str, Any] | None:
    """The sizes of the model that PATH names, as a name on the hub or a directory called so; None: it is not known.

    >>> sizes_by_name("/data/models/Qwen2.5-7B-Instruct/")["hidden_size"]
    3584
    """
    return _by_name().get(path.rstrip("/").rpartition("/")[2].lower())


@lru_cache(maxsize=1)
def _by_name() -> dict[str, dict[str, Any]]:
    return {name.rpartition("/")[2].lower(): entry.sizes for entry in models().models for name in entry.names}
