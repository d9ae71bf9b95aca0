"""What a run costs before and after its steps: CPU seconds of each process of a run of one step, by what it does.

    python tests/bench/bench_start.py [--recipe toy-grpo] [--engines hf vllm] [--rounds N] [KEY=VALUE …]

Every process that descends from the command is looked at many times a second; the last look counts, so what one does in
the instant before its end is missing. CPU seconds hardly depend on what else the machine does; the wall time does.
Prints medians of all rounds: CPU seconds by role, how many processes have it, and the wall time.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "rltrain", "run")
ONE_STEP = ("--skip-checks", "trainer.total_training_steps=1")
EVERY_S = 0.1
TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
ROLES = {
    "/gcs/gcs_server": "Ray: gcs_server",
    "/raylet/raylet": "Ray: raylet",
    "guard.py": "guards",
    "ray::IDLE": "Ray: idle workers",
    "fork_client.py": "fork clients",
    "absent_agent.py": "Ray: agents",
    "ray::DashboardAgent": "Ray: agents",
    "ray::RuntimeEnvAgent": "Ray: agents",
    "rltrain.rewards.child": "rewards",
    "dashboard/agent.py": "Ray: agents",
    "runtime_env/agent": "Ray: agents",
    "fork_server": "fork server",
    "ray/_private": "Ray: other",
    "ray/dashboard": "Ray: other",
    "default_worker.py": "Ray: idle workers",
    "EngineCore": "vLLM: core",
    "multiprocessing": "multiprocessing",
}
"""What is in the command line of a process, and what it does; the first that fits."""


@dataclass
class Seen:
    """CPU seconds of processes, by number and time of birth."""

    cpu_s: dict[tuple[int, str], float] = field(default_factory=dict[tuple[int, str], float])
    role: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])

    def look(self, pid: int) -> None:
        """Read all processes that descend from PID."""
        for child in _children(pid):
            self.look(child)
            words = _words(child)
            if words:
                key = (child, words[19])
                self.cpu_s[key] = (int(words[11]) + int(words[12])) / TICKS
                # What waits to be collected has lost its command line: what it did is known from before.
                self.role[key] = role_of(child) or self.role.get(key, "other")


def _children(pid: int) -> list[int]:
    try:
        tasks = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
    return [int(word) for text in tasks for word in text.split()]


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def role_of(pid: int) -> str:
    """What process PID does; "" where that can no longer be seen."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    named = next((role for part, role in ROLES.items() if part in line), "")
    if named or not line:
        return named
    if line.startswith("ray::"):
        # A worker's output goes to its log, which has its name.
        with suppress(OSError):
            return Path(os.readlink(f"/proc/{pid}/fd/1")).name.removesuffix(".log").rstrip("0123456789").rstrip("-_")
    return "controller" if "rltrain run" in line else f"other: {line[:90]}"


@dataclass(frozen=True)
class Cost:
    """Of one run: CPU seconds and number of processes by role, and the wall time."""

    cpu_s: Counter[str]
    processes: Counter[str]
    wall_s: float


def measure(words: Sequence[str], out: Path) -> Cost:
    """Run `rltrain run WORDS`, whose output goes to OUT."""
    begin, seen = time.monotonic(), Seen()
    with out.open("w") as file:
        command = subprocess.Popen([*COMMAND, *words], cwd=ROOT, stdout=file, stderr=file)
        while command.poll() is None:
            seen.look(os.getpid())
            time.sleep(EVERY_S)
    wall_s = time.monotonic() - begin
    if command.returncode:
        sys.exit(f"rltrain run {' '.join(words)} ended with {command.returncode}: {out.read_text()[-2000:]}")
    cost = Cost(Counter(), Counter(seen.role.values()), wall_s)
    for key, seconds in seen.cpu_s.items():
        cost.cpu_s[seen.role[key]] += seconds
    return cost


def show(engine: str, costs: Sequence[Cost]) -> None:
    """Print the medians of COSTS."""
    print(f"{engine}: {len(costs)} runs of one step, wall {statistics.median(cost.wall_s for cost in costs):.1f} s")
    rows = {role: statistics.median(cost.cpu_s[role] for cost in costs) for role in costs[0].cpu_s}
    for role, seconds in sorted(rows.items(), key=lambda row: -row[1]):
        print(f"  {role:20} {seconds:7.2f} CPU s  {costs[0].processes[role]:3} processes")
    totals = [sum(cost.cpu_s.values()) for cost in costs]
    print(f"  {'all':20} {statistics.median(totals):7.2f} CPU s  ({min(totals):.1f} to {max(totals):.1f})", flush=True)


def main() -> None:
    """Run and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="toy-grpo")
    parser.add_argument("--engines", nargs="+", default=["hf", "vllm"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("values", nargs="*", help="of the config, beside those of a run of one step")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as scratch:
        for engine in options.engines:
            costs: list[Cost] = []
            for number in range(options.rounds):
                place = Path(scratch, f"{engine}-{number}")
                values = (f"actor_rollout_ref.rollout.name={engine}", f"trainer.default_local_dir={place}")
                words = (options.recipe, *ONE_STEP, *values, *options.values)
                costs.append(measure(words, place.with_suffix(".out")))
            show(engine, costs)


if __name__ == "__main__":
    main()
