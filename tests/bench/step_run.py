"""Makes one run of bench_step.py and its proofs, on processors of its own and with a Ray of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlcheck.facts.step import LINKS
from tests.bench.faults.step_table import Run

ROOT = Path(__file__).resolve().parents[2]
INJECT = Path(__file__).parent / "faults" / "inject"
OBJECTS = 256 << 20
"""Ray's object store in bytes: left alone, each Ray asks for a third of the machine."""
LIMIT_S = 900.0
"""Of one run, or of its proofs: then it is ended, and what it has left counts."""
END_S = 30.0
"""How long a process may take to end in order."""

_PIN = "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"
"""Starts what its arguments say on the processors that the first of them lists."""


class NoRun(Exception):
    """A run that shows nothing: it left no capsule, or was made without its mistake."""


class Late(Exception):
    """The bench's time was over."""


@dataclass
class Slot:
    """Processors that one run has at a time, and the time at which everything ends. `over`: set to end it sooner."""

    cpus: frozenset[int]
    deadline: float
    over: threading.Event

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be started or waited for."""
        return self.over.is_set() or time.monotonic() > self.deadline


@dataclass
class Found:
    """What the capsules of a run show. `links`: by capsule, the links of each status that is not `same`."""

    first: str = ""
    said: str = ""
    links: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    bytes: dict[str, int] = field(default_factory=dict[str, int])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def unknown(self) -> dict[str, str]:
        """Links that some capsule left unknown, and why."""
        return {name: why for links in self.links.values() for name, why in links["unknown"].items()}


def slots(count: int, deadline_s: float, over: threading.Event) -> list[Slot]:
    """COUNT shares of the processors that this process may use: none in two shares, as long as there are enough."""
    cpus, deadline = sorted(os.sched_getaffinity(0)), time.monotonic() + deadline_s
    each = max(len(cpus) // count, 1)
    shares = [frozenset(cpus[(at * each + more) % len(cpus)] for more in range(each)) for at in range(count)]
    return [Slot(share, deadline, over) for share in shares]


def examined(run: Run, directory: Path, slot: Slot) -> Found:
    """What the capsules of RUN in DIRECTORY show; run and proofs that are there are not made again.

    Raises:
        NoRun: there is nothing to see.
        Late: the time is over.
    """
    begun, found = time.monotonic(), Found()
    capsules = _made(run, directory, slot)
    found.seconds["run"], begun = round(time.monotonic() - begun, 1), time.monotonic()
    missing = [place for place in capsules if not (place / "proof.json").exists()]
    if missing:
        parts = [missing[at :: len(slot.cpus)] for at in range(min(len(slot.cpus), len(missing)))]
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(lambda part: _prove(part, slot), parts))
    found.seconds["proof"] = round(time.monotonic() - begun, 1)
    for place in capsules:
        _read(place, found)
    return found


def _prove(capsules: Sequence[Path], slot: Slot) -> None:
    """A proof beside each of CAPSULES of one run, unless it fails: one thread is enough for a small model."""
    command = [sys.executable, "-m", "rlcheck", "step", *map(str, capsules), "--format", "json"]
    with (capsules[0].parents[1] / f"proof-{capsules[0].name}.out").open("w") as out:
        _call(command, out, {}, slot)


def _made(run: Run, directory: Path, slot: Slot) -> list[Path]:
    """The capsules of RUN, made unless they are there."""
    out = directory.with_suffix(".out")
    if not (directory / "done").exists():
        shutil.rmtree(directory, ignore_errors=True)
        mark = directory.with_suffix(".mark")
        mark.unlink(missing_ok=True)
        environ = {"RLTRAIN_MISTAKE": run.mistake, "RLTRAIN_MISTAKE_MARK": str(mark)}
        if run.mistake:
            environ["PYTHONPATH"] = str(INJECT)
        with out.open("w") as log:
            codes = [_call(_command(run, directory, last), log, environ, slot) for last in _parts(run)]
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)
        if run.mistake and not mark.exists():
            raise NoRun(f"ran without its mistake, see {out}")
        if any(codes) and not run.mistake:
            raise NoRun(f"ended with {codes}, see {out}")
        directory.mkdir(exist_ok=True)
        (directory / "done").touch()
    capsules = sorted((directory / "capsules").glob("step_*"), key=lambda place: int(place.name[5:]))
    if not capsules or (not run.mistake and len(capsules) < len(run.steps)):
        raise NoRun(f"{len(capsules)} of {len(run.steps)} capsules, see {out}")
    return capsules


def _parts(run: Run) -> Sequence[int]:
    """The last step of each call."""
    return (run.resume_at, max(run.steps)) if run.resume_at else (max(run.steps),)


def _command(run: Run, directory: Path, last: int) -> list[str]:
    resumed = ("trainer.resume_mode=auto", f"trainer.save_freq={run.resume_at}") if run.resume_at else ()
    values = (*run.overrides, *resumed, f"trainer.total_training_steps={last}", "trainer.val_before_train=false",
              f"trainer.capsule_steps=[{','.join(map(str, run.steps))}]", f"trainer.default_local_dir={directory}",
              "trainer.test_freq=-1", f"ray_kwargs.ray_init.object_store_memory={OBJECTS}")  # fmt: skip
    return [sys.executable, "-m", "rltrain", "run", run.recipe, "--skip-checks", *values]


def _call(command: Sequence[str], out: Any, environ: dict[str, str], slot: Slot) -> int:
    """Run COMMAND on the processors of SLOT; its exit code.

    Raises:
        Late: it was ended at the deadline.
    """
    if slot.is_over:
        raise Late
    path = [environ.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "trainer"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory(prefix="bs", ignore_cleanup_errors=True) as scratch:
        # Sockets of Ray are in there: a path of theirs holds 107 characters.
        own = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "RAY_TMPDIR": scratch, "CUDA_VISIBLE_DEVICES": ""}
        kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "OMP_NUM_THREADS")}
        # Not a function of ours between fork and exec: other threads may hold locks at the fork.
        pinned = [sys.executable, "-I", "-S", "-c", _PIN, ",".join(map(str, sorted(slot.cpus))), *command]
        process = subprocess.Popen(
            pinned, cwd=ROOT, env={**kept, **environ, **own}, stdout=out, stderr=out, start_new_session=True
        )
        try:
            limit = time.monotonic() + LIMIT_S
            while process.poll() is None and not slot.is_over and time.monotonic() < limit:
                time.sleep(0.2)
            late = process.poll() is None and slot.is_over
        finally:
            _end(process)
    if late:
        raise Late
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process of ours that still runs: in order, or by force after a while."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def _read(place: Path, found: Found) -> None:
    """Add what the proof of the capsule PLACE says."""
    found.bytes[place.name] = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    if not (place / "proof.json").exists():
        raise NoRun(f"no proof of {place}, see proof-*.out in {place.parents[1]}")
    links = {link["name"]: link for link in json.loads((place / "proof.json").read_text())["links"]}
    status: dict[str, dict[str, Any]] = {"differs": {}, "unknown": {}, "absent": {}}
    for name in LINKS:
        link = links.get(name, {"status": "unknown", "said": "not in the proof"})
        if link["status"] in status:
            status[link["status"]][name] = link["said"]
        if link["status"] == "differs" and not found.first:
            causes = "; ".join(link.get("causes", ()))
            found.first, found.said = name, f"{place.name}: {link['said']}" + (f" [{causes}]" if causes else "")
    found.links[place.name] = {**status, "absent": sorted(status["absent"])}
