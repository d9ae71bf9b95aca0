"""The page of what users hit: each row of `tests/rows/table.py`, the command that answers, the tests that prove it."""

from __future__ import annotations

from tests.rows.marks import marked
from tests.rows.table import ROWS


def rows_page() -> str:
    """Return the page in Markdown; its links lead from `build/docs` or `docs` to the tests."""
    tests = marked()
    lines = ["# What users hit, and which test proves the answer", ""]
    lines += ["| row | what the user sees | command that answers | tests |", "|---|---|---|---|"]
    for row, (sees, command) in ROWS.items():
        proofs = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests.get(row, ()))
        lines.append(f"| {row} | {sees} | `{command}` | {proofs} |")
    return "\n".join(lines) + "\n"
