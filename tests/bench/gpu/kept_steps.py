"""What a step costs that is kept as a capsule, beside those that are not: `kept_steps.py RUN_DIR [SKIP]`.

Best where every second step was kept. Steps up to SKIP (2) are left out; what is still written while the next step runs
counts in that one, so both the kept steps and pairs of a kept one and the next are shown. Exit code 1 above 2 %.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

BAR = 0.02


def shown(name: str, kept: list[float], others: list[float]) -> float:
    """Print both medians and means; the share by which the mean of KEPT is above that of OTHERS."""
    share = statistics.mean(kept) / statistics.mean(others) - 1 if statistics.mean(others) else 0.0
    print(f"{name:22} kept  median {statistics.median(kept):7.3f}  mean {statistics.mean(kept):7.3f} s")
    print(
        f"{'':22} other median {statistics.median(others):7.3f}  mean {statistics.mean(others):7.3f} s   {share:+.1%}"
    )
    return share


def main(directory: Path, skip: int) -> bool:
    """Print the table; whether a step without its generation is longer by the bar at most."""
    kept_steps = {int(one.name.removeprefix("step_")) for one in directory.glob("capsules/step_*")}
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps: list[dict[str, Any]] = [record for record in map(json.loads, lines) if record["step"] > skip]
    for name in sorted({name for step in steps for name in step if name.startswith("timing_s/")}):
        groups: list[list[float]] = [[], []]
        for step in steps:
            groups[step["step"] in kept_steps].append(step.get(name, 0.0))
        shown(name, groups[1], groups[0])
    # Generation varies from step to step by more than the bar, whether a step is kept or not.
    without = {step["step"]: step["timing_s/step"] - step["timing_s/gen"] for step in steps}
    whole = {step["step"]: step["timing_s/step"] for step in steps}
    shares: list[float] = []
    for name, seconds in (("without generation", without), ("whole steps", whole)):
        alone = [value for number, value in seconds.items() if {number, number - 1}.isdisjoint(kept_steps)]
        after = [value for number, value in seconds.items() if number - 1 in kept_steps and number not in kept_steps]
        kept = [value for number, value in seconds.items() if number in kept_steps]
        others = alone or after
        shares.append(shown(f"{name}, {'alone' if alone else 'after'}", kept, others))
        if alone and after:
            shown("  and the step after", after, alone)
    return shares[0] <= BAR


if __name__ == "__main__":
    sys.exit(0 if main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2) else 1)
