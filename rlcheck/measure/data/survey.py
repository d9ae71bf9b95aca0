"""All files of a run read to their ends and put together as facts."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlcheck.facts.data import Asked, DataFacts, PromptLengths
from rlcheck.measure.data.merge import LINE_FORMATS, FileState, Sum
from rlcheck.measure.data.plan import Plan, guess, peek
from rlcheck.measure.data.twins import Digests, Twin, repeated, shared, twins
from rlcheck.measure.data.workers import SILENCE_S, Workers

REPEATED, LEAKED = 250, 251
"""Verdicts that only the doctor can give, since they take all files together."""
SLICE_BYTES = 8 << 20
SLICE_ROWS = 65536
SAMPLE_ROWS = 20_000
"""Rows whose lengths make the histogram, of however many: the share above any length is then known to 0.7 points."""
_FEW_BYTES = 8 << 20
_MAX_WORKERS = 4

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A slice of one file, for a worker."""

    file: int
    message: dict[str, Any]


@dataclass(frozen=True)
class Survey:
    """The facts, and what `--fix` needs besides."""

    facts: DataFacts
    digests: tuple[Digests, ...]
    reasons: tuple[str, ...]


def survey(
    plan: Plan, python: Sequence[str], progress: Progress, silence_s: float = SILENCE_S, *, most_rows: int = 0
) -> Survey:
    """Read everything, or the first rows.

    Args:
        plan: what is read.
        python: command line of the interpreter that reads; empty for the doctor's own.
        progress: told what is done.
        silence_s: longest time between two answers about one slice.
        most_rows: of each file, about so many and no more; 0: all.

    Raises:
        WorkersFailed: no process can be started that reads.
    """
    files = [FileState(source, Digests(source.split)) for source in plan.sources]
    total = Sum(plan.options["first"], files)
    columns, num_rows = _look(files)
    is_small = most_rows > 0 or sum(file.num_bytes for file in files) < _FEW_BYTES
    num_workers = 1 if is_small else min(_MAX_WORKERS, len(os.sched_getaffinity(0)))
    has_tables = any(file.source.format not in LINE_FORMATS for file in files)
    progress(f"starting {num_workers} worker{'s' if num_workers > 1 else ''}")
    with Workers(python, plan.options, num_workers, silence_s) as workers:
        tables = _described(files, workers) if has_tables else {}
        for found in tables.values():
            columns += found["columns"]
            num_rows += found["num_rows"]
        asked = guess(plan.asked, columns)
        keys = {"prompt_key": asked.prompt_key, "source_key": asked.source_key, "truth_key": asked.truth_key,
                "sample_share": min(1.0, SAMPLE_ROWS / max(1, num_rows)), "most_rows": most_rows}  # fmt: skip
        tasks = list(_tasks(files, tables, keys, most_rows))
        _read(tasks, workers, total, progress)
        hello = workers.hello
    for file in files:
        if not file.problem and size_of(file.source.path) != file.num_bytes:
            file.problem = "its size changed while it was read: something still writes it"
    progress("duplicates")
    _twins(total)
    lengths = _lengths(plan, asked, total, hello.get("lengths", {}))
    facts = DataFacts(
        files=tuple(file.facts() for file in files),
        asked=asked,
        troubles=total.troubles(),
        counts=total.counts,
        sources=total.sources,
        lengths=lengths,
        most_rows=most_rows,
    )
    return Survey(facts, tuple(file.digests for file in files), tuple(hello.get("reasons", ())))


def _look(files: list[FileState]) -> tuple[list[str], int]:
    """Columns and estimated number of rows of the files of lines; notes the size of every file."""
    columns: list[str] = []
    num_rows = 0
    first: dict[str, str] = {}
    for file in files:
        file.num_bytes = size_of(file.source.path)
        real = os.path.realpath(file.source.path)
        file.same_as = first.get(real, "")
        first.setdefault(real, file.source.path)
        if file.source.format in LINE_FORMATS:
            names, mean_bytes = peek(file.source)
            columns += names
            num_rows += int(file.num_bytes / mean_bytes) if mean_bytes else 0
    return columns, num_rows


def size_of(path: str) -> int:
    """Bytes of a file, or of the files in a directory; 0 where nobody may look."""
    try:
        if not os.path.isdir(path):
            return os.path.getsize(path)
        with os.scandir(path) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file())
    except OSError:
        return 0


def _described(files: list[FileState], workers: Workers) -> dict[int, dict[str, Any]]:
    """By number of the file: rows and columns of each table that can be opened."""
    numbers = [number for number, file in enumerate(files) if file.source.format not in LINE_FORMATS]
    found: dict[int, dict[str, Any]] = {}

    def told(task: int, said: dict[str, Any]) -> None:
        file = files[numbers[task]]
        file.problem, file.lacking = said.get("error", ""), said.get("lacking", "")
        if "num_rows" in said:
            found[numbers[task]] = said

    sources = [files[number].source for number in numbers]
    workers.run([{"do": "describe", "path": s.path, "kind": s.format} for s in sources], told)
    return found


def _tasks(
    files: list[FileState], tables: dict[int, dict[str, Any]], keys: dict[str, Any], most_rows: int
) -> Iterator[Task]:
    """Slices of all files, in order; what is packed or an array can only be read from its start."""
    for number, file in enumerate(files):
        kind = file.source.format
        size, step = file.num_bytes, SLICE_BYTES
        if kind not in LINE_FORMATS:
            size, step = tables.get(number, {}).get("num_rows", 0), SLICE_ROWS
            size = min(size, most_rows or size)
        if kind in ("gz", "array"):
            step = max(1, size)
        for start in range(0, min(size, step) if most_rows else size, step):  # one slice holds so many rows
            end = min(size, start + step)
            message = {"do": "read", "path": file.source.path, "kind": kind, "start": start, "end": end, **keys}
            yield Task(number, message)


def _read(tasks: list[Task], workers: Workers, total: Sum, progress: Progress) -> None:
    """Have TASKS read, and add their parts to TOTAL in the order of the tasks."""
    waiting: dict[int, list[dict[str, Any]]] = {}
    done: set[int] = set()
    turn = 0

    def told(number: int, said: dict[str, Any]) -> None:
        nonlocal turn
        file = total.files[tasks[number].file]
        if "part" in said:
            waiting.setdefault(number, []).append(said["part"])
        if said.get("done"):
            done.add(number)
            file.problem = file.problem or said.get("error", "")
            file.lacking = file.lacking or said.get("lacking", "")
            progress(f"{os.path.basename(file.source.path)}, {len(done)} of {len(tasks)} slices read")
        while turn < len(tasks):
            for part in waiting.pop(turn, ()):
                total.add(tasks[turn].file, part)
            if turn not in done:
                return
            turn += 1

    workers.run([task.message for task in tasks], told)


def _twins(total: Sum) -> None:
    """Note what occurs twice and what leaks."""
    train = [number for number, file in enumerate(total.files) if file.source.split == "train"]
    val = [number for number, file in enumerate(total.files) if file.source.split == "val"]
    digests = [file.digests for file in total.files]
    for numbers, kind in ((train, "repeated"), (val, "repeated_val")):
        mine = [digests[number] for number in numbers]
        exact = repeated([one.prompts for one in mine])
        for twin in twins([one.prompts for one in mine], exact):
            same = mine[twin.file].truths[twin.line] == mine[twin.first_file].truths[twin.first_line]
            _note(total, kind if same else kind.replace("repeated", "contradicts"), numbers, numbers, twin)
            if same and kind == "repeated":
                _condemn(mine[twin.file], twin.line, REPEATED)
        if kind == "repeated":
            _alike(total, numbers, mine)
    _leaks(total, train, val, [digests[n] for n in train], [digests[n] for n in val])


def _alike(total: Sum, numbers: list[int], mine: list[Digests]) -> None:
    """Training rows that are an earlier one in other letter case or white space."""
    wanted = repeated([one.alikes for one in mine])
    for twin in twins([one.alikes for one in mine], wanted):
        if mine[twin.file].prompts[twin.line] != mine[twin.first_file].prompts[twin.first_line]:
            _note(total, "alike", numbers, numbers, twin)


def _leaks(total: Sum, train: list[int], val: list[int], mine: list[Digests], other: list[Digests]) -> None:
    for twin in shared([one.alikes for one in mine], [one.alikes for one in other]):
        exact = mine[twin.file].prompts[twin.line] == other[twin.first_file].prompts[twin.first_line]
        _note(total, "leak" if exact else "leak_alike", train, val, twin)
        _condemn(mine[twin.file], twin.line, LEAKED)


def _note(total: Sum, kind: str, numbers: list[int], firsts: list[int], twin: Twin) -> None:
    if len(total.tally.get(kind, (0, []))[1]) >= total.first:  # there may be millions
        total.note(kind, 1, [])
        return
    other = total.files[firsts[twin.first_file]].spot(twin.first_line)
    total.note(kind, 1, [total.files[numbers[twin.file]].spot(twin.line, text=other.place)])


def _condemn(digests: Digests, line: int, verdict: int) -> None:
    digests.verdicts[line] = digests.verdicts[line] or verdict


def _lengths(plan: Plan, asked: Asked, total: Sum, about: dict[str, Any]) -> PromptLengths:
    return PromptLengths(
        unit=about.get("unit", "bytes"),
        limit=asked.max_prompt_length,
        sample=tuple(sorted(array("Q", total.lengths))),
        num_measured=total.counts.get("tokenized", 0),
        num_bounded=total.counts.get("bounded", 0),
        num_too_long=total.tally.get("too_long", (0, []))[0],
        longest=total.longest,
        tokenizer=plan.tokenizer,
        problem=about.get("problem", ""),
        has_template=about.get("has_template", False),
        append=about.get("append", {}),
    )
