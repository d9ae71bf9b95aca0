"""Metrics in one document: `trainer_state.json` of Hugging Face trainers, a list of records, columns (JSON, Parquet).

Source: transformers/trainer_callback.py, class TrainerState (`log_history`, `global_step`, `max_steps`).
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, cast

from rlcheck.measure.run.jsonl import STEP_NAMES, Lines, Records
from rlcheck.measure.run.series import CurveError, Series

_FEWEST = 2
"""Numbers in a column."""


def read_state(path: Path, series: Series) -> int:
    """File the records of the document at PATH, JSON or Parquet, in SERIES.

    Returns:
        The steps that the training will have; 0: it does not say.

    Raises:
        CurveError: it cannot be read, or is something else.
    """
    try:
        state: Any = _columns(path) if path.suffix == ".parquet" else json.loads(path.read_text("utf-8", "replace"))
    except OSError as error:
        raise CurveError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise CurveError(f"{path} is no JSON document; give the directory of a run, or its metrics") from None
    found = _history(state)
    if not found:
        raise CurveError(f"{path}: {_why_not(state)}")
    records = Records(series)
    for count, record in enumerate(found, start=1):
        numbered = any(name in record for name in STEP_NAMES)
        records.add(record if numbered else {**record, "step": count}, series.places(1).start)
    records.finish(Lines())
    total = cast("dict[str, Any]", state).get("max_steps") if isinstance(state, dict) else None
    return total if isinstance(total, int) and total > 0 else 0


def _columns(path: Path) -> dict[str, list[Any]]:
    """The columns of the Parquet file at PATH.

    Raises:
        CurveError: pyarrow is not there, or cannot read it.
    """
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise CurveError(f"{path}: Parquet needs pyarrow: pip install pyarrow, or export the run as CSV") from None
    try:
        return parquet.read_table(path).to_pydict()
    except (ValueError, OSError) as error:
        raise CurveError(f"{path} cannot be read: {str(error).splitlines()[0]}; export the run again") from None


def _history(state: Any) -> list[dict[str, Any]]:
    """The records of STATE: those of `log_history`, of a list, or the rows of columns of one length."""
    if isinstance(state, dict):
        document = cast("dict[str, Any]", state)
        if "log_history" not in document:
            return _rows(document)
        state = document["log_history"]
    items = cast("list[Any]", state) if isinstance(state, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the columns in DOCUMENT; none if they differ in length."""
    columns = {name: cast("list[Any]", column) for name, column in document.items() if isinstance(column, list)}
    numbers = {name: column for name, column in columns.items() if len(column) >= _FEWEST and _is_numbers(column)}
    if len({len(column) for column in numbers.values()}) != 1:
        return []
    return [dict(zip(numbers, row, strict=True)) for row in zip(*numbers.values(), strict=True)]


def _is_numbers(column: list[Any]) -> bool:
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column)


def _why_not(state: Any) -> str:
    if isinstance(state, dict) and "_step" in state:
        return "a summary holds the last values alone; export the history of the run (CSV, JSON lines or Parquet)"
    return "no log_history, no list of records, no columns of numbers of one length; give the metrics of a run"


def logged_name(tag: str) -> str:
    """The name in `log_history` of what the trainer's TensorBoard callback calls TAG.

    Source: rewrite_logs of transformers/integrations/integration_utils.py.
    """
    group, _, rest = tag.partition("/")
    return rest if group == "train" else f"{group}_{rest}" if group in ("eval", "test") and rest else tag
