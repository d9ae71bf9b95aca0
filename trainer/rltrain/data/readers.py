"""Files of rows, one after the other: JSONL, Parquet, and directories that `datasets.save_to_disk` wrote.

A row is a dict with a place that a person can find again: `FILE:LINE` (counted from 1) for JSONL,
`FILE:row N` (counted from 0, as pandas and pyarrow count) for the others. Nothing is skipped in silence, except lines
of a JSONL file that are blank.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rltrain.core.errors import UserError, first_line

UTF8_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class RawRow:
    """A row as the file has it."""

    file: Path
    place: str
    values: dict[str, Any]


def resolve_files(files: str | tuple[str, ...]) -> tuple[Path, ...]:
    """Absolute paths of FILES: `~` and environment variables replaced, relative to the current directory.

    Raises:
        UserError: one does not exist.
    """
    names = (files,) if isinstance(files, str) else files
    return tuple(_resolve(name) for name in names)


def read_file(path: Path) -> Iterator[RawRow]:
    """The rows of one file or directory; read from start to end, so that changes of the file later do not matter.

    Raises:
        UserError: it is missing, of an unknown kind or broken; the message names the place.
    """
    read = _read_directory if path.is_dir() else READERS.get(path.suffix.lower())
    if read is None:
        raise UserError(
            f"{path}: unknown kind of file '{path.suffix}'; expected {', '.join(READERS)} "
            "or a directory written by datasets.save_to_disk (unpack archives first)"
        )
    try:
        yield from read(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; fix the file or its permissions") from None


def _resolve(name: str) -> Path:
    expanded = os.path.expanduser(os.path.expandvars(name))
    path = Path(os.path.abspath(expanded))
    if os.path.exists(path):
        return path
    hint = "check the path"
    if "$" in expanded:
        hint = "an environment variable in it is not set"
    elif "\\" in expanded and os.sep == "/":
        hint = "write / between directories: \\ is no separator on this system"
    raise UserError(f"data file '{name}' does not exist (looked for {path}); {hint}")


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    offset_bytes = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}:{number}"
            text = _decode(line, place, offset_bytes)
            offset_bytes += len(line)
            if text.strip():
                yield RawRow(path, place, _parse(text, place))


def _decode(line: bytes, place: str, offset_bytes: int) -> str:
    """LINE without its end and without a byte order mark."""
    if offset_bytes == 0 and line.startswith(UTF16_MARKS):
        raise UserError(f"{place}: the file is UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
    marked = offset_bytes == 0 and line.startswith(UTF8_MARK)
    try:
        return line.rstrip(b"\r\n").decode("utf-8-sig" if marked else "utf-8")
    except UnicodeDecodeError as error:
        # The codec that takes the mark away counts from after it.
        at = offset_bytes + error.start + (len(UTF8_MARK) if marked else 0)
        bad = error.object[error.start]
        raise UserError(
            f"{place}: not UTF-8: byte 0x{bad:02x} at byte offset {at} of the file; "
            "convert the file to UTF-8 (iconv -f ENCODING -t UTF-8)"
        ) from None


class _DuplicateKeyError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise _DuplicateKeyError(f"the key '{double}' occurs twice in one object")
    return values


def _parse(text: str, place: str) -> dict[str, Any]:
    # Not strict: control characters in strings are common in scraped text and harm nothing.
    try:
        value: Any = json.loads(text, strict=False, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not JSON: {error.msg} (column {error.colno}); write one object a line") from None
    except (_DuplicateKeyError, RecursionError, ValueError) as error:
        raise UserError(f"{place}: not usable JSON: {error}; fix the line") from None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    array = "; turn an array into lines: jq -c '.[]'" if text.lstrip().startswith("[") else ""
    raise UserError(f"{place}: expected a JSON object, found {type(value).__name__}{array}")


def _read_parquet(path: Path) -> Iterator[RawRow]:
    parquet = _library("pyarrow.parquet", "pyarrow")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    yield RawRow(path, f"{path}:row {number}", values)
                    number += 1
    except ValueError as error:  # pyarrow's own errors of form
        raise UserError(
            f"{path}:row {number}: not readable Parquet: {first_line(error)[:200]}; write it again"
        ) from None


def _read_directory(path: Path) -> Iterator[RawRow]:
    datasets = _library("datasets", "datasets")
    number = 0
    try:
        loaded = datasets.load_from_disk(str(path))
        if isinstance(loaded, datasets.DatasetDict):
            splits = ", ".join(str(path / name) for name in loaded)
            raise UserError(f"{path} holds several splits; name one of them: {splits}")
        for values in loaded:
            yield RawRow(path, f"{path}:row {number}", values)
            number += 1
    except UserError:
        raise
    except Exception as error:  # the library takes the files' form for granted
        raise UserError(
            f"{path} is not a data set that datasets.save_to_disk wrote: {first_line(error)[:200]}; "
            "name such a directory, or the .jsonl or .parquet files in it"
        ) from None


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"this kind of data needs {package}, which cannot be imported ({error}): install it") from None


READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_jsonl,
    ".parquet": _read_parquet,
}
