"""`rlcheck run RUN_DIR --watch`: follows a run, and ends with 1 as soon as something is wrong or nothing happens."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from rlcheck.cli.facts_files import document
from rlcheck.cli.front_door import Examination
from rlcheck.cli.requests.records import RunRequest
from rlcheck.cli.requests.report import Format
from rlcheck.cli.waiting import Waiting, clear_line
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.run import RunFacts
from rlcheck.finding import Action, Next, Report
from rlcheck.measure.run.read import read_training
from rlcheck.redact import redact, redact_bytes
from rlcheck.report.wording import SYMBOLS, ascii_wanted, clean, in_a_line, to_ascii
from rlcheck.stacks import absent, hindrance, members, stack

PROGRESS = "RUN050"
"""The check of progress: while a run is watched, `--stall-s` says how long a step may take."""
STILL_STEPS = 10
"""A run stands still when its next step takes so many times as long as its middle one."""
_LOOK_AGAIN_S = 15.0
"""That a process has died shows in no file: so often the run is read although nothing was written."""
_BUSY = 10.0
"""Of so many seconds at most one goes into reading a long run again."""
_MAX_FILES = 2000
_PASSED_OVER = ("checkpoints", "global_step_", "toy", "logs")


@dataclass
class Watch:
    """Follows one run.

    Args:
        request: what `rlcheck run` was asked; `stall_s` is how long a step may take, unless those of this run take
            long, `start_timeout_s` how long the first one: engines start, kernels are compiled.
        examination: the call of `rlcheck run`.
    """

    request: RunRequest
    examination: Examination
    _told: dict[str, str] = field(default_factory=dict[str, str])
    _run: RunFacts = field(default_factory=RunFacts)
    _moved: float = 0.0
    _waiting: Waiting = field(default_factory=Waiting)

    def follow(self) -> int:
        """Watch until the run ends, fails or stands still; returns the exit code.

        Raises:
            UserError: no run appears, or it cannot be read.
        """
        begun = time.monotonic()
        self._note(f"watching {self.request.target}: until it ends, the first check fails, or no step comes for "
                   f"{self.request.stall_s:.0f} s and {STILL_STEPS} times as long as steps take")  # fmt: skip
        with self._waiting:
            report = self._followed(begun)
        return self.examination.end(report, (document(run=known(self._run)),))

    def _followed(self, begun: float) -> Report:
        """The last report, with the exit code."""
        looks = self._looks(begun)
        while True:
            report = next(looks)
            last = self._ending(report)
            if last is not None:
                return last
            if self.request.report.timeout_s is not None and time.monotonic() - begun >= self.request.report.timeout_s:
                self._note(f"--timeout: watched for {self.request.report.timeout_s:.0f} s, and the run has not ended")
                return report

    def _looks(self, begun: float) -> Iterator[Report]:
        """The report as of now, each `--interval`; the run is read again only when there is reason to."""
        report = self._appeared(begun)
        stamp, read_at = _stamp(Path(self.request.target)), time.monotonic()
        cost = 0.0
        while True:
            yield report
            self._waiting.on(*self._awaited())
            time.sleep(self.request.interval_s)
            since = time.monotonic() - read_at
            fresh = _stamp(Path(self.request.target))
            if since >= _BUSY * cost and (fresh != stamp or since >= _LOOK_AGAIN_S):
                stamp, read_at = fresh, time.monotonic()
                # A run that resumes writes its files again: for a moment they cannot be read.
                with suppress(UserError):
                    report = self._look()
                cost = time.monotonic() - read_at

    def _appeared(self, begun: float) -> Report:
        """The first report of a run that may not be there yet.

        Raises:
            UserError: there is none after the time that a first step may take.
        """
        limit_s = min(self.request.start_timeout_s, self.request.report.timeout_s or self.request.start_timeout_s)
        while True:
            try:
                return self._look()
            except UserError as error:
                left_s = begun + limit_s - time.monotonic()
                if left_s <= 0:
                    if members(self._directory()):
                        self._tell_stacks()
                    raise
                if not self._waiting.what:
                    self._note(f"{error}; waiting for it, {limit_s:.0f} s at most")
                self._waiting.on(f"the first metrics at {self.request.target}")
                time.sleep(min(self.request.interval_s, left_s))

    def _look(self) -> Report:
        """Read and judge the run; what was not told yet is."""
        run = read_training(Path(self.request.target))
        if run.last_step != self._run.last_step or not self._moved:
            self._moved = time.monotonic() - (run.idle_s.value or 0.0)
        self._run = run
        look = msgspec.structs.replace(self.examination, started=time.perf_counter())
        report = redact(look.judge((document(run=known(run)),)), Report, os.environ)
        self._tell_news(report)
        return report

    def _tell_news(self, report: Report) -> None:
        """Write a line for each finding that is new, and for each that is gone."""
        told = [f for f in report.checks if f.is_problem and f.status in ("fail", "warn") and f.id != PROGRESS]
        open_now = {finding.id: finding for finding in told}
        for id, finding in open_now.items():
            if self._told.get(id) != finding.status:
                self._tell(SYMBOLS[finding.status], in_a_line(finding))
        for id in set(self._told) - set(open_now):
            self._tell(SYMBOLS["pass"], f"{id} is well again")
        self._told = {id: finding.status for id, finding in open_now.items()}

    def _ending(self, report: Report) -> Report | None:
        """The last report, if this is the end."""
        run = self._run
        counted = ("fail", "warn") if report.strict else ("fail",)
        bad = [f for f in report.checks if f.is_problem and f.status in counted and f.id != PROGRESS]
        if bad:
            return self._alarm(report, f"{bad[0].id} at step {run.last_step}: no more is watched")
        if run.outcome == "finished" or (not run.outcome and 0 < run.total_steps <= run.last_step):
            self._note(f"finished at step {run.last_step}")
            return report
        if run.outcome in ("failed", "interrupted", "dead"):
            words = "its process is gone" if run.outcome == "dead" else run.outcome
            action = "fix" if run.outcome == "failed" else "restart"
            return self._alarm(report, f"{words} at step {run.last_step}{': ' if run.error else ''}{run.error}", action)
        if time.monotonic() - self._moved > self._limit_s():
            report = self._look()  # what it has written in the meantime counts
            still_s = time.monotonic() - self._moved
            if still_s > self._limit_s():
                words = "" if run.outcome else "; nothing says whether the run has ended"
                line = f"stands still: no step after step {run.last_step} for {still_s:.0f} s{words}"
                report = self._alarm(report, line, "restart")
                self._tell_stacks()
                return report
        return None

    def _limit_s(self) -> float:
        """How long the next step may take."""
        if not self._run.num_steps:
            return self.request.start_timeout_s
        return max(self.request.stall_s, STILL_STEPS * self._step_s())

    def _step_s(self) -> float:
        """How long a step takes, 0 where the run does not say."""
        curves = (self._run.curves.get(name) for name in ("timing_s/step", "perf/time_per_step"))
        times = next((curve.values[-20:] for curve in curves if curve is not None and curve.values), (0.0,))
        return median(times)

    def _awaited(self) -> tuple[str, ...]:
        run = self._run
        of = f" of {run.total_steps}" if run.total_steps else ""
        still_s = time.monotonic() - self._moved
        return (f"step {run.last_step + 1}{of} ({still_s:.0f} s since the last, at most {self._limit_s():.0f})",)

    def _alarm(self, report: Report, line: str, action: Action | None = None) -> Report:
        """Say it, ring the terminal's bell; returns the report with exit code 1 and ACTION (None: its findings')."""
        self._note(line)
        if sys.stderr.isatty():
            sys.stderr.write("\a")
        after = report.next if action is None or report.summary.fail else Next(action, why=line)
        return msgspec.structs.replace(report, exit_code=1, notes=(*report.notes, line), next=after)

    def _tell_stacks(self) -> None:
        """Where every rank is."""
        self._waiting.on()
        directory = self._directory()
        found = members(directory)
        if not found:
            self._write(f"no process of {directory} was found on this machine; look where it was started")
        for member in found:
            state = f", {words}" if (words := hindrance(member)) else ""
            text = f"\n== {member.name} (process {member.pid}{state})\n{stack(member)}"
            # A command line is in it, and may hold a key.
            self._write(redact_bytes(text.encode(errors="replace"), os.environ).decode())
        if elsewhere := absent(directory, found):
            self._write(f"\nnot on this machine, or gone: {', '.join(elsewhere)}")
        with suppress(OSError):
            if (directory / "logs" / "stall.txt").stat().st_size:
                self._write(f"\nthe run's own watchdog wrote {directory / 'logs' / 'stall.txt'}")
        self._write("")

    def _directory(self) -> Path:
        target = Path(self.request.target)
        return target.parent if target.is_file() else target

    def _tell(self, symbol: str, text: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S')} step {self._run.last_step} {symbol} {text}")

    def _write(self, text: str) -> None:
        """Lines of the report; where programs read that, they go where progress goes."""
        asked = self.examination.request
        out = sys.stdout if asked.format is Format.TEXT and asked.output is None else sys.stderr
        plain = asked.ascii_only or ascii_wanted(out)
        clear_line()
        for line in text.split("\n"):
            out.write((to_ascii(clean(line)) if plain else clean(line)) + "\n")
        out.flush()

    def _note(self, text: str) -> None:
        clear_line()
        line = f"rlcheck: {clean(text)}"
        wide = sys.stderr.isatty() and shutil.get_terminal_size().columns
        lines = textwrap.wrap(line, max(40, wide), subsequent_indent="  ", break_long_words=False) if wide else [line]
        sys.stderr.write("\n".join(lines) + "\n")


def _stamp(target: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files that a run grows: it has written nothing while they stay."""
    found: list[tuple[str, int, int]] = []
    for path in [target, *_below(target, 2)]:
        with suppress(OSError):
            about = path.stat()
            found.append((str(path), about.st_size if path.is_file() else 0, about.st_mtime_ns))
        if len(found) >= _MAX_FILES:
            break
    return tuple(sorted(found))


def _below(directory: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):
        for path in directory.iterdir():
            if not path.name.startswith(_PASSED_OVER):
                yield path
                if depth and path.is_dir():
                    yield from _below(path, depth - 1)
