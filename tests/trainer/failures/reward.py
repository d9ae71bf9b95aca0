"""A user's reward function that does by plan what rewards do wrong; the run's own metrics tell which step is scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,
    *,
    metrics: str,
    plan: dict[str, str],
) -> float:
    """Share of positions that are right; in a step that PLAN names: "huge" (or 0), "nan", or the file to make."""
    file = Path(metrics)
    # One line a step, and step 0 is there before the first step is scored.
    deed = plan.get(str(file.read_text().count("\n")), "") if file.exists() else ""
    if deed == "nan":
        return float("nan")
    if deed == "huge":
        return 3e38 * (sum(map(ord, solution_str)) % 2)
    if deed:
        Path(deed).touch()
    right = sum(found == wanted for found, wanted in zip(solution_str, ground_truth, strict=False))
    return right / len(ground_truth)
