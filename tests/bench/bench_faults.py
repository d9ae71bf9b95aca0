"""Runs of the toy recipes with real mistakes in them, and whether `rlcheck run` names each mistake first.

    python tests/bench/bench_faults.py [--only NAME ...] [--skip-extra] [--subtle] [--dir DIR] [--judge-only] [--list]

Each fault is a run of 30 steps (a minute on two otherwise idle CPU cores); DIR keeps the runs, and one that is whole
is not made again. Exits with 1 if fewer than 90 % of the faults have the right finding first, or a healthy run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.faults.table import FAULTS, HEALTHY, SUBTLE, SUBTLE_HEALTHY, Fault  # noqa: E402

INJECT = Path(__file__).parent / "faults" / "inject"
RLTRAIN = (sys.executable, "-m", "rltrain")
STEPS = 30
BAR = 0.9
"""Least share of the faults whose first finding is right."""
LIMIT_S = 600.0
COMMON = (
    f"trainer.total_training_steps={STEPS}",
    # A cut recipe would otherwise end with steps of next to no size.
    "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
)
SAMPLES = ("trainer.log_samples_freq=1", "trainer.num_log_samples=32")
DONE = "bench.json"
WIDTHS = (26, 4, 26, 24, 3)


@dataclass(frozen=True)
class Verdict:
    """What the doctor said of one run: problems, the most urgent first, as (check, status)."""

    findings: tuple[tuple[str, str], ...]
    seconds: float

    def right(self, fault: Fault) -> bool:
        """Whether that is what should be said."""
        if fault.expected:
            return bool(self.findings) and self.findings[0][0] in fault.expected
        return all(status not in ("fail", "error") for _, status in self.findings)

    def words(self, count: int) -> str:
        """The first COUNT findings."""
        return " ".join(f"{check}:{status}" for check, status in self.findings[:count]) or "none"


class NoRun(Exception):
    """A run that shows nothing of its fault."""


def make(fault: Fault, directory: Path) -> float:
    """Run FAULT into DIRECTORY, unless it is there; seconds that it took.

    Raises:
        NoRun: it took no step, or was made without its mistake.
    """
    if (directory / DONE).exists():
        return float(json.loads((directory / DONE).read_text())["seconds"])
    shutil.rmtree(directory, ignore_errors=True)
    mark = directory.with_suffix(".mark")
    mark.unlink(missing_ok=True)
    values = [*COMMON, *(() if fault.plain else SAMPLES), *fault.overrides, f"trainer.default_local_dir={directory}"]
    environ = {**os.environ, "RLTRAIN_MISTAKE": fault.mistake, "RLTRAIN_MISTAKE_MARK": str(mark)}
    if fault.mistake:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INJECT), os.environ.get("PYTHONPATH"))))
    begin = time.monotonic()
    with directory.with_suffix(".out").open("w") as out:
        command = [*RLTRAIN, "run", fault.recipe, "--skip-checks", *values]
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=out, stderr=out, start_new_session=True)
        try:
            wait(process, fault.kill_at, directory / "metrics.jsonl")
        finally:
            end(process)
    seconds = time.monotonic() - begin
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)
    if not (directory / "metrics.jsonl").exists():
        raise NoRun(f"did not run, see {directory.with_suffix('.out')}")
    if fault.mistake and not mark.exists():
        raise NoRun(f"ran without its mistake, see {directory.with_suffix('.out')}")
    (directory / DONE).write_text(json.dumps({"seconds": round(seconds, 1), "code": process.returncode}))
    return seconds


def wait(process: subprocess.Popen[bytes], kill_at: int, metrics: Path) -> None:
    """Until PROCESS ends by itself, or METRICS hold step KILL_AT, where one is given, and it is killed."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        if kill_at and metrics.exists() and f'"step": {kill_at},' in metrics.read_text():
            process.kill()


def end(process: subprocess.Popen[bytes]) -> None:
    """A run that is to end in order, and is made to after a while."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def judge(directory: Path) -> Verdict:
    """What `rlcheck run` says of the run in DIRECTORY."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rlcheck", "run", str(directory), "--format", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - begin
    try:
        checks = json.loads(done.stdout)["checks"]
    except ValueError:
        return Verdict((((done.stderr.strip().splitlines() or ["no report"])[-1][:60], "error"),), seconds)
    found = tuple((c["id"], c["status"]) for c in checks if c["status"] in ("fail", "error", "warn"))
    return Verdict(found, seconds)


def show(cells: Sequence[str]) -> None:
    """Print CELLS in columns."""
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)


def main() -> int:
    """Run and judge everything; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names, as --list has them")
    parser.add_argument("--skip-extra", action="store_true", help="one run for each fault, no variants")
    parser.add_argument(
        "--subtle", action="store_true", help="the faults of tests/bench/faults/subtle.py in place of all"
    )
    parser.add_argument("--dir", type=Path, help="where the runs stay; default: a directory that is removed")
    parser.add_argument("--judge-only", action="store_true", help="take the runs that are in DIR, make none")
    parser.add_argument("--make-only", action="store_true", help="make the runs, judge none")
    parser.add_argument("--list", action="store_true", help="name the faults")
    options = parser.parse_args()
    known = (*SUBTLE, *SUBTLE_HEALTHY) if options.subtle else (*FAULTS, *HEALTHY)
    chosen = [fault for fault in known if not options.only or fault.name in options.only]
    chosen = [fault for fault in chosen if not (options.skip_extra and fault.extra)]
    if options.list:
        for fault in chosen:
            print(f"{fault.name:28}{' '.join(fault.expected) or 'healthy':24}{fault.recipe:10}{fault.why}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        place = (options.dir or Path(scratch)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        return bench(chosen, place, options.judge_only, options.make_only)


def bench(chosen: Sequence[Fault], place: Path, judge_only: bool, make_only: bool) -> int:
    """Make and judge the CHOSEN in PLACE; `RESULTS.txt` there holds the first three findings of each."""
    show(("run", "s", "first findings", "expected", "ok"))
    right: dict[bool, list[bool]] = {True: [], False: []}
    lines: list[str] = []
    for fault in chosen:
        directory = place / fault.name
        if judge_only and not (directory / DONE).exists():
            continue
        seconds = 0.0
        try:
            seconds = make(fault, directory)
            verdict = Verdict((), 0.0) if make_only else judge(directory)
        except NoRun as error:
            verdict = Verdict(((str(error), "error"),), 0.0)
        ok = "-" if make_only else "yes" if verdict.right(fault) else "NO"
        expected = " ".join(fault.expected) or "no fail"
        show((fault.name, f"{seconds:.0f}", verdict.words(2), expected, ok))
        lines.append(f"{ok:4}{fault.name:28}{verdict.words(3):44}expected {expected}")
        right[bool(fault.expected)].append(verdict.right(fault))
    if make_only:
        return 0
    (place / "RESULTS.txt").write_text("\n".join(lines) + "\n")
    faulty, healthy = right[True], right[False]
    print(
        f"faults: {sum(faulty)} of {len(faulty)} have the right finding first; healthy: {sum(healthy)} of "
        f"{len(healthy)} without a failed check"
    )
    return 0 if sum(faulty) >= BAR * len(faulty) and all(healthy) else 1


if __name__ == "__main__":
    sys.exit(main())
