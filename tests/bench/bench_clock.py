"""What does rltrain's clock cost, and does it change anything? One toy run with it in every other call, two to compare.

    python -m tests.bench.bench_clock [--steps 60] [--record FILE]

In the first run every other call of each kind, and every other round of the engine, goes without the clock: each with
it is paired with those before and after: the median of the differences is what it costs, within the machine's noise.
What its own code takes is measured by itself, and held against the step. Then a run with
the clock throughout and one without (`clock_off`) must have the same metrics to the bit, times and memory apart.
Exits with 1 when the clock costs over 0.5 % of a step, or a metric differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from rltrain.core.spent import Spent
from rltrain.workers.rollout.flow import Flow

ROOT = Path(__file__).resolve().parents[2]
OFF = Path(__file__).with_name("clock_off")
MOST = 0.005
LIMIT_S = 600.0
RANKS = ("update_actor", "update_critic", "log_probs", "values")
"""Calls of the ranks, once a step."""
APART = ("timing_s/", "timing_per_token_ms/", "perf/")
TOY = ("toy-ppo", "actor_rollout_ref.rollout.name=hf", "trainer.save_freq=-1", "trainer.test_freq=-1",
       "trainer.val_before_train=false")  # fmt: skip


def train(place: Path, steps: int, off: str = "") -> list[dict[str, Any]]:
    """Metrics by step of a run in PLACE; OFF: as `clock_off` reads it."""
    path = [str(OFF), str(ROOT), str(ROOT / "trainer")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "CLOCK_OFF": off}
    command = [sys.executable, "-m", "rltrain", "run", *TOY, f"trainer.total_training_steps={steps}",
               f"trainer.default_local_dir={place}"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]


class Cost(NamedTuple):
    """Of one kind of call: how many were compared, and medians. Seconds; `added_cpu_s` of a processor."""

    pairs: int
    without_s: float
    added_s: float
    added_cpu_s: float


def costs(folder: Path) -> dict[str, Cost]:
    """By call, what the clock adds: each call with it is compared with the mean of those without before and after."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for file in sorted(folder.glob("*.jsonl")):
        calls: dict[str, list[tuple[bool, float, float]]] = defaultdict(list)
        for line in file.read_text().splitlines():
            what, on, seconds, cpu_s, _ = json.loads(line)
            calls[what].append((on, seconds, cpu_s))
        for what, all_of_it in calls.items():
            if what == "file":
                found[what] += [(0.0, seconds, cpu_s) for _, seconds, cpu_s in all_of_it]
                continue
            for before, it, after in zip(all_of_it, all_of_it[1:], all_of_it[2:], strict=False):
                if it[0] and not before[0] and not after[0]:
                    usual_s, usual_cpu_s = (before[1] + after[1]) / 2, (before[2] + after[2]) / 2
                    found[what].append((usual_s, it[1] - usual_s, it[2] - usual_cpu_s))
    return {
        what: Cost(len(rows), *(statistics.median(column) for column in zip(*rows, strict=True)))
        for what, rows in found.items()
        if len(rows) >= 5
    }


def own_s(folder: Path) -> float:
    """Seconds that the clock's own code takes of a step: blocks around collectives, a round of the toy, the file."""
    blocks, files = defaultdict[str, list[int]](list), list[float]()
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            what, _, seconds, _, number = json.loads(line)
            blocks[what].append(number)
            files += [seconds] if what == "file" else []
    spent = Spent()
    begun = time.thread_time()
    for _ in range(1000):
        with spent.together():
            pass
    block_s = (time.thread_time() - begun) / 1000
    begun = time.thread_time()
    for _ in range(20):
        flow = Flow()
        flow.asked(512, 4096)
        for _ in range(7):
            flow.due()
            flow.sample(512, {"running": 512, "waiting": 0})
        for _ in range(512):
            flow.ended(6)
        flow.note()
    round_s = (time.thread_time() - begun) / 20
    number = sum(statistics.median(blocks[what]) for what in RANKS if what in blocks)
    print(f"own code: {number:.0f} collectives of {block_s * 1e6:.1f} us, a round {round_s * 1e6:.0f} us, "
          f"the file {statistics.median(files) * 1e6:.0f} us")  # fmt: skip
    return number * block_s + round_s + statistics.median(files)


def differing(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[str]:
    """Metrics that are not the same to the bit."""
    names: set[str] = set()
    for first, second in zip(one, other, strict=True):
        for name in first.keys() | second.keys():
            if not name.startswith(APART) and name != "audit" and first.get(name) != second.get(name):
                names.add(name)
    return sorted(names)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pairs").mkdir()
        steps = train(folder / "half", options.steps, str(folder / "pairs"))
        step_s = statistics.median(one["timing_s/step"] for one in steps if one["step"] > 2)
        table, own = costs(folder / "pairs"), own_s(folder / "pairs")
        both = train(folder / "on", 6), train(folder / "off", 6, "all")
    for what, one in sorted(table.items()):
        print(f"{what:24} {one.pairs:5} pairs, {one.without_s * 1e3:9.3f} ms without, {one.added_s * 1e6:+9.1f} us "
              f"with, {one.added_cpu_s * 1e6:+9.1f} us of a processor")  # fmt: skip
    # A call of the ranks is one of each rank at the same time; a step has one round, and one call of each of these.
    once = (*RANKS, "round", "file")
    paired = sum(table[what].added_cpu_s for what in once if what in table)
    share, names = own / step_s, differing(*both)
    said = (f"the clock's own code takes {own * 1e6:.0f} us of a step of {step_s:.3f} s: {share:.3%}; pairs of calls "
            f"with and without it differ by {paired * 1e6:+.0f} us of a processor; of {len(both[0][-1])} metrics "
            f"{len(names)} differ {names[:8]}")  # fmt: skip
    print(said)
    if options.record:
        rows = {what: list(one) for what, one in table.items()}
        options.record.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "said": said, "calls": rows}) + "\n")
    return int(share > MOST or bool(names) or not table)


if __name__ == "__main__":
    sys.exit(main())
