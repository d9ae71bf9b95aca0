"""Metrics in JSON lines: one object a line, with its step.

Lines of one form (the same names in the same order) are decoded by a type made for that form, which is three times as
fast as decoding into dictionaries. A line that does not fit is read as JSON in general, NaN and Infinity included.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from rlcheck.measure.run.printed import Printed
from rlcheck.measure.run.series import CurveError, Piece, Series, as_steps, known_only
from rlcheck.measure.run.texts import console_record, table_records

STEP_NAMES = (
    "step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "iteration",
    "_step",
)
"""Under one of these a line says its step; the first that it has counts."""
LONGEST_LINE = 100 * 2**20
"""Bytes. A longer line holds no metrics."""
_HOPELESS_LINES = 200_000
"""A file without a JSON object among so many lines is some other log."""
_KEPT = ("nonfinite", "audit")
_NO_NUMBERS = {"nan": math.nan, "infinity": math.inf, "inf": math.inf, "-infinity": -math.inf, "-inf": -math.inf}
_WRAPPERS = ("data", "metrics")
_SEEN_BEFORE_COMPILED = 3
_MOST_FORMS = 500
_MOST_RECENT = 4
_DEEPEST = 4
_BOM = b"\xef\xbb\xbf"

Row = tuple[Any, ...]


@dataclass(eq=False)
class Form:
    """Lines that have the same names in the same order.

    `kinds`: for each name, n (number or null) or o (anything else). `rows`, `orders`: of its lines.
    """

    names: tuple[str, ...]
    kinds: str
    rows: list[Row] = field(default_factory=list[Row])
    orders: list[int] = field(default_factory=list[int])
    decode: Callable[[bytes], Row] | None = None
    following: Form | None = None


@dataclass
class Lines:
    """What a file of lines holds besides its metrics."""

    num_records: int = 0
    num_bad: int = 0
    first_bad: int = 0
    num_without_step: int = 0
    num_console: int = 0
    """Lines of a console that hold metrics; the others of such a file are no fault."""
    notes: list[str] = field(default_factory=list[str])
    audit: list[tuple[int, dict[str, Any]]] = field(default_factory=list[tuple[int, dict[str, Any]]])


class Records:
    """Takes JSON objects and files their numbers."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._forms: dict[tuple[tuple[str, ...], str], Form] = {}
        self._last = Form((), "")
        self._recent: deque[Form] = deque(maxlen=_MOST_RECENT)

    def add_line(self, line: bytes, order: int) -> bool:
        """Take a line of text; False if it is not a JSON object."""
        if not line[:64].lstrip().startswith(b"{"):
            return False
        for form in (self._last.following, *self._recent):
            if form is None or form.decode is None:
                continue
            try:
                row = form.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            form.rows.append(row)
            form.orders.append(order)
            self._note(form)
            return True
        record = parsed(line)
        if record is None:
            return False
        self.add(record, order)
        return True

    def add(self, record: Mapping[str, Any], order: int) -> None:
        """Take an object."""
        names: list[str] = []
        kinds: list[str] = []
        values: list[Any] = []
        _flatten(record, "", 0, names, kinds, values)
        key = tuple(names), "".join(kinds)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = Form(*key)
        form.rows.append(tuple(values))
        form.orders.append(order)
        if form.decode is None and len(form.rows) == _SEEN_BEFORE_COMPILED and len(self._forms) < _MOST_FORMS:
            form.decode = _compiled(record)
        self._note(form)

    def _note(self, form: Form) -> None:
        """Remember that a line of FORM came: the next one is guessed by that."""
        self._last.following = form
        self._last = form
        if form not in self._recent:
            self._recent.appendleft(form)

    def finish(self, lines: Lines) -> None:
        """File all that was taken, and note in LINES what is no number."""
        self._last = Form((), "")
        self._recent.clear()
        for form in self._forms.values():
            # Forms that point to one another would keep all their rows until Python looks for garbage.
            form.following = None
            columns: dict[str, Sequence[Any]] = dict(zip(form.names, zip(*form.rows, strict=True), strict=True))
            kinds = dict(zip(form.names, form.kinds, strict=True))
            self._file(columns, kinds, form.orders, lines)

    def _file(self, columns: dict[str, Sequence[Any]], kinds: dict[str, str], orders: list[int], lines: Lines) -> None:
        name = next((name for name in STEP_NAMES if name in columns), None)
        steps = [None] * len(orders) if name is None else as_steps(columns[name])
        lines.num_records += len(orders)
        if None in steps:
            kept = [place for place, step in enumerate(steps) if step is not None]
            lines.num_without_step += len(steps) - len(kept)
            columns = {name: [column[place] for place in kept] for name, column in columns.items()}
            orders = [orders[place] for place in kept]
        known = [step for step in steps if step is not None]
        for name, column in columns.items():
            if kinds[name] == "n" and name not in ("step", "_step"):
                piece = Piece(known, orders, column) if _all_known(column) else known_only(known, orders, column)
                self._series.add(name, piece)
        for step, order, names in zip(known, orders, columns.get("nonfinite", ()), strict=False):
            for name in cast("list[Any]", names) if isinstance(names, list) else []:
                self._series.add(str(name), Piece([step], [order], [math.nan]))
        for step, audit in zip(known, columns.get("audit", ()), strict=False):
            if isinstance(audit, dict):
                lines.audit.append((step, cast("dict[str, Any]", audit)))


def _all_known(column: Sequence[Any]) -> bool:
    """Whether no value of COLUMN, which holds numbers, is None: much quicker than to look for None."""
    try:
        sum(column)
    except TypeError:
        return False
    return True


def read_lines(path: Path, series: Series) -> Lines:
    """File the metrics of the JSON lines at PATH (also gzipped) in SERIES; or of a console's lines, or a table's.

    Raises:
        CurveError: it cannot be read, a line is enormous, or no line holds metrics.
    """
    lines, records, printed = Lines(), Records(series), Printed()
    bad_end = any_good = False
    number, before = 0, series.places(0).start
    try:
        if is_table(path):
            number = _add_table(records, path, before, lines)
        for number, line in enumerate(() if is_table(path) else each_line(path), start=1):
            if not line.strip():
                continue
            if records.add_line(line, before + number):
                any_good = True
                continue
            written = console_record(line)
            if written is not None:
                records.add(written, before + number)
                lines.num_console += 1
                any_good = True
            elif printed.take(line, before + number):
                lines.num_console += 1
                any_good = True
            elif not any_good and number > _HOPELESS_LINES:
                break
            else:
                bad_end = not line.endswith(b"\n")
                lines.num_bad += not bad_end
                lines.first_bad = lines.first_bad or (0 if bad_end else number)
    except EOFError:
        bad_end = True  # packed while it was read, or cut
    except (OSError, zlib.error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise CurveError(f"{path} cannot be read: {reason}; give the directory of a run, or its metrics") from None
    series.places(number + 1)
    for order, record in printed.records():
        records.add(record, order)
    lines.notes += printed.notes
    records.finish(lines)
    if not lines.num_records and (lines.num_bad or bad_end):
        raise CurveError(
            f"{path} holds no metrics: no JSON lines, no lines of verl's console (step:1 - …), "
            "no dictionaries of a Trainer; to have them written: "
            'trainer.logger=\'["console","file"]\' (verl), report_to="tensorboard" (TRL)'
        )
    if lines.num_console:
        lines.num_bad = 0
    return lines


def _add_table(records: Records, path: Path, before: int, lines: Lines) -> int:
    """Give RECORDS the rows of the table at PATH; return their number."""
    number = 0
    for number, row in enumerate(table_records(each_line(path), lines.notes), start=1):
        records.add(row, before + number)
    lines.num_bad = not number
    return number


def is_table(path: Path) -> bool:
    """Whether PATH is a table, by its name."""
    return path.name.removesuffix(".gz").endswith(".csv")


def each_line(path: Path) -> Iterator[bytes]:
    """The lines of PATH, unpacked if it ends in .gz.

    Raises:
        CurveError: a line is longer than `LONGEST_LINE`.
        OSError: it cannot be read.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE + 1), b""), start=1):
            if len(line) > LONGEST_LINE:
                raise CurveError(f"{path}:{number}: a line of over {LONGEST_LINE >> 20} MiB: this holds no metrics")
            yield line.removeprefix(_BOM) if number == 1 else line


def parsed(line: bytes) -> dict[str, Any] | None:
    """LINE as a JSON object, with NaN and Infinity as Python reads them; None if it is none."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = json.loads(line.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):
            return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _flatten(
    record: Mapping[str, Any], prefix: str, depth: int, names: list[str], kinds: list[str], values: list[Any]
) -> None:
    """Write the entries of RECORD to NAMES, KINDS and VALUES; those of objects within it by their path."""
    for name, value in record.items():
        if isinstance(value, dict) and name not in _KEPT and depth < _DEEPEST:
            _flatten(cast("dict[str, Any]", value), _within(record, prefix, name), depth + 1, names, kinds, values)
            continue
        number = _number(value)
        names.append(prefix + name)
        kinds.append("n" if number is not None or value is None else "o")
        values.append(value if number is None else number)


def _within(record: Mapping[str, Any], prefix: str, name: str) -> str:
    """What names of the object NAME of RECORD begin with; that of `{"step": 1, "data": {..}}` (verl) adds nothing."""
    return prefix if name in _WRAPPERS and not prefix and "step" in record else f"{prefix}{name}/"


def _number(value: Any) -> float | None:
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return _NO_NUMBERS.get(value.lower()) if isinstance(value, str) and len(value) < 10 else None


def _compiled(record: Mapping[str, Any]) -> Callable[[bytes], Row] | None:
    """What decodes lines of the form of RECORD into rows as `_flatten` makes them; None if msgspec cannot."""
    try:
        form = _type_of(record, 0)
        decoder = msgspec.json.Decoder(form)
    except (TypeError, ValueError):
        return None
    astuple = msgspec.structs.astuple
    if not any(isinstance(value, dict) and name not in _KEPT for name, value in record.items()):
        return lambda line: astuple(decoder.decode(line))
    return lambda line: tuple(_leaves(decoder.decode(line)))


def _leaves(struct: msgspec.Struct) -> Iterator[Any]:
    for value in msgspec.structs.astuple(struct):
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value)
        else:
            yield value


def _type_of(record: Mapping[str, Any], depth: int) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any]] = []
    for place, (name, value) in enumerate(record.items()):
        if isinstance(value, dict) and name not in _KEPT and depth < _DEEPEST:
            kind = _type_of(cast("dict[str, Any]", value), depth + 1)
        elif name in _KEPT:
            kind = Any
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            kind = float | None
        elif _number(value) is None:
            kind = str | list[Any]
        else:
            raise TypeError(f"{name}: a number that is not written as one")
        fields.append((f"f{place}", kind))
    rename = {f"f{place}": name for place, name in enumerate(record)}
    return msgspec.defstruct("Line", fields, rename=rename, forbid_unknown_fields=True, gc=False)
