"""Whether the toy recipes learn, on every seed: the bars of `rltrain run toy-ppo` and `toy-grpo`, and their figures.

    python tests/bench/bench_toy.py [--recipes toy-ppo toy-grpo] [--seeds 1 2 3 4 5] [--dir DIR]

Runs one after the other, on two otherwise idle CPU cores; prints one line for each as it ends, and exits with 1 if a
bar is missed. A run takes about two minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rltrain.records.run_dir import read_steps  # noqa: E402

COMMAND = (sys.executable, "-m", "rltrain")
BLIND = 0.35
"""At most: before RL, with the best constant answer, with answers to other prompts."""
LEARNT = 0.9
"""At least: the last validation and the best one."""
PROBS_DIFF, LOG_PROBS_DIFF = 5e-6, 1e-5
"""At most, at any step: mean difference between engine and actor, in float32."""
WALL_S = 300.0
COLUMNS = {
    "recipe": 10,
    "seed": 4,
    "before": 6,
    "last": 5,
    "best": 5,
    "best_const": 10,
    "shuffled": 8,
    "probs_diff": 10,
    "|dlogp|": 8,
    "wall_s": 6,
    f"{LEARNT:g}_at": 6,
    "ok": 3,
}
"""Heads of the table, and their widths."""


@dataclass(frozen=True)
class Figures:
    """One run."""

    code: int
    before: float
    last: float
    best: float
    best_constant: float
    shuffled: float
    probs_diff: float
    log_probs_diff: float
    wall_s: float
    first_learnt: int | None
    """The first validated step at `LEARNT` or more."""

    @property
    def misses(self) -> list[str]:
        """The bars that the run missed."""
        bars = {
            f"exit code {self.code}": self.code == 0,
            f"before > {BLIND}": self.before <= BLIND,
            f"last < {LEARNT}": self.last >= LEARNT,
            f"best < {LEARNT}": self.best >= LEARNT,
            f"best_constant > {BLIND}": self.best_constant <= BLIND,
            f"shuffled > {BLIND}": self.shuffled <= BLIND,
            f"probs_diff > {PROBS_DIFF:g}": self.probs_diff <= PROBS_DIFF,
            f"|dlogp| > {LOG_PROBS_DIFF:g}": self.log_probs_diff <= LOG_PROBS_DIFF,
            f"wall > {WALL_S:g} s": self.wall_s <= WALL_S,
        }
        return [words for words, held in bars.items() if not held]


def run(recipe: str, seed: int, directory: Path) -> Figures:
    """Run RECIPE with SEED into DIRECTORY, as a user would."""
    values = (f"trainer.default_local_dir={directory}", f"trainer.seed={seed}")
    begin = time.monotonic()
    with directory.with_suffix(".out").open("w") as out:
        done = subprocess.run([*COMMAND, "run", recipe, *values], cwd=ROOT, stdout=out, stderr=out, check=False)
    return figures(done.returncode, read_steps(directory / "metrics.jsonl"), time.monotonic() - begin)


def figures(code: int, steps: Sequence[dict[str, Any]], wall_s: float) -> Figures:
    """What a run with exit code CODE and these STEPS of `metrics.jsonl` has reached; NaN where it has no number."""

    def column(name: str) -> list[float]:
        return [step[name] for step in steps if step.get(name) is not None] or [float("nan")]

    rewards = column("val/reward/mean")
    learnt = [step["step"] for step in steps if (step.get("val/reward/mean") or 0.0) >= LEARNT]
    return Figures(
        code=code,
        before=rewards[0],
        last=rewards[-1],
        best=max(rewards),
        best_constant=max(column("val/reward/best_constant")),
        shuffled=max(column("val/reward/shuffled")),
        probs_diff=max(column("training/rollout_probs_diff_mean")),
        log_probs_diff=max(column("training/rollout_log_probs_diff_mean")),
        wall_s=wall_s,
        first_learnt=min(learnt, default=None),
    )


def row(recipe: str, seed: int, found: Figures) -> list[str]:
    """One line of the table."""
    rewards = (found.before, found.last, found.best, found.best_constant, found.shuffled)
    differences = (found.probs_diff, found.log_probs_diff)
    return [
        recipe,
        str(seed),
        *(f"{value:.3f}" for value in rewards),
        *(f"{value:.1e}" for value in differences),
        f"{found.wall_s:.0f}",
        "-" if found.first_learnt is None else str(found.first_learnt),
        "yes" if not found.misses else "NO",
    ]


def show(cells: Sequence[str]) -> None:
    """Print CELLS in columns."""
    print("  ".join(cell.rjust(width) for cell, width in zip(cells, COLUMNS.values(), strict=True)), flush=True)


def main() -> int:
    """Run everything; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["toy-ppo", "toy-grpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--dir", type=Path, help="where the runs stay; default: a directory that is removed")
    options = parser.parse_args()
    missed: list[str] = []
    show(list(COLUMNS))
    with tempfile.TemporaryDirectory() as scratch:
        place = (options.dir or Path(scratch)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        for recipe in options.recipes:
            for seed in options.seeds:
                found = run(recipe, seed, place / f"{recipe}-{seed}")
                show(row(recipe, seed, found))
                missed += [f"{recipe} seed {seed}: {words}" for words in found.misses]
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
