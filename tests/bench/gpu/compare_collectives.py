"""Sets records of `rlcheck nccl` beside bare loops, the middle of each: `compare_collectives.py FILE.json ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

Speeds = dict[tuple[str, int], list[float]]
LARGE_BYTES = 1 << 26


def main() -> None:
    """Prints a line for each collective and size; the last says the worst and the median difference."""
    ours: Speeds = {}
    bare: Speeds = {}
    for path in map(Path, sys.argv[1:]):
        content = json.loads(path.read_text())
        if "nodes" in content:
            groups = content["nodes"][0]["collectives"]["value"]["groups"]
            group = next(group for group in reversed(groups) if group.get("samples"))
            add(ours, [(row["collective"], row["num_bytes"], row["busbw"]) for row in group["samples"]])
        else:
            add(bare, [(row["collective"], row["bytes"], row["busbw"]) for row in content["rows"]])
    large: list[float] = []
    for name, num_bytes in sorted(ours.keys() & bare.keys()):
        mine, loop = ours[name, num_bytes], bare[name, num_bytes]
        difference = median(mine) / median(loop) - 1
        print(f"{name:15} {num_bytes:>11} rlcheck {spread(mine)} GB/s  bare {spread(loop)}  {difference:+.1%}")
        large += [difference] * (num_bytes >= LARGE_BYTES)
    print(f"64 MiB and more: worst {max(map(abs, large)):.1%}, median {median(large):+.1%} of {len(large)}")


def add(speeds: Speeds, rows: list[tuple[str, int, float]]) -> None:
    """Adds the bus bandwidths of one run."""
    for name, num_bytes, busbw in rows:
        speeds.setdefault((name, num_bytes), []).append(busbw)


def spread(values: list[float]) -> str:
    """The middle, and from where to where it went."""
    return f"{median(values) / 1e9:6.1f} ({min(values) / 1e9:.1f} - {max(values) / 1e9:.1f})"


if __name__ == "__main__":
    main()
