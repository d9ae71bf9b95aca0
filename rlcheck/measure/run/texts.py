"""Metrics in the texts that people keep: verl's lines on the console, and tables that W&B exports.

Sources: verl/utils/logger/aggregate_logger.py (concat_dict_to_str); docs.wandb.ai, "Export a panel's data as CSV":
the columns `Step`, `RUN - METRIC`, and the same with `__MIN` and `__MAX`.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator

_STEP = re.compile(rb"(?<![\w/])step:(\d{1,15}) - ")
_PART = re.compile(
    r"(?<!\S)(?P<name>[^\s:]{1,200}):(?:np\.\w{1,20}\()?"
    r"(?P<value>[-+]?(?:nan|inf|[\d.]{1,40}(?:e[-+]?\d{1,4})?))\)?(?=\s|$|\x1b)",
    re.IGNORECASE,
)
_SPREAD = ("__MIN", "__MAX")
_STEPS = frozenset(("step", "_step", "train/global_step", "trainer/global_step", "training/global_step", "global_step"))

Record = dict[str, int | float]


def console_record(line: bytes) -> Record | None:
    """The metrics of a LINE such as `(TaskRunner pid=7) step:3 - critic/score/mean:0.5 - …`; None: it holds none."""
    found = _STEP.search(line) if b"step:" in line else None
    if found is None:
        return None
    parts = _PART.finditer(line[found.end() :].decode("utf-8", errors="replace"))
    values = {part["name"]: float(part["value"]) for part in parts if _is_number(part["value"])}
    return {"step": int(found[1]), **values} if values else None


def table_records(lines: Iterable[bytes], notes: list[str]) -> Iterator[Record]:
    """The rows of a table that has a column of steps; of several runs those of the one with the most values.

    Yields nothing where LINES are no such table. NOTES gets a line where runs were left out.
    """
    rows = csv.reader(io.StringIO(b"".join(lines).decode("utf-8", errors="replace"), newline=""))
    header = next(rows, list[str]())
    columns = table_columns(header)
    if not columns:
        return
    body = [row for row in rows if len(row) == len(header)]
    counts = Counter({run: 0 for run, _ in columns.values()})
    for row in body:
        counts.update(columns[place][0] for place in columns if row[place])
    (chosen, _), *others = counts.most_common()
    if others:
        notes.append(f"the table holds {len(counts)} runs; {chosen}, which has the most values, was read")
    steps = _step_column(header)
    for row in body:
        if not _is_number(row[steps]):
            continue
        values = {name: float(row[at]) for at, (run, name) in columns.items() if run == chosen and _is_number(row[at])}
        if values:
            yield {"step": int(float(row[steps])), **values}


def table_columns(header: list[str]) -> dict[int, tuple[str, str]]:
    """The columns of HEADER that are metrics: place to run ("": the table names none) and name; {}: no such table."""
    steps = _step_column(header)
    if steps < 0:
        return {}
    cells = [(at, text) for at, text in enumerate(header) if at != steps and not text.endswith(_SPREAD)]
    named = {at: text.rpartition(" - ")[::2] for at, text in cells}
    return {at: (run, name.strip()) for at, (run, name) in named.items() if name.strip() and name not in _STEPS}


def _step_column(header: list[str]) -> int:
    """The place of the column of steps in HEADER; -1: it has none."""
    return next((at for at, text in enumerate(header) if text.strip().lower() in _STEPS), -1)


def header_of(first: bytes) -> list[str]:
    """The cells of the FIRST line of a table."""
    return next(csv.reader([first.decode("utf-8", errors="replace").strip()]), list[str]())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
