"""How long `rlcheck run` takes for a run of 10,000 steps: reading, checks, the whole command.

    python -m tests.bench.bench_run [--steps 10000] [--metrics 64] [--times 3] [--keep DIR]
                                    [--kinds jsonl,tensorboard,wandb,nonfinite]

Makes a run of each kind in a temporary directory (DIR: kept there): `jsonl` as rltrain writes it, with samples and an
audit record; `tensorboard` as PyTorch's writer makes it, a validation every tenth step; `wandb` with one metric a
line; `nonfinite` with NaN from the middle on, as Python writes it. Prints the size of the files, seconds and seconds of
the processor (the least of all times), and whether the whole command keeps to a second. The bar holds for `jsonl` and
`tensorboard` on an idle machine; the load of the machine is printed with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.measure.run import write

BAR_S = 1.0
NAMES = (
    "critic/score/mean", "critic/rewards/mean", "critic/advantages/mean", "critic/returns/mean", "critic/values/mean",
    "critic/vf_loss", "critic/vf_explained_var", "critic/grad_norm", "critic/lr", "actor/entropy", "actor/grad_norm",
    "actor/lr", "actor/pg_clipfrac", "actor/pg_loss", "actor/ppo_kl", "actor/kl_loss", "actor/loss_tokens",
    "response_length/mean", "response_length/max", "response_length/clip_ratio", "prompt_length/mean",
    "perf/throughput", "perf/time_per_step", "perf/cpu_memory_used_gb", "perf/run_memory_used_gb", "timing_s/step",
    "timing_s/gen", "timing_s/update_actor", "timing_s/update_critic", "timing_s/old_log_prob", "rollout_corr/kl",
    "rollout_corr/k3_kl", "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max",
    "training/rollout_actor_probs_pearson_corr", "training/rollout_log_probs_diff_mean",
)  # fmt: skip


def names(count: int) -> list[str]:
    """COUNT metrics, the usual ones first."""
    return [*NAMES, *(f"timing_per_token_ms/stage_{place}" for place in range(count))][:count]


def values(rng: random.Random, metrics: list[str], step: int) -> dict[str, float]:
    """A step of a run in which nothing happens."""
    return {name: 0.5 + 0.1 * math.sin(step / 900) + rng.gauss(0, 0.01) for name in metrics}


def jsonl(place: Path, steps: int, metrics: list[str]) -> None:
    """As rltrain writes it."""
    rng = random.Random(0)
    records: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        audit = {"response_tokens": 2739, "loss_tokens": 2739.0, "optimizer_steps": 4 * step,
                 "parameter_sha256": ["a" * 63 + "0", f"{step:064d}"], "rescored": {"reward": 0.0, "again": 0.0},
                 "recomputed": {"max_abs_diff": 0.0, "num_tokens": 9.0}}  # fmt: skip
        extra = {"val/reward/mean": 0.5} if step % 10 == 0 else {}
        records.append({"step": step, **values(rng, metrics, step), **extra, "audit": audit})
    write.lines(place / "metrics.jsonl", records)
    row = {"data_source": "math", "prompt": "How many? " * 30, "response": "So many. " * 300, "ground_truth": "4",
           "reward": 1.0, "reward_parts": {}, "response_length": 700, "policy_version": 3}  # fmt: skip
    for step in range(1, steps, 10):
        write.lines(
            place / "samples" / f"step_{step}.jsonl", [{"step": step, "uid": f"0-{n}", **row} for n in range(8)]
        )
    settings = {"trainer": {"total_training_steps": steps}, "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6}}}}
    (place / "run.json").write_text(json.dumps({"config": settings, "outcome": "finished"}))


@cache
def head(length: int) -> bytes:
    """What stands before a message of LENGTH bytes."""
    return write.record(bytes(length))[:12]


def tensorboard(place: Path, steps: int, metrics: list[str]) -> None:
    """As PyTorch's writer makes it."""
    rng = random.Random(0)
    place.mkdir(parents=True)
    bodies = {name: write.scalar(name, 0.0)[:-4] for name in (*metrics, "val/reward/mean")}
    with (place / "events.out.tfevents.1.host.1.0").open("wb") as file:
        file.write(write.start(1.0))
        for step in range(1, steps + 1):
            row = values(rng, metrics, step) | ({"val/reward/mean": 0.5} if step % 10 == 0 else {})
            for name, value in row.items():
                message = write.event(step / 7, step, bodies[name] + struct.pack("<f", value))
                file.write(head(len(message)) + message + bytes(4))


def wandb(place: Path, steps: int, metrics: list[str]) -> None:
    """One metric a line."""
    rng = random.Random(0)
    rows = (values(rng, metrics, step) for step in range(1, steps + 1))
    write.lines(
        place / "history.jsonl",
        [{"_step": step, name: value} for step, row in enumerate(rows, start=1) for name, value in row.items()],
    )


def nonfinite(place: Path, steps: int, metrics: list[str]) -> None:
    """With NaN from the middle on."""
    rng = random.Random(0)
    lost = {"actor/grad_norm": math.nan, "actor/pg_loss": math.nan}
    rows = ((step, values(rng, metrics, step)) for step in range(1, steps + 1))
    write.lines(
        place / "metrics.jsonl", [{"step": step, **row, **(lost if step > steps / 2 else {})} for step, row in rows]
    )


MAKERS = {"jsonl": jsonl, "tensorboard": tensorboard, "wandb": wandb, "nonfinite": nonfinite}


@dataclass
class Timed:
    """The least seconds, and seconds of the processor, of some times, and what came out the last time."""

    wall_s: float
    cpu_s: float
    result: Any

    def __str__(self) -> str:
        """Both times."""
        return f"{self.wall_s:.3f} s (processor {self.cpu_s:.3f})"


def timed(times: int, work: Callable[[], Any]) -> Timed:
    """WORK, done TIMES times, those of its child processes included."""
    found = Timed(math.inf, math.inf, None)
    for _ in range(times):
        begin, busy = time.perf_counter(), os.times()
        found.result = work()
        spent = sum(os.times()[:4]) - sum(busy[:4])
        found.wall_s, found.cpu_s = min(found.wall_s, time.perf_counter() - begin), min(found.cpu_s, spent)
    return found


def command(*words: str) -> int:
    """Run rlcheck as a user does; its exit code."""
    return subprocess.run([sys.executable, "-m", "rlcheck", *words], capture_output=True, check=False).returncode


def judge(facts: Any) -> int:
    """Run the checks of the command; how many there are."""
    from rlcheck import judging
    from rlcheck.checks import family_checks
    from rlcheck.facts.base import known
    from rlcheck.facts.document import Facts
    from rlcheck.playbook import Library

    found = [check for family in ("DRF", "RUN") for check in family_checks(family)]
    judging.judge(Facts(run=known(facts)), found, Library())
    return len(found)


def measure(kind: str, place: Path, steps: int, metrics: list[str], times: int) -> bool:
    """Make a run of KIND at PLACE and print how long each part of looking at it takes; whether it keeps to the bar."""
    from rlcheck.measure.run.read import read_training

    if not place.exists():
        MAKERS[kind](place, steps, metrics)
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 1e6
    reading = timed(times, lambda: read_training(place))
    facts = reading.result
    assert facts.num_steps == steps, facts.num_steps
    checks = timed(times, lambda: judge(facts))
    start = timed(times, lambda: command("--version"))
    whole = timed(times, lambda: command("run", str(place)))
    kept = whole.wall_s <= BAR_S or kind not in ("jsonl", "tensorboard")
    print(f"{kind}: {size:.1f} MB, {len(facts.curves)} metrics")
    print(f"  reading        {reading}\n  {checks.result} checks      {checks}\n  --version      {start}")
    print(f"  whole command  {whole}, exit code {whole.result}{'' if kept else ': OVER THE BAR'}")
    return kept


def main() -> int:
    """Measure what the command line asks for; 1 if the bar is not kept."""
    parser = argparse.ArgumentParser(description="Time rlcheck run on long runs.")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--metrics", type=int, default=64)
    parser.add_argument("--kinds", default=",".join(MAKERS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    print(
        f"{options.steps} steps of {options.metrics} metrics; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        kept = [
            measure(kind, root / kind, options.steps, names(options.metrics), options.times)
            for kind in options.kinds.split(",")
        ]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
