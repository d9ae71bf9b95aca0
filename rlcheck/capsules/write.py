"""Writes a step capsule (`rlcheck.facts.capsule`) without torch: whole or not at all."""

from __future__ import annotations

import json
import shutil
import struct
from array import array
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rlcheck.facts.capsule import Capsule, CapsuleRow

HEAD = "capsule.json"
MOST_BYTES = 64 << 20
"""A capsule is no larger."""
_MOST_TOKENIZER_BYTES = 20 << 20


@dataclass(frozen=True)
class Array:
    """A tensor as safetensors has it: `dtype` is its name there (`F32`, `I64`, `BF16`, …), `data` row by row."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def padded(rows: Sequence[Sequence[float]], kind: str, width: int | None = None, left: bool = False) -> Array:
    """ROWS of several lengths as `[B, WIDTH]`, padded with 0 on the right, or on the LEFT.

    KIND: `F32`, `I32` or `U8`.
    """
    wide = max((len(row) for row in rows), default=0) if width is None else width
    code, as_kind = {"F32": ("f", float), "I32": ("i", int), "U8": ("B", int)}[kind]
    cells: list[float] = []
    for row in rows:
        rest = [0.0] * (wide - len(row))
        cells += [*rest, *row] if left else [*row, *rest]
    return Array(kind, (len(rows), wide), array(code, [as_kind(cell) for cell in cells]).tobytes())


def safetensors(arrays: Mapping[str, Array]) -> bytes:
    """ARRAYS as a file of safetensors (huggingface.co/docs/safetensors, "Format"): length, JSON header, data."""
    header: dict[str, object] = {}
    start = 0
    for name, one in arrays.items():
        header[name] = {"dtype": one.dtype, "shape": [*one.shape], "data_offsets": [start, start + len(one.data)]}
        start += len(one.data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(one.data for one in arrays.values())


def write(
    directory: Path,
    capsule: Capsule,
    rows: Sequence[CapsuleRow],
    batch: Mapping[str, Array],
    weights: Mapping[str, Array],
    save_tokenizer: Callable[[Path], object] | None = None,
) -> Path:
    """Write DIRECTORY, in the place of one that is there; returns it. Weights that are too large are left out.

    Raises:
        OSError: it cannot be written.
        ValueError: it would be larger than `MOST_BYTES`.
    """
    with replaced(directory) as fresh:
        (fresh / "batch.safetensors").write_bytes(safetensors(batch))
        capsule = beside(fresh, capsule, rows, save_tokenizer)
        if weights and sum(len(one.data) for one in weights.values()) > MOST_BYTES - size_of(fresh) - (1 << 20):
            weights = dict[str, Array]()
            missing = (*capsule.missing, "weights: the capsule would be larger than 64 MB")
            capsule = msgspec.structs.replace(capsule, missing=missing)
        if weights:
            (fresh / "weights.safetensors").write_bytes(safetensors(weights))
        close(fresh, capsule)
    return directory


@contextmanager
def replaced(directory: Path) -> Generator[Path]:
    """A directory to fill in the block, which then takes the place of DIRECTORY; nothing stays of one that fails."""
    fresh = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        shutil.rmtree(directory, ignore_errors=True)
        fresh.replace(directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def beside(
    fresh: Path, capsule: Capsule, rows: Sequence[CapsuleRow], save_tokenizer: Callable[[Path], object] | None
) -> Capsule:
    """Write rows and tokenizer of the capsule FRESH; returns its head, which says whether the tokenizer is missing."""
    (fresh / "rows.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    if save_tokenizer is not None:
        save_tokenizer(fresh / "tokenizer")
        if size_of(fresh / "tokenizer") > _MOST_TOKENIZER_BYTES:
            shutil.rmtree(fresh / "tokenizer")
            missing = (*capsule.missing, "the tokenizer: its files are larger than 20 MB")
            capsule = msgspec.structs.replace(capsule, missing=missing)
    return capsule


def close(fresh: Path, capsule: Capsule) -> None:
    """Write the head of the capsule FRESH, which has all else.

    Raises:
        ValueError: it is larger than `MOST_BYTES`.
    """
    (fresh / HEAD).write_bytes(encoded(capsule))
    if (size := size_of(fresh)) > MOST_BYTES:
        raise ValueError(f"it has {size >> 20} MB, more than {MOST_BYTES >> 20}")


def encoded(capsule: Capsule) -> bytes:
    """The head of a capsule as its file has it."""
    return msgspec.json.format(msgspec.json.encode(capsule), indent=1) + b"\n"


def size_of(directory: Path) -> int:
    """Bytes of all files below DIRECTORY."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
