"""`--plot FILE.png|.html`: bandwidth over size against what is expected, and the pairs of nodes as a heat map."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlcheck.errors import UserError
from rlcheck.facts.document import Facts
from rlcheck.report.pages.collectives_curves import Heat, Panel, heat_of, panels_of
from rlcheck.report.pages.collectives_page import page
from rlcheck.text import size_label


def write_plot(facts: Facts, path: Path) -> None:
    """Write the picture of a measurement; the suffix of `path` says which kind.

    Raises:
        UserError: no measurement, another suffix, no matplotlib (for .png), or a file that cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in (".png", ".html"):
        raise UserError(f"--plot {path}: give the file a name that ends in .png or .html")
    panels, heat = panels_of(facts), heat_of(facts)
    if not panels and heat is None:
        raise UserError(f"--plot {path}: nothing was measured that could be drawn; see the findings")
    try:
        if suffix == ".png":
            _write_png(panels, heat, path)
        else:
            path.write_text(page(panels, heat, facts.node), encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror or error}; choose another place") from None


def _write_png(panels: Sequence[Panel], heat: Heat | None, path: Path) -> None:
    figure_module = _matplotlib("matplotlib.figure")
    _matplotlib("matplotlib.backends.backend_agg")
    count = len(panels) + (heat is not None)
    figure: Any = figure_module.Figure(figsize=(9, 4.6 * count), layout="constrained")
    axes: Any = figure.subplots(count, 1, squeeze=False)
    for number, panel in enumerate(panels):
        _draw_curves(axes[number][0], panel)
    if heat is not None:
        _draw_heat(figure, axes[-1][0], heat)
    figure.savefig(path, dpi=110, format="png")


def _matplotlib(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"--plot needs matplotlib ({error}); install it with: pip install 'rlcheck[plot]', or name a .html file"
        ) from None


def _draw_curves(axis: Any, panel: Panel) -> None:
    for number, curve in enumerate(panel.curves):
        colour = f"C{number}"
        axis.plot(*zip(*curve.found, strict=True), marker="o", markersize=4, color=colour, label=curve.collective)
        if curve.expected:
            label = f"{curve.collective}, at least" + (" (derived)" if curve.derived else "")
            axis.plot(*zip(*curve.expected, strict=True), linestyle="--", color=colour, alpha=0.6, label=label)
    sizes = sorted({size for curve in panel.curves for size, _ in curve.found})
    axis.set_xscale("log", base=2)
    ticks = sizes[:: max(1, len(sizes) // 10)]
    axis.set_xticks(ticks, [size_label(size) for size in ticks], rotation=30, ha="right")
    axis.set_ylim(bottom=0)
    axis.set_title(panel.title)
    axis.set_xlabel("size")
    axis.set_ylabel("bus bandwidth, GB/s")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def _draw_heat(figure: Any, axis: Any, heat: Heat) -> None:
    image = axis.imshow(heat.values, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axis, label="GB/s")
    count = len(heat.nodes)
    step = max(1, count // 16)
    axis.set_xticks(range(0, count, step), heat.nodes[::step], rotation=45, ha="right")
    axis.set_yticks(range(0, count, step), heat.nodes[::step])
    axis.set_title("Best bandwidth between pairs of nodes (white: not measured)")
    if count <= 12:
        middle = max((v for row in heat.values for v in row if not math.isnan(v)), default=0.0) / 2
        for i, row in enumerate(heat.values):
            for j, value in enumerate(row):
                if not math.isnan(value):
                    colour = "white" if value < middle else "black"
                    axis.text(j, i, f"{value:.3g}" if value else "!", ha="center", va="center", color=colour)
