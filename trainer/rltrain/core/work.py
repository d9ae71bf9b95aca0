"""How far the workers have come with a long call: each writes it into a small file that the controller reads.

A worker answers nothing while it generates or updates, so this cannot go by calls. The files lie beside the logs, are
overwritten in place, and are read on the controller's own node; of ranks elsewhere nothing is shown.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

PLACE = "RLTRAIN_WORK_FILE"
"""Variable of a worker that names its file."""
_COUNTS = struct.Struct("<qq")


def place_of(log: Path) -> Path:
    """The file of the worker that writes LOG."""
    return log.with_suffix(".work")


def report(done: int, total: int) -> None:
    """DONE of TOTAL pieces are finished. Costs microseconds; does nothing in a process that is no worker."""
    descriptor = _descriptor()
    if descriptor is not None:
        with suppress(OSError):  # a full disk must not end the work
            os.pwrite(descriptor, _COUNTS.pack(done, total), 0)


@cache
def _descriptor() -> int | None:
    place = os.environ.get(PLACE)
    if place is None:
        return None
    try:
        return os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        return None


class WorkFiles:
    """The controller's side: which files belong to which stage."""

    def __init__(self, by_stage: Mapping[str, Sequence[Path]]) -> None:
        self._by_stage = by_stage

    def begin(self, stage: str) -> None:
        """STAGE begins: forget what the files say of the one before."""
        for file in self._by_stage.get(stage, ()):
            with suppress(OSError):
                os.truncate(file, 0)

    def marks(self) -> tuple[tuple[int, int] | None, ...]:
        """What all files tell; it changes whenever any worker comes further."""
        files = dict.fromkeys(file for files in self._by_stage.values() for file in files)
        return tuple(_read(file) for file in files)

    def counts(self, stage: str) -> tuple[int, int] | None:
        """Pieces done and pieces in all of STAGE, over all workers; None: not known (yet)."""
        found = [counts for file in self._by_stage.get(stage, ()) if (counts := _read(file)) is not None]
        if not found:
            return None
        return sum(done for done, _ in found), sum(total for _, total in found)


def _read(file: Path) -> tuple[int, int] | None:
    try:
        data = file.read_bytes()
    except OSError:
        return None
    if len(data) != _COUNTS.size:
        return None
    done, total = _COUNTS.unpack(data)
    return done, total
