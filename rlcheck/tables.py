"""The tables of `rlcheck/data`: each is read once, when it is first asked for, and has a type."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from rlcheck.facts.base import Struct

DATA = Path(__file__).resolve().parent / "data"
T = TypeVar("T")


class Threshold(Struct, frozen=True):
    """A number of a table, where it is from, and why it is that."""

    value: float
    source: str
    why: str


def table(name: str, kind: type[T]) -> T:
    """Return `rlcheck/data/NAME.json` as a KIND."""
    return cast("T", _read(name, kind))


@cache
def table_text(name: str) -> bytes:
    """Return `rlcheck/data/NAME.json` as it is written."""
    return (DATA / f"{name}.json").read_bytes()


@cache
def _read(name: str, kind: Any) -> Any:
    return msgspec.json.decode(table_text(name), type=kind)
