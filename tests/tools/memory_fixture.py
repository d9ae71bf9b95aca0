"""Measurements of `tests/bench/gpu/memory_runs.py` as a small fixture.

`python -m tests.tools.memory_fixture OUT.json IN.json...` writes it.

A case that stands in several files is taken from the last. Log-probabilities are kept where they were measured with the
optimizer's state beside them, as in every step but the first: in files in which an update comes before them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = ("load", "log-probs", "ref log-probs", "values", "critic update", "actor update", "weight sync", "rollout")
BROKEN = "out of memory"


def slim(phases: list[dict[str, Any]]) -> dict[str, Any]:
    """Phase to the allocator's and the device's peak in bytes; null for what ran out of memory."""
    names = [phase["name"] for phase in phases]
    updated = names.index("actor update") if "actor update" in names else len(names)
    found: dict[str, Any] = {}
    for place, phase in enumerate(phases):
        name = phase["name"]
        if name == BROKEN or phase.get("error"):
            found[BROKEN] = None
        elif name in KEPT and (place > updated or name in ("load", "critic update", "actor update")):
            found[name] = [phase.get("allocated_bytes", 0), phase["peak_bytes"]]
    return found


def main(out: Path, sources: list[Path]) -> None:
    """Write OUT: case to phase to numbers."""
    cases: dict[str, dict[str, Any]] = {}
    for source in sources:
        for name, answer in json.loads(source.read_text()).items():
            if "measured" in answer:
                cases[name] = slim(answer["measured"])
    lines = [f" {json.dumps(name)}: {json.dumps(cases[name])}" for name in sorted(cases)]
    note = json.dumps("One H200, torch 2.11.0+cu130, transformers 5.17, vLLM 0.26.0: phase to [allocated, device]")
    out.write_text(f'{{"note": {note}, "cases": {{\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
