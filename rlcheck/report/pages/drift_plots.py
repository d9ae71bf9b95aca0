"""`rlcheck drift --plot FILE.png|.html`: histogram, scatter and growth of one measurement, or the trend over a run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlcheck.errors import UserError
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import Bin, DriftFacts
from rlcheck.facts.run import RunFacts
from rlcheck.report.topics.drift import span, trend


def write_plot(facts: Facts, path: Path) -> None:
    """Write the picture; the suffix of `path` says which kind.

    Raises:
        UserError: nothing to draw, no matplotlib (for .png), or a file that cannot be written.
    """
    drift, run = facts.drift.value, facts.run.value
    if (drift is None or drift.gap.value is None) and not (run is not None and trend(run)):
        raise UserError(f"--plot {path}: nothing was measured that could be drawn; see the findings")
    try:
        if path.suffix.lower() == ".png":
            _write_png(drift, run, path)
        else:
            from rlcheck.report.pages.drift_page import page

            path.write_text(page(facts), encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror or error}; choose another place") from None


def _write_png(drift: DriftFacts | None, run: RunFacts | None, path: Path) -> None:
    try:
        figure_module = importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise UserError(
            f"--plot needs matplotlib ({error}); install it with: pip install 'rlcheck[plot]', or name a .html file"
        ) from None
    if drift is not None:
        figure: Any = figure_module.Figure(figsize=(11, 8), layout="constrained")
        axes: Any = figure.subplots(2, 2)
        figure.suptitle(f"{drift.target or drift.model}: {drift.engine} {drift.engine_version} against training")
        _histogram(axes[0][0], drift)
        _scatter(axes[0][1], drift)
        _growth(axes[1][0], drift.by_position, "place in the response")
        _growth(axes[1][1], drift.by_length, "tokens of the sequence")
    else:
        assert run is not None
        names = trend(run)
        figure = figure_module.Figure(figsize=(10, 1.9 * len(names)), layout="constrained")
        axes = figure.subplots(len(names), 1, squeeze=False)
        for number, name in enumerate(names):
            axes[number][0].plot(run.curves[name].steps, run.curves[name].values, linewidth=1)
            axes[number][0].set_title(name, fontsize="small")
    figure.savefig(path, dpi=110, format="png")


def _histogram(axis: Any, drift: DriftFacts) -> None:
    bins = drift.histogram
    axis.bar(range(len(bins)), [one.num_tokens for one in bins], color="#4477aa")
    ticks = range(0, len(bins), max(1, len(bins) // 8))
    axis.set_xticks(list(ticks), [f"{bins[n].low:.0e}" for n in ticks], rotation=30, fontsize="small")
    if bins:
        axis.set_yscale("log")
        axis.set_ylim(0.7, 2 * max(1, *(one.num_tokens for one in bins)))
    axis.set_xlabel("|log p - log p'|, from")
    axis.set_ylabel("tokens")


def _scatter(axis: Any, drift: DriftFacts) -> None:
    if drift.points:
        axis.plot(*zip(*drift.points, strict=True), ".", markersize=3, color="#4477aa", alpha=0.6)
        low = min(min(point) for point in drift.points)
        axis.plot((low, 0), (low, 0), linewidth=0.8, color="#777777")
    axis.set_xlabel("log p in the engine")
    axis.set_ylabel("log p in training")


def _growth(axis: Any, bins: Sequence[Bin], label: str) -> None:
    filled = [one for one in bins if one.num_tokens]
    axis.plot(range(len(filled)), [one.probs_diff_mean for one in filled], marker="o", markersize=4, color="#aa3377")
    axis.set_xticks(range(len(filled)), [span(one) for one in filled], rotation=30, fontsize="small", ha="right")
    axis.set_ylim(0, 1.1 * max([one.probs_diff_mean for one in filled], default=1.0) or 1.0)
    axis.set_xlabel(label)
    axis.set_ylabel("mean |p - p'|")
