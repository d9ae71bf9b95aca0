"""The picture of a run's terminal, made again from what was recorded of a real run.

`docs/pictures/toy-ppo/` holds the lines that `rltrain run toy-ppo` printed before its table and after it, and of its
`metrics.jsonl` what the table shows (the last record whole). To record another run:

    rltrain run toy-ppo > out.txt
    python -m tests.tools.run_picture runs/rltrain/toy-ppo out.txt
    python -m tests.tools.build

and then the numbers in README.md, which `tests/tools/test_pages.py` holds against the record.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "toy-ppo"
COLUMNS = 80
SHOWN = {"step", "critic/score/mean", "val/reward/mean", "val/reward/best_constant", "val/reward/shuffled"}
TABLE_ROWS = 10


def records() -> list[dict[str, Any]]:
    """The recorded steps."""
    return [json.loads(line) for line in (RECORDED / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def svg() -> str:
    """The terminal at the end of the run, drawn by the code that drew it then."""
    from rltrain.controller.callbacks.base import StepRecord
    from rltrain.controller.callbacks.console import LiveConsole
    from rltrain.core.work import WorkFiles

    class Still(LiveConsole):
        """The table as it stands when the run has ended, without a terminal to draw on."""

        def picture(self, steps: list[dict[str, Any]]) -> RenderableType:
            """As after all STEPS."""
            self._total = int(steps[-1]["step"])
            for step in steps:
                self.on_step_end(StepRecord(int(step["step"]), {k: v for k, v in step.items() if isinstance(v, float)}))
            self.on_run_end("finished")
            return self._draw()

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    start = (RECORDED / "start.txt").read_text(encoding="utf-8").rstrip()
    console.print(Text(f"$ rltrain run toy-ppo\n{start}"))
    console.print(Still(console, WorkFiles({})).picture(records()))
    console.print(Text((RECORDED / "end.txt").read_text(encoding="utf-8").rstrip()))
    svg = console.export_svg(title="rltrain", unique_id="rltrain")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def record(run_directory: Path, printed: Path) -> None:
    """Cut the metrics of a run, and what it PRINTED into a pipe, down to what `svg` needs."""
    lines = (run_directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    cut = [{key: value for key, value in step.items() if key in SHOWN} for step in steps[:-TABLE_ROWS]]
    rows = [{key: value for key, value in step.items() if key in _of_the_table()} for step in steps[-TABLE_ROWS:-1]]
    kept = [*cut, *rows, steps[-1]]
    (RECORDED / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept), encoding="utf-8")
    words = printed.read_text(encoding="utf-8")
    start = re.search(r"^preflight:.*?(?=^step 0/)", words, re.MULTILINE | re.DOTALL)
    assert start is not None, f"{printed} does not hold the start of a run"
    # Paths of this machine, and waits that a terminal does not show.
    shown = [line for line in start[0].splitlines() if not re.match(r"run directory|an earlier run|.*, at most ", line)]
    (RECORDED / "start.txt").write_text("\n".join(shown) + "\n", encoding="utf-8")
    end = [line for line in words.splitlines() if line.startswith("finished ")]
    (RECORDED / "end.txt").write_text("\n".join(end) + "\n", encoding="utf-8")


def _of_the_table() -> set[str]:
    from rltrain.controller.callbacks.words import COLUMNS as TITLES

    return SHOWN | {column.metric for column in TITLES}


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
