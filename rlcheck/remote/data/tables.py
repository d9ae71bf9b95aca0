"""Rows of Parquet files, Arrow files, directories of `datasets.save_to_disk`, and files that are one JSON array."""

from __future__ import annotations

import base64
import glob
import importlib
import json
import os
from typing import Any, Iterator

BATCH_ROWS = 2048
ARRAY_LIMIT_BYTES = 512 << 20
"""Of a file that is one JSON array: it can only be read as a whole."""


class Lacking(Exception):
    """A library that this kind of file needs."""


def describe(path: str, kind: str) -> dict:
    """Number of rows and names of columns, read from the file's own description."""
    if kind == "array":
        rows = _array(path)
        return {"num_rows": len(rows), "columns": list(rows[0]) if rows and isinstance(rows[0], dict) else []}
    if kind == "parquet":
        with _library("pyarrow.parquet").ParquetFile(path) as file:
            return {"num_rows": file.metadata.num_rows, "columns": list(file.schema_arrow.names)}
    num_rows, columns = 0, []
    for batch in _arrow_batches(path):
        num_rows += batch.num_rows
        columns = columns or list(batch.schema.names)
    return {"num_rows": num_rows, "columns": columns}


def read(path: str, kind: str, start: int, end: int) -> Iterator[Any]:
    """The rows [START, END)."""
    if kind == "array":
        yield from _array(path)[start:end]
        return
    at = 0
    if kind == "parquet":
        file = _library("pyarrow.parquet").ParquetFile(path)
        at, groups = _groups(file.metadata, start, end)
        batches = file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups)
    else:
        batches = _arrow_batches(path)
    for whole in batches:
        for offset in range(0, whole.num_rows, BATCH_ROWS):  # a file written as one batch is cut, too
            batch = whole.slice(offset, BATCH_ROWS)
            first, at = at, at + batch.num_rows
            if at <= start:
                continue
            if first >= end:
                return
            low, high = max(start - first, 0), min(end - first, batch.num_rows)
            yield from batch.slice(low, high - low).to_pylist()


def _groups(metadata: Any, start: int, end: int) -> tuple:
    """The first row of the first row group with rows in [START, END), and all such groups."""
    at, first, groups = 0, 0, []
    for number in range(metadata.num_row_groups):
        size = metadata.row_group(number).num_rows
        if at < end and at + size > start:
            first = first if groups else at
            groups.append(number)
        at += size
    return first, groups


def _arrow_batches(path: str) -> Iterator[Any]:
    """Record batches of an Arrow file, or of the files of a saved data set in their order."""
    arrow = _library("pyarrow")
    for name in arrow_files(path):
        with arrow.memory_map(name) as source:
            try:
                reader = arrow.ipc.open_stream(source)
            except arrow.ArrowInvalid:
                source.seek(0)
                file = arrow.ipc.open_file(source)
                yield from (file.get_batch(number) for number in range(file.num_record_batches))
                continue
            yield from reader


def arrow_files(path: str) -> list:
    """The files that hold the rows.

    Raises:
        ValueError: a directory that is no saved data set.
    """
    if not os.path.isdir(path):
        return [path]
    state = os.path.join(path, "state.json")
    if os.path.isfile(os.path.join(path, "dataset_dict.json")):
        with open(os.path.join(path, "dataset_dict.json"), encoding="utf-8") as file:
            splits = ", ".join(json.load(file).get("splits", []))
        raise ValueError(f"holds several splits ({splits}); name one of its directories")
    if os.path.isfile(state):
        with open(state, encoding="utf-8") as file:
            return [os.path.join(path, entry["filename"]) for entry in json.load(file)["_data_files"]]
    found = sorted(glob.glob(os.path.join(glob.escape(path), "*.arrow")))
    if not found:
        raise ValueError("a directory without state.json: not written by datasets.save_to_disk; name the files in it")
    return found


def _array(path: str) -> list:
    if os.path.getsize(path) > ARRAY_LIMIT_BYTES:
        raise ValueError(f"one JSON array of more than {ARRAY_LIMIT_BYTES >> 20} MiB; make lines of it: jq -c '.[]'")
    with open(path, encoding="utf-8-sig") as file:
        rows = json.load(file)
    return rows if isinstance(rows, list) else [rows]


def sift(path: str, kind: str, verdicts: str, reasons: dict, clean: str, rejects: str) -> dict:
    """Write the rows whose verdict is 0 to the Parquet file CLEAN, the others as JSON lines to REJECTS."""
    arrow, parquet = _library("pyarrow"), _library("pyarrow.parquet")
    codes = base64.b64decode(verdicts)
    if kind == "array":
        batches = [arrow.RecordBatch.from_pylist(_array(path))]
    elif kind == "parquet":
        file = parquet.ParquetFile(path)
        # A table without rows has no batch, but columns that the copy must have as well.
        batches = file.iter_batches(batch_size=BATCH_ROWS) if file.metadata.num_rows else [_no_rows(file.schema_arrow)]
    else:
        batches = _arrow_batches(path)
    at = num_kept = 0
    writer = None
    with open(rejects, "w", encoding="utf-8") as refused:
        try:
            for batch in batches:
                mine, at = codes[at : at + batch.num_rows], at + batch.num_rows
                writer = writer or parquet.ParquetWriter(clean, batch.schema)
                kept = batch.filter(arrow.array([code == 0 for code in mine], arrow.bool_()))
                writer.write_batch(kept)
                num_kept += kept.num_rows
                for offset, code in enumerate(mine):
                    if code:
                        place = f"{path}:row {at - batch.num_rows + offset}"
                        values = batch.slice(offset, 1).to_pylist()[0]
                        line = {"place": place, "reason": reasons[str(code)], "row": values}
                        refused.write(json.dumps(line, ensure_ascii=True, default=repr) + "\n")
        finally:
            if writer is not None:
                writer.close()
    return {"num_kept": num_kept, "num_rejected": at - num_kept}


def _no_rows(schema: Any) -> Any:
    return _library("pyarrow").RecordBatch.from_pylist([], schema=schema)


def _library(module: str) -> Any:
    try:
        found = importlib.import_module(module)
        importlib.import_module("pyarrow.ipc")
        return found
    except ImportError as error:
        raise Lacking(f"{module.partition('.')[0]} cannot be imported: {error}") from None
