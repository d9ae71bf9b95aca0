"""Whether `rlcheck memory-profile` says of reported out-of-memory runs that they do not fit: the bar of that report.

    python tests/bench/bench_reported_oom.py [--only NAME …]

The runs are in tests/bench/reported_oom: each one's file in its trainer's own form, which sets what the report says,
and `runs.json` with its address, GPUs, and where it broke; `answers`: to what the doctor asks for, from the report;
`release`: defaults of the trainer's release of that day, in today's words, from the source that it names; `read_as`:
that release, where its keys are known. Those of the `second` set were gathered on 2026-11-28 before anything was asked
of them; `first`: what the doctor then said. Sizes of models are those known by name: nothing is downloaded, no GPU is
asked. Prints a line for each: the fullest phase, its parts, what the GPU has, the answer; and the first score. A run
that the doctor predicts nothing of counts as missed, with what it says.
Exits with 1 if fewer than the bar do not fit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "tests" / "bench" / "reported_oom"
BAR = 0.8
"""Share of the reports that do not fit, at least."""
ANSWERS = {True: "fits", False: "does not fit", None: "not judged"}
PARTS = {
    "weights": "weights",
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "acts",
    "logits": "logits",
    "unsharded": "gathered",
    "buffers": "buffers",
    "kv_cache": "cache",
}
"""Kinds of owners that have a column; the others are one."""
WIDTHS = {"run": 14, "phase": 13, **dict.fromkeys(PARTS.values(), 8), "other": 6, "all": 7, "GPU": 6, "answer": 12}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def command(run: dict[str, Any]) -> list[str]:
    """What a user would ask of RUN."""
    hardware = run["hardware"]
    memory = "--gpu-mem" if hardware["gpu"].endswith("iB") else "--gpu"
    asked = [str(RUNS / run["file"]), memory, hardware["gpu"], "--framework", run.get("read_as", run["trainer"])]
    shape = ["--model-shape", run["model"], "--format", "json"]
    said = [*run.get("answers", []), *run.get("release", [])]
    return [sys.executable, "-m", "rlcheck", "memory-profile", *asked, *shape, *said]


def predict(run: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The prediction of RUN, empty where there is none; what was said instead."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "trainer")))
    environment = {**os.environ, **_OFFLINE, "PYTHONPATH": paths}
    done = subprocess.run(command(run), capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return {}, (done.stderr or done.stdout).strip()
    memory: dict[str, Any] = report["data"].get("memory", {}) if "data" in report else {}
    checks = [f"{one['id']}: {one.get('message', '')}" for one in report["checks"] if one["status"] != "pass"]
    return (memory, "") if memory.get("phases") else ({}, "; ".join(checks) or done.stderr.strip())


def row(run: dict[str, Any], memory: dict[str, Any]) -> list[str]:
    """One line of the table: the phase that needs most."""
    if not memory:
        return [run["name"], *("-" for _ in range(len(WIDTHS) - 2)), ANSWERS[None]]
    sizes = [{"phase": phase["name"], **_by_column(phase)} for phase in memory["phases"]]
    fullest = max(sizes, key=lambda one: sum(one[name] for name in (*PARTS.values(), "other")))
    parts = [fullest[name] for name in (*PARTS.values(), "other")]
    numbers = [f"{size / (1 << 30):.1f}" for size in (*parts, sum(parts), memory["usable_bytes"])]
    return [run["name"], fullest["phase"], *numbers, ANSWERS[memory["fits"]]]


def _by_column(phase: dict[str, Any]) -> dict[str, Any]:
    found = dict.fromkeys((*PARTS.values(), "other"), 0)
    for owner in phase["owners"]:
        found[PARTS.get(owner["kind"], "other")] += owner["num_bytes"]
    return found


def show(cells: list[str]) -> None:
    """Print CELLS in columns."""
    print("  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS.values(), strict=True)), flush=True)


def main() -> int:
    """Ask of every run; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of runs; default: all")
    options = parser.parse_args()
    runs = json.loads((RUNS / "runs.json").read_text(encoding="utf-8"))
    asked = [run for run in runs if not options.only or run["name"] in options.only]
    right, unsaid = 0, list[str]()
    show(list(WIDTHS))
    for run in asked:
        memory, said = predict(run)
        show(row(run, memory))
        right += bool(memory) and not memory["fits"]
        unsaid += [f"{run['name']}: {said}"] if said else []
    for line in unsaid:
        print(line)
    blind = [run["first"] for run in asked if "first" in run]
    print(f"of {len(blind)} of the second set, {blind.count(ANSWERS[False])} did not fit when first asked")
    print(f"{right} of {len(asked)} do not fit: {right / len(asked):.0%}, bar {BAR:.0%}")
    return 0 if right >= BAR * len(asked) else 1


if __name__ == "__main__":
    sys.exit(main())
