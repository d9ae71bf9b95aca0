"""What `pair.sh` measured: rltrain and TRL, step end to step end, by token; starts and ends.

`pair.py METRICS OUTPUT TRL_STEPS STEPS BEGUN ENDED`: rltrain's metrics.jsonl and its output with seconds before each
line, TRL's steps, how many of them, and when both began and rltrain's command ended (seconds since 1970).
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

ANSWERS, TRL_TOKENS = 512, 64 + 512
"""Answers a step, and tokens of each with its prompt, as TRL's script asks for them."""
STAGES = ("gen", "old_log_prob", "update_actor", "update_weights", "adv", "reward", "audit")
THEIRS = ("vllm_generate", "generate_total", "rollout_phase", "sync_weights", "wake", "sleep", "reward")


def median(values: list[float]) -> str:
    """Return the median and what it is of."""
    return f"{statistics.median(values):8.3f} s   ({' '.join(f'{value:.2f}' for value in values)})" if values else "-"


def speeds(steps: list[dict[str, Any]], trl: list[dict[str, Any]], last: int) -> None:
    """Print both sides' steps after the second, and their ratio by token."""
    ours = [step for step in steps if 2 < step["step"] <= last]
    theirs = [step for step in trl if step["step"] > 2]
    print(f"rltrain, step end to step end    {median([step['timing_s/step'] for step in ours])}")
    for name in STAGES:
        print(f"  {name:30} {median([step[f'timing_s/{name}'] for step in ours if f'timing_s/{name}' in step])}")
    print(f"TRL, step end to step end        {median([step['total'] for step in theirs])}")
    for name in THEIRS:
        print(f"  {name:30} {median([step[name] for step in theirs if name in step])}")
    if ours and theirs:
        our_tokens = statistics.median(step["perf/total_num_tokens"] for step in ours)
        their_tokens = ANSWERS * TRL_TOKENS
        each = statistics.median(step["timing_s/step"] for step in ours) / our_tokens
        their_each = statistics.median(step["total"] for step in theirs) / their_tokens
        print(f"tokens a step: rltrain {our_tokens:.0f}, TRL {their_tokens}")
        print(f"seconds a token, rltrain over TRL: {each / their_each:.3f}")
        print(f"training/rollout_probs_diff_mean: {[step.get('training/rollout_probs_diff_mean') for step in ours]}")


def ends_of(output: str) -> list[float]:
    """Return when each step ended, from the first on; seconds since the command."""
    return [float(seconds) for seconds in re.findall(r"^ *([0-9.]+) step [1-9]\d*/", output, re.MULTILINE)]


def start_and_end(ends: list[float], trl: list[dict[str, Any]], whole: float) -> None:
    """Print from the command to the first step's end, and from the last one's to the command's."""
    if ends:
        first = trl[0]["wall"] if trl else math.nan
        print(f"command to the end of step 1: rltrain {ends[0]:.1f} s, TRL {first:.1f} s")
        print(f"last step's end to the command's end, with a checkpoint: {whole - ends[-1]:.1f} s")


def main(metrics: Path, output: Path, trl: Path, last: int, whole: float) -> None:
    """Print all of it."""
    steps = [record for record in map(json.loads, metrics.read_text().splitlines()) if record["step"] > 0]
    theirs: list[dict[str, Any]] = json.loads(trl.read_text()) if trl.exists() else []
    speeds(steps, theirs, last)
    start_and_end(ends_of(output.read_text(errors="replace")), theirs, whole)


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:4]]
    main(files[0], files[1], files[2], int(sys.argv[4]), float(sys.argv[6]) - float(sys.argv[5]))
