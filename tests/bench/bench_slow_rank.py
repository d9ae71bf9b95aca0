"""Is the slow rank named, whichever and whenever it is? One run of two ranks; the fault moves between steps.

    python -m tests.bench.bench_slow_rank [--num 20] [--steps 8] [--percent 50] [--seed 0] [--record FILE] [--dir DIR]

Trains the toy with transformers as the engine. NUM windows of STEPS steps have a rank whose work takes PERCENT longer:
its process is stopped (SIGSTOP) in between, as a device that throttles is. As many are healthy. Rank,
order, and the pause before a window are drawn. Each window's lines of `clock.jsonl` are then judged alone, as
`rlcheck slow` does. Prints a line a window; exits with 1 when a slow rank was not named, or a healthy one was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rlcheck.facts.slow import RankTimes
from rlcheck.measure.slow.answer import slow_rank
from rlcheck.measure.slow.clock import read_clock

_PERIOD_S = 0.001
_STEP_DEADLINE_S = 400.0
_PID = re.compile(r"process (\d+),")


class Slowed:
    """A process whose work takes PERCENT longer: for each second of work it stands still for a part of one."""

    def __init__(self, pid: int, percent: float) -> None:
        self._pid, self._share, self._done = pid, percent / 100, Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.stopped_s = 0.0

    def __enter__(self) -> Slowed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        worked, owed = self._worked_s(), 0.0
        try:
            while not self._done.is_set():
                time.sleep(_PERIOD_S)
                now = self._worked_s()
                worked, owed = now, owed + self._share * (now - worked)
                if owed > 0:
                    os.kill(self._pid, signal.SIGSTOP)
                    begun = time.monotonic()
                    time.sleep(owed)
                    os.kill(self._pid, signal.SIGCONT)
                    # A busy machine wakes this thread late: what was too much now is less later.
                    owed -= (stopped := time.monotonic() - begun)
                    self.stopped_s += stopped
        except (ProcessLookupError, FileNotFoundError):
            pass

    def _worked_s(self) -> float:
        """Processor time of the thread that all calls run in."""
        return int(Path(f"/proc/{self._pid}/task/{self._pid}/schedstat").read_text().split()[0]) / 1e9


def steps_in(clock: Path) -> list[str]:
    """The whole lines of CLOCK."""
    return (
        [line for line in clock.read_text().splitlines(keepends=True) if line.endswith("\n")] if clock.exists() else []
    )


def wait_for(clock: Path, number: int, run: subprocess.Popen[Any]) -> None:
    """Wait until CLOCK has NUMBER lines."""
    deadline = time.monotonic() + _STEP_DEADLINE_S
    while len(steps_in(clock)) < number:
        if run.poll() is not None:
            raise SystemExit(f"the run ended with {run.returncode} before line {number} of {clock}")
        if time.monotonic() > deadline:
            raise SystemExit(f"no line {number} in {clock} after {_STEP_DEADLINE_S:.0f} s")
        time.sleep(0.05)


def pids_of(run: Path) -> list[int]:
    """The processes of both training ranks of RUN, by their logs."""
    heads = [(run / f"logs/train-{rank}.log").read_text() for rank in (0, 1)]
    return [int(match[1]) for head in heads if (match := _PID.search(head)) is not None]


def judged(lines: list[str], folder: Path) -> tuple[int | None, RankTimes]:
    """Which rank LINES of a clock show to be slow to `rlcheck slow` (SLO007), and the ranks' times over all calls."""
    file = folder / "window.jsonl"
    file.write_text("".join(lines))
    ranks = read_clock(file, warm=True).ranks
    whole = next(one for one in ranks if one.phase == "all phases")
    accused = [(one, rank) for one in ranks if (rank := slow_rank(one)) is not None]
    return (max(accused, key=lambda item: item[0].own[item[1]])[1] if accused else None), whole


def watch(folder: Path, run: subprocess.Popen[Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """All windows, one after the other."""
    draw, clock = random.Random(options.seed), folder / "run/clock.jsonl"
    wait_for(clock, 6, run)
    pids = pids_of(folder / "run")
    windows: list[int | None] = [None] * options.num
    windows += [draw.randrange(2) for _ in range(options.num)]
    draw.shuffle(windows)
    found: list[dict[str, Any]] = []
    for victim in windows:
        time.sleep(draw.uniform(0, 1.0))
        begin = len(steps_in(clock)) + 1  # the step that is under way is neither healthy nor slow
        if victim is None:
            wait_for(clock, begin + options.steps, run)
        else:
            with Slowed(pids[victim], options.percent):
                wait_for(clock, begin + options.steps, run)
        named, times = judged(steps_in(clock)[begin : begin + options.steps], folder)
        found.append(
            {
                "slow": victim,
                "named": named,
                "own_s": [round(one, 4) for one in times.own],
                "pace": [round(one, 3) for one in times.pace],
                "slower": [round(one, 2) for one in times.slower],
                "step": begin,
            }
        )
        print(found[-1], "" if named == victim else "WRONG", flush=True)
    return found


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--percent", type=float, default=50.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--dir", type=Path, help="an empty folder for the run, which is then kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = (options.dir or Path(name)).absolute()
        words = ("trainer.total_training_steps=100000", "actor_rollout_ref.rollout.name=hf", "trainer.save_freq=-1",
                 "trainer.test_freq=-1", f"trainer.default_local_dir={folder}/run")  # fmt: skip
        with (folder / "log").open("w") as log:
            run = subprocess.Popen([sys.executable, "-m", "rltrain", "run", "toy-ppo", *words], stdout=log, stderr=log)
        try:
            found = watch(folder, run, options)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(120)
    right = [one for one in found if one["named"] == one["slow"]]
    slow = sum(one["slow"] is not None for one in right)
    healthy = len(right) - slow
    said = f"{slow} of {options.num} slow ranks named, {options.num - healthy} of {options.num} healthy windows accused"
    print(said)
    if options.record:
        lines = [json.dumps({"date": time.strftime("%Y-%m-%d"), "said": said, "percent": options.percent,
                             "steps": options.steps, "seed": options.seed}), *map(json.dumps, found)]  # fmt: skip
        options.record.write_text("\n".join(lines) + "\n")
    return len(right) != len(found)


if __name__ == "__main__":
    sys.exit(main())
