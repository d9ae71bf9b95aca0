"""Sets the record of `rlcheck nccl` beside bare loops.

compare_collectives.py RECORD.json BARE.json [BARE.json ...]
"""

from __future__ import annotations

import json
import sys
from statistics import median


def main() -> None:
    """Prints a line for each collective and size; the last says the worst and the median difference."""
    record, *bare = [json.load(open(path)) for path in sys.argv[1:]]  # noqa: SIM115
    groups = record["nodes"][0]["collectives"]["value"]["groups"]
    group = next(group for group in reversed(groups) if group.get("samples"))
    ours = {(sample["collective"], sample["num_bytes"]): sample["busbw"] for sample in group["samples"]}
    theirs: dict[tuple[str, int], list[float]] = {}
    for run in bare:
        for row in run["rows"]:
            theirs.setdefault((row["collective"], row["bytes"]), []).append(row["busbw"])
    differences = []
    for key in sorted(ours.keys() & theirs.keys()):
        loop = median(theirs[key])
        differences.append(ours[key] / loop - 1)
        speeds = f"rlcheck {ours[key] / 1e9:7.1f} GB/s  bare {loop / 1e9:7.1f}"
        print(f"{key[0]:15} {key[1]:>11} {speeds}  {differences[-1]:+.1%}")
    large = [d for key, d in zip(sorted(ours.keys() & theirs.keys()), differences, strict=True) if key[1] >= 1 << 26]
    print(f"64 MiB and more: worst {max(map(abs, large)):.1%}, median {median(large):+.1%} of {len(large)}")


if __name__ == "__main__":
    main()
