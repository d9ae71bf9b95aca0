"""Which files of a directory are the metrics, samples and record of one run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

from rlcheck.measure.run.jsonl import STEP_NAMES, each_line, is_table, parsed
from rlcheck.measure.run.series import CurveError
from rlcheck.measure.run.texts import header_of, table_columns

RECORD = "run.json"
METRICS = "metrics.jsonl"
LOCK = "run.lock"
_DEEPEST = 5
_MOST_FILES = 50_000
_MOST_SNIFFED = 300
_STATE = "trainer_state.json"
_LINES = re.compile(r"\.(?:jsonl|ndjson|csv)(?:\.gz)?$")
_SAMPLES = re.compile(r"(?:step_)?\d+\.jsonl(?:\.gz)?")
_RANK = re.compile(r"(?:^|[._/-])(?:metrics_?)?rank[_-]?(\d+)(?=[._/-])")
_CHECKPOINT = re.compile(r"(?:checkpoint-|global_step_|iter_|step_)\d+")
_DATED = re.compile(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.+")
_LEFT_OUT = frozenset((".git", "__pycache__", "node_modules", "site-packages", "ray", "artifacts"))
# Directories in which a run's files lie, and that do not name the run.
_WITHIN_A_RUN = frozenset(
    ("tensorboard", "tensorboard_log", "tb", "tb_logs", "logs", "log", "metrics", "events", "runs")
)
_TEXTS = frozenset(("prompt", "response", "input", "output", "completion", "messages", "text", "question", "answer"))


@dataclass
class Sources:
    """The files of one run below `root`. `ranks`: metrics that each rank wrote, by rank. `samples`: a directory."""

    root: Path
    lines: list[Path] = field(default_factory=list[Path])
    ranks: dict[int, Path] = field(default_factory=dict[int, Path])
    events: list[Path] = field(default_factory=list[Path])
    state: Path | None = None
    samples: Path | None = None
    record: Path | None = None
    notes: list[str] = field(default_factory=list[str])

    def metrics(self) -> list[Path]:
        """All files of metrics."""
        return [*self.lines, *self.ranks.values(), *self.events, *([self.state] if self.state else [])]

    def written(self) -> float:
        """When metrics were written last, seconds since 1970; 0 if no file can be looked at."""
        return max((_mtime(path) for path in self.metrics()), default=0.0)


def locate(path: Path) -> Sources:
    """The run at PATH: a directory, a file of JSON lines, an event file of TensorBoard or a `trainer_state.json`.

    Of several runs below a directory it is the one that was written last.

    Raises:
        CurveError: there is no metric.
    """
    if path.is_dir():
        return _own(path) or _newest(path)
    if not path.is_file():
        what = "neither a directory nor a plain file" if path.exists() else "no such file or directory"
        raise CurveError(f"{path}: {what}; give the directory of a run, or its metrics")
    if path.name == METRICS and (path.parent / RECORD).exists():
        return _own(path.parent) or Sources(path.parent, lines=[path])
    if "tfevents" in path.name:
        return Sources(path.parent, events=[path])
    if path.suffix in (".json", ".parquet"):
        return Sources(path.parent, state=path)
    return Sources(path.parent, lines=[path])


def _own(path: Path) -> Sources | None:
    """A run directory of rltrain, which may have no metrics yet."""
    metrics = path / METRICS
    if not (path / RECORD).is_file() or not (metrics.is_file() or (path / LOCK).exists()):
        return None
    found = Sources(path, lines=[metrics] if metrics.is_file() else [], record=path / RECORD)
    found.ranks = _ranks(path, (file for file in _walk(path) if _LINES.search(file.name)))
    found.samples = path / "samples" if (path / "samples").is_dir() else None
    return found


def _newest(root: Path) -> Sources:
    runs: dict[Path, Sources] = {}
    dumps: set[Path] = set()
    names: dict[Path, frozenset[str]] = {}
    for file in _walk(root):
        if not _of_interest(file.name) or not file.is_file():
            continue
        run = _run_of(file, root)
        if "tfevents" in file.name:
            runs.setdefault(run, Sources(run)).events.append(file)
        elif file.name == _STATE:
            _take_state(runs.setdefault(run, Sources(run)), file)
        elif _SAMPLES.fullmatch(file.name):
            dumps.add(file.parent)
        elif _LINES.search(file.name) and len(names) < _MOST_SNIFFED:
            names[file] = _names(file)
            if names[file]:
                runs.setdefault(run, Sources(run)).lines.append(file)
    _join_pair(runs, names)
    if not runs:
        raise CurveError(
            f"{root} holds no metrics: no JSON lines with a step, no table (CSV) of W&B, no TensorBoard event file, "
            f"no {_STATE}; give the directory that a run writes them to, or the log of verl's console itself"
        )
    chosen = max(runs.values(), key=Sources.written)
    if len(runs) > 1:
        chosen.notes.append(f"{root} holds {len(runs)} runs; {_named(chosen.root, root)}, written last, was read")
    _split_lines(chosen, names)
    chosen.samples = _dump(root, chosen.root, dumps)
    return chosen


def _join_pair(runs: dict[Path, Sources], names: dict[Path, frozenset[str]]) -> None:
    """Make one of two runs if one is in the other and they have other metrics: a trainer's and its orchestrator's."""
    if len(runs) != 2:
        return
    outer, inner = (runs[place] for place in sorted(runs, key=lambda place: len(place.parts)))
    metrics = [frozenset[str]().union(*(names[file] for file in one.lines)) for one in (outer, inner)]
    if all(metrics) and metrics[0].isdisjoint(metrics[1]) and inner.root.is_relative_to(outer.root):
        outer.lines += inner.lines
        del runs[inner.root]


def _of_interest(name: str) -> bool:
    return "tfevents" in name or name == _STATE or bool(_LINES.search(name))


def _take_state(run: Sources, file: Path) -> None:
    """Keep the newest state of a run's checkpoints."""
    if run.state is None or _mtime(file) > _mtime(run.state):
        run.state = file


def _split_lines(run: Sources, names: dict[Path, frozenset[str]]) -> None:
    """Of several files of lines in one directory: those of ranks, and the newest with those of other metrics."""
    run.ranks = _ranks(run.root, run.lines)
    ranks = set(run.ranks.values())
    files = sorted((file for file in run.lines if file not in ranks), key=_mtime, reverse=True)
    run.lines = []
    taken: set[str] = set()
    for file in files:
        if taken.isdisjoint(names[file]):
            run.lines.append(file)
            taken |= names[file]
    if len(run.lines) < len(files):
        read = ", ".join(file.name for file in run.lines)
        run.notes.append(
            f"{run.root} holds {len(files)} files of metrics, some of the same; written last, and read: {read}"
        )


def _ranks(root: Path, files: Iterable[Path]) -> dict[int, Path]:
    """The files of metrics that ranks wrote, by rank; none unless there are two."""
    found: dict[int, Path] = {}
    for file in files:
        match = _RANK.search(file.relative_to(root).as_posix())
        if match and _names(file):
            found.setdefault(int(match[1]), file)
    return dict(sorted(found.items())) if len(found) > 1 else {}


def _run_of(file: Path, root: Path) -> Path:
    """The directory that stands for the run that FILE belongs to."""
    place = file.parent
    if _RANK.search(f"{place.name}/") and place != root:
        place = place.parent
    if _DATED.fullmatch(place.name) and place.parent.name == "runs" and _has_checkpoints(place.parent.parent):
        place = place.parent
    while place != root and (place.name in _WITHIN_A_RUN or _CHECKPOINT.fullmatch(place.name)):
        place = place.parent
    return place


def _has_checkpoints(place: Path) -> bool:
    return (place / _STATE).exists() or any(place.glob("checkpoint-*"))


def _dump(root: Path, run: Path, dumps: set[Path]) -> Path | None:
    """The directory of samples that belongs to RUN: below it, or the only one there; rather of training."""
    near = sorted(place for place in dumps if place.is_relative_to(run)) or sorted(dumps)
    good = [place for place in near if "val" not in place.relative_to(root).as_posix().lower()] or near
    return good[0] if good else None


def _walk(root: Path) -> Iterator[Path]:
    """Files below ROOT; of checkpoints only what the trainer noted there."""
    return islice(_files(root), _MOST_FILES)


def _files(root: Path) -> Iterator[Path]:
    for place, directories, files in os.walk(root):
        here = Path(place)
        depth = len(here.relative_to(root).parts)
        if _CHECKPOINT.fullmatch(here.name) and here != root:
            directories.clear()
            files = [name for name in files if name == _STATE]
        kept = [] if depth >= _DEEPEST else sorted(name for name in directories if name not in _LEFT_OUT)
        directories[:] = kept
        yield from (here / name for name in sorted(files))


def _names(file: Path) -> frozenset[str]:
    """The metrics that the first line of FILE names; none if it has no step, or has prompts and answers."""
    try:
        line = next((line for line in each_line(file) if line.strip()), b"")
    except (OSError, EOFError, CurveError):
        return frozenset()
    if is_table(file):
        return frozenset(name for _, name in table_columns(header_of(line)).values())
    record: dict[str, Any] = parsed(line) or {}
    inner = record.get("data", record.get("metrics"))
    names = record | cast("dict[str, Any]", inner) if isinstance(inner, dict) else record
    if not any(name in record for name in STEP_NAMES) or any(name in _TEXTS for name in names):
        return frozenset()
    numbers = {name for name, value in names.items() if isinstance(value, int | float | dict)}
    return frozenset(numbers - {*STEP_NAMES, "data", "metrics", "epoch", "time", "timestamp", "_timestamp", "_runtime"})


def _named(place: Path, root: Path) -> str:
    return place.relative_to(root).as_posix() if place != root else "the one in it"


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
