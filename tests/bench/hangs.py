"""Plants hangs in real jobs of four gloo ranks, at random places, and scores what `rlcheck hang` says of them.

`.venv/bin/python -m tests.bench.hangs [--times 20] [--seed 0] [--only stopped,gil] [-o record.json]`. Each fault is
planted `times` times; a placement counts where exactly the planted rank or role is named, and for the healthy job where
none is. `--backend nccl --world 2` does it on GPUs (`tests/bench/gpu/hangs.sh`), with a kernel that never ends, too:
with torch's timing of collectives (TORCH_NCCL_ENABLE_TIMING=1), where its rank must be named, and without, where none
may be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("hang_job.py")
WORLD = 4
START_S = 240.0
FAULTS = ("stopped", "gil", "exception", "shape", "op", "missing", "reward", "engine", "healthy")
ON_GPUS = ("stopped", "gil", "exception", "shape", "missing", "kernel", "op", "healthy", "kernel_untimed")


class Rank:
    """A rank that was forked by a `Nursery`, with what is used of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """None while it runs."""
        return None if Path(f"/proc/{self.pid}").exists() else 1

    def send_signal(self, number: int) -> None:
        """Send it a signal; nothing where it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> None:
        """Wait until it has ended."""
        _await(lambda: self.poll() is not None, f"the end of {self.pid}")


class Nursery:
    """Forks gloo ranks from one process that has imported torch, which is most of what a rank's start costs."""

    def __init__(self) -> None:
        pipe, environ = subprocess.PIPE, {**os.environ, "NURSERY_ROOM": " " * 4096}
        words = [sys.executable, str(JOB), "nursery"]
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environ)
        self._said()

    def start(self, words: list[str], environ: dict[str, str], log: Path) -> Rank:
        """A rank with those words and variables."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"words": words, "environ": environ, "log": str(log)}) + "\n")
        self._process.stdin.flush()
        return Rank(int(self._said()))

    def close(self) -> None:
        """End it; ranks that it has forked stay."""
        self._process.kill()
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def planted(
    fault: str,
    odd: int,
    step: int,
    directory: Path,
    backend: str = "gloo",
    world: int = WORLD,
    nursery: Nursery | None = None,
) -> Generator[list[Any]]:
    """A job of WORLD ranks in which FAULT has happened on rank ODD at STEP."""
    service = fault if fault in ("reward", "engine") else ""
    environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port()), "WORLD_SIZE": str(world),
               "OMP_NUM_THREADS": "1", "HANG_DIR": str(directory), "HANG_BACKEND": backend,
               "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
               "TORCH_FR_DUMP_TEMP_FILE": str(directory / "fr_"),
               "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(directory / "fr_"),
               "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(directory / "ask_"),
               "TORCH_NCCL_ENABLE_TIMING": str(int(fault == "kernel"))}  # fmt: skip
    port = _port() if service else 0
    script = directory / f"{service}_server.py" if service else JOB
    script.symlink_to(JOB) if service else None
    words = [fault, str(step), str(odd), str(port)]
    running: list[Any] = []
    try:
        if service:
            running.append(_start([str(script), service, *words], os.environ, directory / "service.log"))
            _await(lambda: _listens(port), "the service")
        ranks = [rank for rank in range(world) if fault != "missing" or rank != odd]
        for rank in ranks:
            own, log = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}, directory / f"rank{rank}.log"
            running.append(nursery.start(words, own, log) if nursery else _start([str(JOB), "rank", *words], own, log))
        _await(lambda: _ready(directory, running) == len(ranks), "the ranks")
        if fault == "stopped":
            running[odd].send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        yield running
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _start(words: list[str], environ: Any, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen([sys.executable, *words], env=dict(environ), stdout=out, stderr=out)


def _port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def _ready(directory: Path, running: list[Any]) -> int:
    """How many ranks have come to the fault.

    Raises:
        TimeoutError: one has ended.
    """
    if any(process.poll() is not None for process in running):
        raise TimeoutError("a rank ended at its start")
    return len(list(directory.glob("ready.*")))


def _await(done: Any, what: str) -> None:
    deadline = time.monotonic() + START_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {START_S:.0f} s for {what}")
        time.sleep(0.1)


def asked(pid: int, watched_s: float = 6.0, *more: str) -> tuple[int, dict[str, Any], float]:
    """Exit code, report and seconds of `rlcheck hang --pid PID`."""
    begun = time.monotonic()
    words = [sys.executable, "-m", "rlcheck", "hang", "--pid", str(pid), "--for", str(watched_s), "--format", "json"]
    done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=120, cwd=ROOT)
    report = json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}
    return done.returncode, report, time.monotonic() - begun


def right(fault: str, odd: int, code: int, report: dict[str, Any]) -> bool:
    """Whether exactly the planted culprit is named."""
    hang = report.get("hang")
    if fault == "healthy":
        return code == 0 and hang is None
    named = [(one["rank"], one["role"]) for one in hang["culprits"]] if hang else []
    if fault == "kernel_untimed":
        return code in (1, 2) and not named
    if fault in ("reward", "engine"):
        return code == 1 and named == [(None, fault)]
    return code == 1 and [rank for rank, _ in named] == [odd]


def tried(
    fault: str, chance: random.Random, backend: str = "gloo", world: int = WORLD, nursery: Nursery | None = None
) -> dict[str, Any]:
    """One placement, and what was said of it; of a wrong one also what was seen."""
    odd, step = chance.randrange(world), chance.randrange(5, 60)
    row: dict[str, Any] = {"fault": fault, "odd": odd, "step": step, "right": False, "seconds": 0.0}
    with tempfile.TemporaryDirectory(prefix="hang") as name:
        directory = Path(name)
        try:
            with planted(fault, odd, step, directory, backend, world, nursery) as running:
                alive = [process for process in running if process.poll() is None]
                states = [_state(process.pid) for process in alive]
                code, report, seconds = asked(alive[-1].pid, 6.0, "--record", str(directory / "facts.json"))
                same = all(p.poll() is None for p in alive) and [_state(p.pid) for p in alive] == states
        except (TimeoutError, IndexError) as error:
            logs = {path.name: path.read_text(errors="replace")[-1500:] for path in directory.glob("*.log")}
            return {**row, "not_placed": repr(error), "logs": logs}
        hang: dict[str, Any] = report.get("hang") or {}
        culprits: list[dict[str, Any]] = hang.get("culprits", [])
        row |= {"right": right(fault, odd, code, report), "code": code, "seconds": round(seconds, 1),
                "as_it_was": None if fault == "healthy" else bool(same), "said": hang.get("said", ""),
                "culprits": [(c["rank"], c["role"], c["kind"], c["call"]) for c in culprits],
                "notes": report.get("notes", [report.get("stderr", "")])}  # fmt: skip
        if (directory / "facts.json").exists():
            row["facts"] = json.loads((directory / "facts.json").read_text())
    return row


def kept(path: Path, row: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write what was seen to PATH, without the paths of this machine."""
    looked = facts["nodes"][0]["hang"]["value"]
    for process in looked["processes"]:
        process["title"] = re.sub(r"/\S*/", "", process.get("title", ""))
    for dump in looked.get("recorded", ()):
        dump |= {"path": "", "calls": dump["calls"][-4:]}
    value = {"fault": row["fault"], "odd": row["odd"], "hang": looked}
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


def _state(pid: int) -> str:
    """Stopped, held or dead, as the kernel says it; "" for one that may run."""
    if not Path(f"/proc/{pid}/stat").exists():
        return "gone"
    letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return letter if letter in "TtZX" else ""


def main() -> None:
    """Plant, ask, score, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--world", type=int, default=WORLD)
    parser.add_argument("--within", type=float, default=1e9, metavar="SECONDS", help="begin no placement after that")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was seen, for tests/fixtures/hangs")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    faults = options.only.split(",") if options.only else FAULTS if options.backend == "gloo" else ON_GPUS
    chances = {fault: random.Random(f"{options.seed}/{fault}") for fault in faults}
    rows: list[dict[str, Any]] = []
    begun = time.monotonic()
    nursery = Nursery() if options.backend == "gloo" else None
    for _ in range(options.times):
        for fault in faults:
            if time.monotonic() - begun > options.within:
                continue
            rows.append(tried(fault, chances[fault], options.backend, options.world, nursery))
            if "not_placed" in rows[-1] and options.backend == "gloo":  # once more: the machine was too busy
                rows.append(tried(fault, chances[fault], options.backend, options.world, nursery))
            facts = rows[-1].pop("facts", None)
            print(json.dumps(rows[-1]), flush=True)
            if options.keep and facts is not None:
                kept(options.keep / f"{fault}-{len(rows):03d}.json", rows[-1], facts)
            if not rows[-1]["right"] and facts is not None:
                rows[-1]["facts"] = facts
            if options.output:
                found = {"date": time.strftime("%Y-%m-%d"), "seed": options.seed, "cpus": os.cpu_count(),
                         "backend": options.backend, "world": options.world, "trials": rows}  # fmt: skip
                options.output.write_text(json.dumps(found, indent=1) + "\n")
    for fault in faults:
        own = [row for row in rows if row["fault"] == fault and "not_placed" not in row]
        right_ones, slowest = sum(row["right"] for row in own), max((row["seconds"] for row in own), default=0.0)
        print(f"{fault}: {right_ones} of {len(own)}, slowest {slowest} s", flush=True)


if __name__ == "__main__":
    main()
