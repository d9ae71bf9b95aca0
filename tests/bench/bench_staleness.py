"""Whether toy-ppo learns with bounded staleness: 0.9 in its number of steps and a fifth, on every seed, none too old.

    python tests/bench/bench_staleness.py [--bounds 2 4] [--seeds 1 2 3 4 5] [--dir DIR] [VALUE …]

Engines apart from ranks, one run after the other, on two otherwise idle CPU cores; prints one line for each as it ends,
and exits with 1 if a bar is missed. VALUEs, such as `actor_rollout_ref.rollout.name=hf`, go to each run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rltrain.records.run_dir import read_steps  # noqa: E402
from tests.bench.bench_toy import COMMAND, LEARNT, figures  # noqa: E402

STEPS = 90 * 6 // 5
"""Those of the recipe and a fifth."""
WIDTHS = {"bound": 5, "seed": 4, "before": 6, "last": 5, "best": 5, f"{LEARNT:g}_at": 6, "oldest": 6, "mean": 5,
          "parts": 5, "wall_s": 6, "ok": 3}  # fmt: skip
"""Heads of the table; `parts`: share of the answers that weights of several versions wrote."""


def show(cells: Sequence[str]) -> None:
    """Print CELLS in columns."""
    print("  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS.values(), strict=True)), flush=True)


def run(bound: int, seed: int, directory: Path, values: Sequence[str]) -> bool:
    """Run toy-ppo with BOUND and SEED into DIRECTORY, print its line; whether it holds."""
    own = (f"trainer.default_local_dir={directory}", f"trainer.seed={seed}", f"algorithm.max_staleness={bound}",
           f"trainer.total_training_steps={STEPS}", "actor_rollout_ref.hybrid_engine=false")  # fmt: skip
    begin = time.monotonic()
    with directory.with_suffix(".out").open("w") as out:
        code = subprocess.run([*COMMAND, "run", "toy-ppo", *own, *values], cwd=ROOT, stdout=out, stderr=out).returncode
    steps = read_steps(directory / "metrics.jsonl")
    found = figures(code, steps, time.monotonic() - begin)
    trained = [one for one in steps if one["step"]]
    oldest = max((one["training/policy_staleness/max"] for one in trained), default=float("nan"))
    means = [one["training/policy_staleness/mean"] for one in trained] or [float("nan")]
    parts = [one.get("rollout/interrupted_answers", 0.0) for one in trained] or [float("nan")]
    held = code == 0 and len(trained) == STEPS and found.best >= LEARNT and found.last >= LEARNT and oldest <= bound
    show([str(bound), str(seed), f"{found.before:.3f}", f"{found.last:.3f}", f"{found.best:.3f}",
          str(found.first_learnt or "-"), f"{oldest:g}", f"{sum(means) / len(means):.2f}",
          f"{sum(parts) / len(parts):.2f}", f"{found.wall_s:.0f}", "yes" if held else "NO"])  # fmt: skip
    return held


def main() -> int:
    """Run everything; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bounds", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--dir", type=Path, help="where the runs stay; default: a directory that is removed")
    parser.add_argument("values", nargs="*", help="further KEY=VALUE of each run")
    options = parser.parse_args()
    show(list(WIDTHS))
    with tempfile.TemporaryDirectory() as scratch:
        place = (options.dir or Path(scratch)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        held = [
            run(bound, seed, place / f"toy-ppo-{bound}-{seed}", options.values)
            for bound in options.bounds
            for seed in options.seeds
        ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
