"""All files of a run that say something of its time: found, read, and put beside floors."""

from __future__ import annotations

import gzip
import os
import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.run import RunFacts
from rlcheck.facts.slow import EngineUse, RankTimes, SlowFacts, TraceUse
from rlcheck.measure.config.mounts import hangs
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.trees import unflatten
from rlcheck.measure.memory.gpus import GpuError, by_name
from rlcheck.measure.run.read import CurveError, read_training
from rlcheck.measure.run.stages import BESIDE
from rlcheck.measure.slow import clock, scrapes, stages, traces
from rlcheck.measure.slow.clock import Clock
from rlcheck.measure.slow.floors import Floor, floors
from rlcheck.measure.slow.limits import limit, speed_of

_HEAD = 1 << 16
_MOST_FILES = 50_000
_MOST_OF_A_KIND = 128
_MOST_S = 120.0
"""A folder of a terabyte, or on a slow file server."""
_DEEPEST = 6
_NAMED = re.compile(r"\.(?:json|json\.gz|prom|txt|metrics)$", re.IGNORECASE)
_LEFT_OUT = frozenset((".git", "__pycache__", "node_modules", "site-packages", "artifacts"))


def look(
    given: Sequence[Path], *, config: str = "", gpu: str = "", model_shape: str = "",
    on: Callable[[str], None] = lambda _: None,
) -> SlowFacts:  # fmt: skip
    """What GIVEN say of a step's time: runs' folders, metrics, traces of torch's profiler, texts of `/metrics`.

    Args:
        given: as typed; one of them may be a run.
        config: the run's config, where the run holds none.
        gpu: for which floors are made; "": the one that traces name.
        model_shape: as for `read_run`.
        on: told what is read.

    Raises:
        UserError: a path is not there, its file server does not answer, the GPU is not known, or nothing can be read.
    """
    reading = _Reading(on)
    for path in given:
        reading.take(path)
    if reading.run is None and not reading.traces and not reading.engines:
        why = "; ".join(reading.unread[:3]) or "nothing in it says how long a step took"
        raise UserError(f"{given[0]}: {why}; give a run's folder, its metrics, a trace, or a text of /metrics")
    return reading.facts(config, gpu, model_shape)


class _Reading:
    """Reads files, and keeps what they say."""

    def __init__(self, on: Callable[[str], None]) -> None:
        self._on = on
        self.run: RunFacts | None = None
        self.traces: list[TraceUse] = []
        self.engines: list[EngineUse] = []
        self.unread: list[str] = []
        self._clock = Clock()

    def take(self, path: Path) -> None:
        """Read PATH."""
        path = path.expanduser()
        if hangs(path):
            raise UserError(f"{path}: its file server does not answer; try `ls {path}`")
        if path.is_dir():
            self._folder(path)
        elif path.is_file():
            if not self._file(path):
                self._training(path)
        else:
            what = "is neither a folder nor a plain file" if path.exists() else "there is no such file or folder"
            raise UserError(f"{path}: {what}; give a run's folder, its metrics, a trace, or a text of /metrics")

    def _folder(self, path: Path) -> None:
        begun = time.monotonic()
        for number, file in enumerate(_walk(path)):
            if number >= _MOST_FILES or time.monotonic() - begun > _MOST_S:
                took_s = time.monotonic() - begun
                self.unread.append(f"{path}: after {number} files in {took_s:.0f} s no more were looked at; name the "
                                   "traces and texts of /metrics yourself")  # fmt: skip
                break
            if _NAMED.search(file.name) and file.is_file():
                self._file(file)
        self._training(path)

    def _training(self, path: Path) -> None:
        if self.run is not None:
            self.unread.append(f"{path}: one run is read at a time; {self.run.source} was")
            return
        self._on(f"metrics of {path}")
        try:
            self.run = read_training(path)
        except CurveError as error:
            if not self.traces and not self.engines:
                self.unread.append(str(error))

        own = (path if path.is_dir() else path.parent) / clock.NAME
        if own.is_file():
            try:
                self._clock = clock.read_clock(own)
            except (OSError, CurveError) as error:
                self.unread.append(f"{own}: {error}")

    def _file(self, path: Path) -> bool:
        """Whether PATH is a trace or a text of `/metrics`; then it was read, as far as it can be."""
        head = _head(path)
        kind = "trace" if traces.is_trace(head) else "engine" if scrapes.is_scrape(head) else ""
        if not kind:
            return False
        self._on(str(path))
        found = self.traces if kind == "trace" else self.engines
        if len(found) >= _MOST_OF_A_KIND:
            if len(found) == _MOST_OF_A_KIND:
                self.unread.append(f"{path} and what follows: {_MOST_OF_A_KIND} files of a kind are read")
            return True
        try:
            if kind == "trace":
                trace, flaw = traces.read_trace(path)
                self.traces.append(trace)
                self.unread += [f"{path.name} {flaw}"] if flaw else []
            else:
                self.engines += scrapes.read_scrapes(path)
        except MemoryError:
            self.unread.append(f"{path}: too large for the memory here")
        except (OSError, ValueError) as error:
            self.unread.append(f"{path}: {getattr(error, 'strerror', None) or error}")
        return True

    def facts(self, config: str, gpu: str, model_shape: str) -> SlowFacts:
        """All of it, with floors."""
        run, asked = self.run, self._config(config, model_shape)
        device = gpu or next((one.device for one in self.traces if one.device), "")
        name, made, why = self._floors(asked, device, required=bool(gpu))
        ranks = (*_by_rank(self.traces), *self._clock.ranks, *(stages.rank_times(run) if run is not None else ()))
        if self._clock.floor_s > 0:
            made["gen"] = _nearer(Floor(self._clock.floor_s, self._clock.floor_why), made.get("gen"))
        read = [f"{one.source}: a trace of {one.steps or 'some'} steps" for one in self.traces]
        read += [f"{one.source}: {one.engine}, {one.scrapes} times" for one in self.engines]
        engines = (*self.engines, *self._clock.engines)
        facts = SlowFacts(traces=tuple(self.traces), engines=engines, ranks=ranks, device=name,
                          read=tuple(read), unread=tuple(self.unread))  # fmt: skip
        if run is None:
            return facts
        batch = stages.batch_of(run, asked)
        costs, step = stages.stage_costs(run, made), stages.step_seconds(run)
        counted = sum(one.seconds for one in costs if run.framework != "verl" or one.name not in BESIDE)
        unread = (*self.unread, *self._clock.notes, *run.notes, *([why] if why and costs else []),
                  *([] if costs else ["no timing_s/* in its metrics: stages of a step are not known"]))  # fmt: skip
        return msgspec.structs.replace(
            facts,
            source=run.source,
            framework=run.framework,
            steps=run.num_steps,
            step_s=step,
            # Where only some stages are timed, the rest of the step says nothing.
            other_s=max(0.0, step - counted) if {"gen", "update_actor"} <= {one.name for one in costs} else 0.0,
            stages=costs,
            gpus=tuple(self._clock.gpus),
            tail=self._clock.tail or stages.tail_in(run, batch, asked),
            read=(f"{run.source}: metrics of {run.num_steps} steps", *read),
            unread=unread,
        )

    def _config(self, config: str, model_shape: str) -> ConfigFacts | None:
        """The run's config: as given, or as the run has kept it. A given one that cannot be read is an error."""
        if config:
            return read_run(config, (), model_shape=model_shape)
        if self.run is None or not self.run.settings:
            return None
        framework = "rltrain" if self.run.framework == "rltrain" else "verl"
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "config.json"
            kept.write_bytes(msgspec.json.encode(unflatten(self.run.settings)))
            try:
                return read_run(str(kept), (), framework=framework, model_shape=model_shape)
            except UserError as error:
                self.unread.append(f"the run's own config: {str(error).replace(str(kept), 'it')}")
                return None

    def _floors(self, asked: ConfigFacts | None, device: str, *, required: bool) -> tuple[str, dict[str, Floor], str]:
        """The GPU's name, the floors, and why there are none."""
        if not device:
            return "", {}, "no floor: which GPU it ran on is not known; give --gpu H200"
        try:
            name = by_name(device).name
        except GpuError as error:
            if required:
                raise
            return "", {}, f"no floor: {error}"
        speed = speed_of(name)
        if speed is None:
            return "", {}, f"no floor: the speed of {name} is not known"
        batch = stages.batch_of(self.run, asked) if self.run is not None else None
        if asked is None:
            return name, {}, "no floor: the run has kept no config; give --config CONFIG"
        if batch is None or batch.requests <= 0:
            return name, {}, "no floor: the run does not log how long prompts and answers are"
        made = floors(asked, batch, name, speed)
        return name, made, "" if made else "no floor: the sizes of its model are not known; give --model-shape"


def _nearer(shown: Floor, counted: Floor | None) -> Floor:
    """What the engine has shown is nearer than what such a GPU could do, unless all of its passes are slow."""
    if counted is None or shown.seconds <= limit("stage_times") * counted.seconds:
        return shown
    return counted


def _by_rank(found: Sequence[TraceUse]) -> tuple[RankTimes, ...]:
    """Own times of ranks, by the trace of each; none unless each rank has one, of as many steps."""
    known = sorted((one for one in found if one.rank >= 0), key=lambda one: one.rank)
    if len({one.rank for one in known}) < 2 or len({one.rank for one in known}) != len(known):
        return ()
    if len({one.steps for one in known}) != 1 or [one.rank for one in known] != list(range(len(known))):
        return ()
    steps = max(1, known[0].steps)
    return (
        RankTimes(
            phase="step",
            own=tuple(one.own_s / steps for one in known),
            waited=tuple(one.exposed_s / steps for one in known),
            steps=steps,
            source="traces",
        ),
    )


def _head(path: Path) -> bytes:
    """The beginning of PATH, unpacked; empty where it cannot be read."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return b""


def _walk(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        deep = len(Path(place).relative_to(root).parts) >= _DEEPEST
        folders[:] = [] if deep else sorted(name for name in folders if name not in _LEFT_OUT)
        yield from (Path(place) / name for name in sorted(files))
