"""The measuring plug-in `rehearse`: four steps straight; two steps, kill -9, resume; and both compared, bit by bit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

import rlcheck
import rltrain
from rlcheck.facts.rehearsal import RehearsalFacts
from rlcheck.facts.rollout import Failure, StageTime
from rltrain.config import RunConfig, load, resolve
from rltrain.config.machine import this_machine
from rltrain.core.errors import UserError
from rltrain.measure.rehearse.compare import first_difference, lost_part
from rltrain.measure.report import Tell
from rltrain.measure.smoke.plugin import last_words, smallest_batch
from rltrain.records.checkpoints import finished
from rltrain.records.run_dir import read_steps

STEPS, KILL_AFTER = 4, 2
_LOADED = re.compile(r"loading the checkpoint of step (\d+)")
_POLL_S = 0.02
_SAVING_S = 120.0
"""How long the checkpoint of a step may come after its metrics."""
_GONE_S = 30.0


@dataclass
class Trial:
    """The three starts of one config, and what they left in `directory`."""

    words: tuple[str, ...]
    directory: Path
    tell: Tell
    stages: list[StageTime]

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """What the run NAME has written so far."""
        try:
            return read_steps(self.directory / name / "metrics.jsonl")
        except UserError:  # a line that is being written
            return []

    def start(self, name: str, log: str, *changes: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start the run NAME; its output goes to a file of the name LOG."""
        place = self.directory / f"{log}.log"
        own = (f"trainer.default_local_dir={self.directory / name}", f"trainer.rollout_data_dir={self.samples(name)}")
        with place.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "rltrain", "run", *self.words, *changes, *own, "--skip-checks"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=_environ(), start_new_session=True,
            )  # fmt: skip
        return process, place

    def samples(self, name: str) -> Path:
        """Where the samples of each step of the run NAME are."""
        return self.directory / f"samples-{name}"

    def watch(
        self, process: subprocess.Popen[bytes], log: Path, stage: str, until: Callable[[], bool] | None = None
    ) -> int | None:
        """Wait for the end of PROCESS, and return its exit code; or for UNTIL, and return None."""
        began, told = time.monotonic(), -1
        try:
            while process.poll() is None and not (until is not None and until()):
                size = log.stat().st_size
                if size != told:  # a sign of life
                    told = size
                    self.tell({"stage": stage})
                time.sleep(_POLL_S)
        except BaseException:
            _kill(process)
            raise
        self.stages.append(StageTime(name=stage, seconds=round(time.monotonic() - began, 1)))
        self.tell({"partial": {"stages": msgspec.to_builtins(self.stages)}})
        return process.poll()


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Rehearse a kill.

    Args:
        request: `source` and `overrides` of an rltrain config; `directory`, an empty one for the runs.
        tell: called with `{"stage": …}` at each sign of life, and with `{"partial": …}` when a stage has ended.

    Returns:
        `rlcheck.facts.rehearsal.RehearsalFacts` as plain data.

    Raises:
        UserError: the config cannot be used, or no batch holds to its rules.
    """
    tell({"stage": "config"})
    source, overrides = request["source"], list(request["overrides"])
    loaded = load(source, overrides)
    changed = changes(resolve(loaded, this_machine()), smallest_batch(loaded))
    begun = time.monotonic()
    trial = Trial((source, *overrides, *changed), Path(request["directory"]), tell, [])
    own = loaded.trainer
    facts = RehearsalFacts(steps=STEPS, save_freq=own.save_freq, resume_mode=own.resume_mode, overrides=tuple(changed))
    facts = _rehearsed(trial, facts)
    seconds = round(time.monotonic() - begun, 1)
    return msgspec.to_builtins(msgspec.structs.replace(facts, stages=tuple(trial.stages), seconds=seconds))


def changes(config: RunConfig, batch: int) -> list[str]:
    """The overrides: a small batch and few steps; what decides of saving and resuming stays, but for its rhythm."""
    limit = config.data.train_max_samples
    trainer = config.trainer
    return [
        f"data.train_batch_size={batch}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={batch}",
        *([f"critic.ppo_mini_batch_size={batch}"] if config.critic.enable else []),
        f"data.train_max_samples={min(limit, 16 * batch) if limit > 0 else 16 * batch}",
        "sft_warmup.steps=0",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.total_epochs={max(trainer.total_epochs, STEPS)}",
        "trainer.critic_warmup=0",
        # The first update of a warm-up has a rate of 0.
        "actor_rollout_ref.actor.optim.lr_warmup_steps=-1",
        "critic.optim.lr_warmup_steps=-1",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        *(["trainer.save_freq=1"] if trainer.save_freq > 0 else []),
        *([] if trainer.resume_mode in ("auto", "disable") else ["trainer.resume_mode=auto"]),
        "trainer.resume_from_path=null",
        "trainer.audit_freq=1",
        "trainer.logger=[console]",
    ]


def _rehearsed(trial: Trial, facts: RehearsalFacts) -> RehearsalFacts:
    for part in (go_straight, stop, go_on):
        facts = part(trial, facts)
        if facts.failure is not None:
            break
    return facts


def go_straight(trial: Trial, facts: RehearsalFacts) -> RehearsalFacts:
    """All steps, without a stop and without a checkpoint."""
    process, log = trial.start("straight", "straight", "trainer.save_freq=-1", "trainer.resume_mode=disable")
    code = trial.watch(process, log, f"{STEPS} steps straight")
    return _failed(facts, trial, log, code) if code else facts


def stop(trial: Trial, facts: RehearsalFacts) -> RehearsalFacts:
    """Two steps, then SIGKILL."""
    process, log = trial.start("stopped", "killed")
    code = trial.watch(process, log, f"{KILL_AFTER} steps, then kill -9", lambda: _is_due(trial, facts))
    if code is not None:
        return _failed(facts, trial, log, code)
    _kill(process)
    done = max(record["step"] for record in trial.metrics("stopped"))
    saved = tuple(one.step for one in finished(trial.directory / "stopped" / "checkpoints"))
    return msgspec.structs.replace(facts, killed_after=done, saved=saved)


def go_on(trial: Trial, facts: RehearsalFacts) -> RehearsalFacts:
    """The second start, to the end, and the comparison."""
    before = trial.metrics("stopped")
    process, log = trial.start("stopped", "resumed")
    if code := trial.watch(process, log, "resume, to the end"):
        return _failed(facts, trial, log, code)
    loaded = _LOADED.search(log.read_text(encoding="utf-8", errors="replace"))
    return _compared(msgspec.structs.replace(facts, resumed_from=int(loaded[1]) if loaded else 0), trial, before)


def _compared(facts: RehearsalFacts, trial: Trial, before: list[dict[str, Any]]) -> RehearsalFacts:
    straight, after = trial.metrics("straight"), trial.metrics("stopped")
    early, some = first_difference(straight, before, range(1, facts.killed_after + 1))
    first, more = first_difference(straight, after, range(facts.resumed_from + 1, STEPS + 1))
    lost = ""
    if first is not None and facts.resumed_from:
        one, two = ({each["step"]: each for each in records} for records in (straight, after))
        step = facts.resumed_from + 1
        pair = one.get(step, {}), two.get(step, {})
        lost = lost_part(first, trial.samples("straight"), trial.samples("stopped"), pair)
    return msgspec.structs.replace(facts, early=early, first=first, compared=some + more, lost=lost)


def _is_due(trial: Trial, facts: RehearsalFacts) -> bool:
    """Whether the step is done after which the run is killed, and its checkpoint, if it writes one."""
    written = trial.directory / "stopped" / "metrics.jsonl"
    if not any(record["step"] >= KILL_AFTER for record in trial.metrics("stopped")):
        return False
    saved = [one.step for one in finished(trial.directory / "stopped" / "checkpoints")]
    late = time.time() - written.stat().st_mtime > _SAVING_S
    return facts.save_freq <= 0 or max(saved, default=0) >= KILL_AFTER or late


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the run and to all that it started, at once, as a machine that goes away does it."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.Error):
                member.send_signal(signal.SIGKILL)
        psutil.wait_procs(family[1:], timeout=_GONE_S)
    process.wait()


def _failed(facts: RehearsalFacts, trial: Trial, log: Path, code: int) -> RehearsalFacts:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-60:]
    sys.stderr.write("\n".join(lines) + "\n")
    line = last_words(lines, code) if code else "the run ended before it could be killed; give it a larger batch"
    return msgspec.structs.replace(facts, failure=Failure(stage=trial.stages[-1].name, kind="run", line=line))


def _environ() -> dict[str, str]:
    roots = dict.fromkeys(str(Path(str(package.__file__)).resolve().parents[1]) for package in (rltrain, rlcheck))
    paths = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb"}
