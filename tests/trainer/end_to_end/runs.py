"""`rltrain` in a process of its own, as a user starts it, and what it left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrain.records.run_dir import read_steps
from tests.conftest import base_environ

COMMAND = (sys.executable, "-m", "rltrain")
Record = dict[str, Any]

SMALL = (
    "data.train_batch_size=64",
    "data.val_max_samples=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "trainer.logger=[console]",
)
"""toy-ppo at an eighth of its batch, for runs of which only the mechanics matter. Still four optimizer steps a step."""

UNREPEATABLE = ("timing_s/", "timing_per_token_ms/", "perf/")
"""Metrics that differ between two equal runs: time, speed, memory."""


@dataclass(frozen=True)
class Run:
    """One ended command, and its run directory."""

    directory: Path
    code: int
    out: str
    err: str
    wall_s: float

    @property
    def steps(self) -> list[Record]:
        """`metrics.jsonl`."""
        return read_steps(self.directory / "metrics.jsonl")

    @property
    def record(self) -> Record:
        """`run.json`."""
        return json.loads((self.directory / "run.json").read_text(encoding="utf-8"))

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of STEP lies."""
        return self.directory / "checkpoints" / f"global_step_{step}"

    def succeeded(self) -> Run:
        """This run, unless it failed."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


class Started:
    """A command under way; `finish` waits for it. It heads a process group, so that it can be ended whole."""

    def __init__(self, directory: Path, *arguments: str | Path, program: Sequence[str] = COMMAND) -> None:
        self.directory = directory
        self._begin = time.monotonic()
        self._out = directory.with_name(f"{directory.name}.out").open("w+")
        self._err = directory.with_name(f"{directory.name}.err").open("w+")
        self._process = subprocess.Popen(
            [*program, *map(str, arguments)],
            env=environ(),
            cwd=directory.parent,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self._process.pid

    def wait_for_step(self, step: int, timeout_s: float) -> None:
        """Wait until STEP is in `metrics.jsonl`."""
        deadline = time.monotonic() + timeout_s
        while not any(record["step"] == step for record in read_steps(self.directory / "metrics.jsonl")):
            assert self._process.poll() is None, f"ended before step {step}: {self._texts()}"
            assert time.monotonic() < deadline, f"no step {step} within {timeout_s:g} s: {self._texts()}"
            time.sleep(0.01)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def finish(self, timeout_s: float) -> Run:
        """How it ended."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)
            time.sleep(10)
            os.killpg(self._process.pid, signal.SIGKILL)
            raise AssertionError(f"not done after {timeout_s:g} s: {self._texts()}") from None
        out, err = self._texts()
        assert "Traceback" not in out + err, err
        return Run(self.directory, code, out, err, time.monotonic() - self._begin)

    def _texts(self) -> tuple[str, str]:
        return Path(self._out.name).read_text(), Path(self._err.name).read_text()


def rltrain(directory: Path, *arguments: str | Path, timeout_s: float = 600, program: Sequence[str] = COMMAND) -> Run:
    """Run the command to its end. DIRECTORY: of the run; it is told where `arguments` name a recipe or a file."""
    return Started(directory, *arguments, program=program).finish(timeout_s)


def anew(directory: Path) -> Path:
    """DIRECTORY without what an earlier try of the same test left: its steps are not this one's."""
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def training(directory: Path, recipe: str, *values: str) -> tuple[str, ...]:
    """Arguments of `rltrain run RECIPE` into DIRECTORY."""
    return ("run", recipe, f"trainer.default_local_dir={directory}", *values)


def environ() -> dict[str, str]:
    """Nothing of the caller's but the paths; no network."""
    return base_environ({"HF_HUB_OFFLINE": "1"})


def repeatable(record: Mapping[str, Any]) -> Record:
    """RECORD without what may differ between two equal runs."""
    return {name: value for name, value in record.items() if not name.startswith(UNREPEATABLE)}


def column(steps: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Metric NAME over the steps that have it."""
    return [record[name] for record in steps if name in record]
