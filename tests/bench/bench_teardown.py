"""Short runs one after the other on a busy machine: each must end with exit code 0 and leave nothing behind.

    python tests/bench/bench_teardown.py [--runs 50] [--load 2] [--ranks 2] [--engine hf] [--signal HOW] [--place DIR]

Each is a whole `rltrain run` of one step: a Ray of its own, FSDP2 ranks that meet over gloo, and an engine. Beside them
LOAD processes keep a core busy each. The table has one line a run: exit code, seconds in all, seconds from the last
step until all is gone, what was left behind (processes, shared memory, Ray's session directory), and what the
run had to kill itself. The exit code is 1 if any run was not clean.

With --signal the runs have no end of their own: at a random moment (generating, learning, saving, between them) SIGTERM
goes to the `controller`, to it and then to its `group` (as `timeout` does), or to `every` process (as Slurm and systemd
do). A run is clean if it ends with exit code 130, has killed nothing, and the last finished step is saved.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rltrain.cli.run import INTERRUPTED
from rltrain.records.checkpoints import finished
from tests.trainer.failures.scene import PATIENCE_S, Watched, arguments

ONE_STEP = ("trainer.total_training_steps=1", "trainer.val_before_train=false")
ENDLESS = ("trainer.total_training_steps=100000", "trainer.val_before_train=false", "trainer.save_freq=3")
LAST_STEP = "step 1/1"
MOMENT_S = 4.0
"""The signal comes within so many seconds after the first step."""
BUSY = "while True: pass"
KILLED = "had to kill process"


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    code: int
    wall_s: float
    end_s: float
    left: str
    killed: int
    lost: str = ""
    """Which finished step is not saved, after a signal."""
    expected: int = 0

    @property
    def is_clean(self) -> bool:
        return self.code == self.expected and not self.left and not self.lost and not (self.expected and self.killed)

    def line(self, number: int) -> str:
        left = (self.left or "nothing") + self.lost
        return f"{number:4} {self.code:5} {self.wall_s:8.1f} {self.end_s:8.1f} {self.killed:7}  {left}"


@contextmanager
def load(number: int) -> Iterator[None]:
    """NUMBER busy loops beside the block."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def once(directory: Path, values: tuple[str, ...], how: str) -> Outcome:
    """One run into DIRECTORY, ended by a signal as HOW says, or ("none") by itself."""
    begin = time.monotonic()
    run = Watched(directory, *arguments(directory, *(ONE_STEP if how == "none" else ENDLESS), *values))
    if how == "none":
        while not run.said(LAST_STEP) and not run.ended:
            time.sleep(0.05)
    else:
        run.wait_for_step(1, PATIENCE_S)
        time.sleep(random.uniform(0, MOMENT_S))
        signal_run(run, how)
    trained = time.monotonic()
    try:
        done = run.finish()
    except AssertionError as error:
        return Outcome(-1, time.monotonic() - begin, time.monotonic() - trained, str(error).splitlines()[0][:200], 0)
    end_s, killed = done.wall_s - (trained - begin), done.out.count(KILLED)
    if how == "none":
        return Outcome(done.code, done.wall_s, end_s, "", killed)
    last, saved = done.steps[-1]["step"], finished(directory / "checkpoints")
    lost = "" if saved and saved[-1].step == last else f"; step {last} is not saved"
    return Outcome(done.code, done.wall_s, end_s, "", killed, lost, INTERRUPTED)


def signal_run(run: Watched, how: str) -> None:
    """SIGTERM, as HOW says."""
    if how == "every":
        run.terminate_all()
        return
    run.terminate()
    if how == "group":
        os.killpg(run.pid, signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--load", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--engine", default="hf")
    parser.add_argument("--signal", choices=("none", "controller", "group", "every"), default="none")
    parser.add_argument("--place", type=Path, default=None)
    options = parser.parse_args()
    place = options.place or Path(tempfile.mkdtemp(prefix="teardown-"))
    place.mkdir(parents=True, exist_ok=True)
    values = (f"trainer.num_cpu_ranks={options.ranks}", f"actor_rollout_ref.rollout.name={options.engine}")
    print(f"{options.runs} runs, {options.ranks} ranks, engine {options.engine}, {options.load} busy loops, "
          f"signal {options.signal}; {place}")  # fmt: skip
    print(f"{'run':>4} {'code':>5} {'seconds':>8} {'to end':>8} {'killed':>7}  left behind")
    outcomes: list[Outcome] = []
    with load(options.load):
        for number in range(1, options.runs + 1):
            outcomes.append(once(place / f"run-{number}", values, options.signal))
            print(outcomes[-1].line(number), flush=True)
    clean = sum(outcome.is_clean for outcome in outcomes)
    wall, ends = [outcome.wall_s for outcome in outcomes], [outcome.end_s for outcome in outcomes]
    print(f"{clean} of {len(outcomes)} were clean and left nothing; median {statistics.median(wall):.1f} s")
    print(f"from {'the last step' if options.signal == 'none' else 'the signal'} to the end: median "
          f"{statistics.median(ends):.1f} s, at most {max(ends):.1f} s")  # fmt: skip
    return 0 if clean == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
