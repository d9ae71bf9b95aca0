"""Compare the metrics of two runs, bit for bit: `python -m tests.tools.compare_metrics RUN_DIR OTHER_RUN_DIR`.

Of what cannot be the same twice (times, speed, memory) only the names are compared. Prints the first difference and
ends with 1, or the number of values that are the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rltrain.records.run_dir import read_steps
from tests.trainer.end_to_end.runs import repeatable


def first_difference(one: Path, other: Path) -> str | None:
    """In words; None if there is none."""
    runs = [read_steps(run / "metrics.jsonl") for run in (one, other)]
    for left, right in zip(*runs, strict=False):
        for name in sorted(left.keys() ^ right.keys()):
            return f"step {left['step']}: {name} is only in {one if name in left else other}"
        for name in repeatable(left):
            if repr(left[name]) != repr(right[name]):
                return f"step {left['step']}: {name} is {left[name]!r} in {one}, {right[name]!r} in {other}"
    if len(runs[0]) != len(runs[1]):
        return f"{one} has {len(runs[0])} steps, {other} {len(runs[1])}"
    return None


def main(arguments: list[str]) -> int:
    """The exit status."""
    one, other = map(Path, arguments)
    difference = first_difference(one, other)
    if difference is not None:
        print(difference)
        return 1
    steps = [repeatable(record) for record in read_steps(one / "metrics.jsonl")]
    print(f"{sum(map(len, steps))} values of {len(steps)} steps are the same")
    return 0 if steps else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
