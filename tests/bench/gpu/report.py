"""Prints where the time of a run's steps went: `python report.py RUN_DIR [--skip N]`."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

STAGES = ("gen", "update_weights", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
OTHERS = (
    "timing_s/step",
    "perf/throughput",
    "perf/total_num_tokens",
    "perf/max_memory_allocated_gb",
    "perf/max_memory_reserved_gb",
    "perf/device_memory_used_gb",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_max",
    "training/rollout_log_probs_diff_mean",
    "actor/grad_norm",
    "actor/entropy",
)


def main(directory: Path, skip: int) -> None:
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [record for record in map(json.loads, lines) if record["step"] > skip]
    print(f"{directory}: medians over steps {steps[0]['step']} to {steps[-1]['step']}")
    for name in (*(f"timing_s/{stage}" for stage in STAGES), *OTHERS):
        values = [step[name] for step in steps if step.get(name) is not None]
        if values:
            print(f"  {name:42} {statistics.median(values):12.6g}   {' '.join(f'{value:.4g}' for value in values)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[3]) if sys.argv[2:3] == ["--skip"] else 2)
