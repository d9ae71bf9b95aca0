"""Measure the cases of `memory_configs.py` on this machine's GPUs: `memory_runs.py OUT.json [--engine] NAME...`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec

from rltrain.core.errors import UserError
from rltrain.measure.memory.plugin import run
from tests.bench.gpu import memory_configs


def main(out: Path, names: list[str], engine: bool) -> None:
    """One line of progress for each case; what is measured is written after each."""
    found: dict[str, object] = json.loads(out.read_text()) if out.exists() else {}
    cases = {c.name: c for group in memory_configs.GROUPS.values() for c in group}
    wanted = [case for name in names for case in memory_configs.GROUPS.get(name, [cases.get(name)]) if case]
    for case in wanted:
        began = time.perf_counter()
        request = {"run": msgspec.to_builtins(case.facts()), "engine": engine}
        try:
            found[case.name] = run(request, lambda message: None)
        except UserError as error:
            found[case.name] = {"error": str(error)}
        out.write_text(json.dumps(found, indent=1))
        peaks = [f"{p['name']} {p['peak_bytes'] / 2**30:.1f}" for p in found[case.name].get("measured", [])]
        print(
            case.name,
            f"{time.perf_counter() - began:.0f} s",
            found[case.name].get("error", ", ".join(peaks)),
            flush=True,
        )


if __name__ == "__main__":
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    main(Path(words[0]), words[1:], "--engine" in options)
