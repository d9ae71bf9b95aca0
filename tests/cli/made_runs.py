"""Run directories as rltrain leaves them, and a process that writes one like a run that lives.

`python -m tests.cli.made_runs DIR MODE`: a run of 8 steps whose lock is held and whose workers dump their stacks on
SIGUSR2. MODE: finish; hang (after step 5); die (after step 5); alike (from step 1 on every answer earns the same).
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcheck.facts.run import Curve
from tests.checks.run.synthetic import SETTINGS, healthy_curves
from tests.conftest import ROOT, base_environ

STEPS = 8
PAUSE_S = 0.1
RANKS = 2
SAMPLE = {"step": 1, "uid": "0-1", "data_source": "toy/copy", "prompt": "copy 12", "response": "12",
          "ground_truth": "12", "reward": 1.0, "reward_parts": {"digits": 1.0}, "response_length": 3}  # fmt: skip


def rows_of(curves: Mapping[str, Curve]) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`."""
    rows: dict[int, dict[str, Any]] = {}
    for name, curve in curves.items():
        for step, value in zip(curve.steps, curve.values, strict=True):
            rows.setdefault(step, {"step": step})[name] = value
    return [rows[step] for step in sorted(rows)]


def write_run(
    directory: Path,
    curves: Mapping[str, Curve],
    samples: tuple[Mapping[str, Any], ...] = (SAMPLE,),
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """A finished run."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(curves)))
    (directory / "samples").mkdir(exist_ok=True)
    for step in {row["step"] for row in samples}:
        lines = [json.dumps(row) + "\n" for row in samples if row["step"] == step]
        (directory / "samples" / f"step_{step}.jsonl").write_text("".join(lines))
    last = max(curve.steps[-1] for curve in curves.values())
    _record(directory, {**SETTINGS, "trainer.total_training_steps": last, **(settings or {})}, outcome="finished")
    return directory


def constant_reward(curves: Mapping[str, Curve], value: float = 0.25) -> dict[str, Curve]:
    """The same run, in which every answer earns VALUE."""
    steps = curves["critic/score/mean"].steps
    flat = Curve(steps=steps, values=(value,) * len(steps))
    return {**curves, **dict.fromkeys(("critic/score/mean", "critic/score/max", "critic/score/min"), flat)}


@contextmanager
def living(directory: Path, mode: str) -> Generator[subprocess.Popen[bytes]]:
    """A run in a process of its own, for the time of the block."""
    environ = base_environ()
    command = [sys.executable, "-m", "tests.cli.made_runs", str(directory), mode]
    with subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=True) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _record(directory: Path, settings: Mapping[str, Any], **more: Any) -> None:
    config: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, name = key.split(".")
        place = config
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    fresh = directory / "run.new"
    fresh.write_text(json.dumps({"schema_version": 1, "config": config, **more}))
    fresh.replace(directory / "run.json")


def _live(directory: Path, mode: str) -> None:
    (directory / "logs").mkdir(parents=True)
    lock = os.open(directory / "run.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, f"{os.getpid()}\n".encode())
    settings = {**SETTINGS, "trainer.total_training_steps": STEPS}
    _record(directory, settings)
    for rank in range(RANKS):
        if not os.fork():
            os.close(lock)
            _work(directory / "logs" / f"train-{rank}.stacks")
    curves = healthy_curves(STEPS)
    with open(directory / "metrics.jsonl", "w") as file:
        for row in rows_of(constant_reward(curves) if mode == "alike" else curves):
            file.write(json.dumps({**row, "timing_s/step": PAUSE_S}) + "\n")
            file.flush()
            time.sleep(PAUSE_S)
            if row["step"] == 5 and mode == "hang":
                time.sleep(600)
            if row["step"] == 5 and mode == "die":
                os._exit(1)
    _record(directory, settings, outcome="finished")


def _work(stacks: Path) -> None:
    with stacks.open("a") as file:
        faulthandler.register(signal.SIGUSR2, file, all_threads=True)
        wait_in_all_reduce()


def wait_in_all_reduce() -> None:
    """Where a rank hangs."""
    time.sleep(600)


if __name__ == "__main__":
    _live(Path(sys.argv[1]), sys.argv[2])
