"""Runs that are broken from outside, and what is left of them: processes, shared memory, Ray's session, half files."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.trainer.end_to_end.runs import COMMAND, Run, Started

SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 300.0
"""For a start or an end on a busy machine."""
VANISH_S = 15.0
"""How long what a run has started may outlive it."""
TINY = (
    "actor_rollout_ref.rollout.name=hf",
    "trainer.num_cpu_ranks=1",
    "trainer.save_freq=1",
    "trainer.val_before_train=false",
    "trainer.total_training_steps=4",
    "trainer.logger=[console]",
    "trainer.resume_mode=auto",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "toy.num_train=64",
    "toy.num_val=8",
)
"""toy-ppo with steps of a fraction of a second and a checkpoint after each: one training rank, and the `hf` engine."""
_SHARED_FILE = re.compile(r"/dev/shm/[^\s(]+")
HEADER = re.compile(r"^== (\S+), process (\d+), ", re.M)


def arguments(directory: Path, *values: str, skip_checks: bool = True) -> tuple[str, ...]:
    """Arguments of a tiny run into DIRECTORY, with other VALUES."""
    options = ("--skip-checks",) if skip_checks else ()
    return ("run", "toy-ppo", *options, f"trainer.default_local_dir={directory}", *TINY, *values)


def planned(directory: Path, **plan: str) -> tuple[str, ...]:
    """Values that let the reward of `reward.py` do at step N what PLAN says (`step_N="nan"`)."""
    deeds = {name.removeprefix("step_"): deed for name, deed in plan.items()}
    kwargs = {"metrics": str(directory / "metrics.jsonl"), "plan": deeds}
    path = Path(__file__).with_name("reward.py")
    return (
        f"custom_reward_function.path={path}",
        f"custom_reward_function.reward_kwargs={json.dumps(kwargs)}",
        "reward_model.rules=[]",
    )


class Watched(Started):
    """A command under way whose descendants are noted, so that it can be told what outlives it."""

    def __init__(self, directory: Path, *values: str, program: Sequence[str] = COMMAND) -> None:
        self._shm_before = {path.name for path in SHARED_MEMORY.iterdir()}
        super().__init__(directory, *values, program=program)
        self._seen: dict[int, psutil.Process] = {}
        self._sessions: set[Path] = set()
        self._mapped: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the controller has ended."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Of the controller."""
        return self._process.pid

    def pids(self, worker: str) -> list[int]:
        """The processes that have been WORKER ("train-0"), by its log, oldest first."""
        log = self.directory / "logs" / f"{worker}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return [int(pid) for name, pid in HEADER.findall(text) if name == worker]

    def wait_for_checkpoint(self, step: int) -> None:
        """Wait until the checkpoint of STEP is in its place."""
        place = self.directory / "checkpoints" / f"global_step_{step}"
        self.wait_until(place.is_dir, f"checkpoint of step {step}")

    def kill(self, worker: str) -> int:
        """`kill -9` of WORKER; the number that its process had."""
        pid = self.pids(worker)[-1]
        os.kill(pid, signal.SIGKILL)
        return pid

    def terminate(self) -> None:
        """SIGTERM to the process that was started, alone."""
        self._process.terminate()

    def interrupt_group(self) -> None:
        """SIGINT to the process group, as a terminal's Ctrl-C."""
        os.killpg(self.pid, signal.SIGINT)

    def terminate_all(self) -> None:
        """SIGTERM to every process, the children first, as Slurm and systemd send it."""
        controller = psutil.Process(self.pid)
        for process in (*controller.children(recursive=True)[::-1], controller):
            with suppress(psutil.NoSuchProcess):
                process.terminate()

    def hang_up(self) -> None:
        """SIGHUP to the controller twice, as the kernel and the shell send it when a terminal is lost."""
        for _ in range(2):
            self._process.send_signal(signal.SIGHUP)

    def said(self, words: str) -> bool:
        """Whether the command has printed WORDS."""
        return any(words in text for text in self._texts())

    def wait_until(self, condition: Callable[[], bool], what: str, poll_s: float = 0.05) -> None:
        """Wait until CONDITION() holds, looked at every POLL_S; WHAT names it. Fails when the command ends first."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process.poll() is None, f"ended before {what}: {self._texts()}"
            assert time.monotonic() < deadline, f"no {what} within {PATIENCE_S:g} s: {self._texts()}"
            time.sleep(poll_s)

    def finish(self, timeout_s: float = PATIENCE_S) -> Run:
        """How it ended; by then everything that it has started must be gone."""
        try:
            return super().finish(timeout_s)
        finally:
            self._over.set()
            self._thread.join()
            left = self._left(VANISH_S)
            for process in self._alive():
                process.kill()
            assert not left, f"{left} left behind: {self._texts()}"

    def _left(self, grace_s: float) -> list[str]:
        deadline = time.monotonic() + grace_s
        while (left := self._leftovers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _leftovers(self) -> list[str]:
        processes = [f"process {process.pid}" for process in self._alive()]
        return [*processes, *self._orphaned_shared_memory(), *(str(path) for path in self._sessions if path.exists())]

    def _alive(self) -> list[psutil.Process]:
        return [p for p in self._seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def _orphaned_shared_memory(self) -> list[str]:
        """Files of shared memory that the run has made and no living process has mapped.

        A run is known by its prefix, or by having mapped a file: those of another test's engine are not of this run.
        """
        new = {path for path in SHARED_MEMORY.iterdir() if path.name not in self._shm_before}
        new = {path for path in new if path.name.startswith("rltrain") or str(path) in self._mapped}
        if new:
            maps = "".join(_text(place / "maps") for place in Path("/proc").iterdir() if place.name.isdigit())
            new = {path for path in new if str(path) not in maps}
        return sorted(map(str, new))

    def _look(self) -> None:
        while not self._over.wait(1.0):
            try:
                found = psutil.Process(self.pid).children(recursive=True)
            except psutil.Error:
                return
            for process in found:
                self._note(process)
                self._mapped |= set(_SHARED_FILE.findall(_text(Path(f"/proc/{process.pid}/maps"))))

    def _note(self, process: psutil.Process) -> None:
        if process.pid in self._seen:
            return
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            return
        self._seen[process.pid] = process
        self._sessions |= set(map(Path, re.findall(r"/tmp/ray/session_2[\w-]+", words)))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def checkpoints(directory: Path) -> list[str]:
    """Everything that lies in the checkpoint directory: nothing half-made may be there."""
    return sorted(path.name for path in (directory / "checkpoints").iterdir())


def message(run: Run) -> list[str]:
    """What the failed RUN told the user: a few lines on standard error, none of them a traceback."""
    lines = run.err.strip().splitlines()
    assert lines[0].startswith("rltrain: "), run.err
    assert len(lines) <= 4, run.err
    return lines
