"""`--plot FILE.png|.html`: bandwidth over size against what is expected, and the pairs of nodes as a heat map."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcheck.cli.app import UserError
from rlcheck.collectives.expect import expectation
from rlcheck.facts.collectives import CollectiveFacts, GroupRun
from rlcheck.facts.document import Facts
from rlcheck.report.collective_exhibits import collectives_in, middle_curve, pair_bandwidths

_GB = 1e9


@dataclass(frozen=True)
class Curve:
    """One collective: `found` and `expected` are (bytes, GB/s), rising in size; `derived` marks a calculated floor."""

    collective: str
    found: tuple[tuple[int, float], ...]
    expected: tuple[tuple[int, float], ...]
    derived: bool = False


@dataclass(frozen=True)
class Panel:
    """The curves of one kind of group."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Heat:
    """Pairs of nodes: `values[i][j]` in GB/s, NaN where not measured, 0 where it hung or failed."""

    nodes: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


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
            from rlcheck.report.plot_page import page

            path.write_text(page(panels, heat, facts.node), encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror or error}; choose another place") from None


def panels_of(facts: Facts) -> tuple[Panel, ...]:
    """The curves over all nodes, and those inside of nodes (the middle of several)."""
    run = facts.collectives.value
    if run is None:
        return ()
    inner = [group for group in run.groups if len(group.nodes) == 1 and group.samples]
    outer = [group for group in run.groups if len(group.nodes) > 1 and group.phase != "pair" and group.samples]
    found = [_panel(facts, f"Over {len(group.nodes)} nodes, {_devices(run, group)}", [group]) for group in outer]
    if inner:
        where = f"Inside {inner[0].nodes[0]}" if len(inner) == 1 else f"Inside a node (middle of {len(inner)})"
        found.append(_panel(facts, f"{where}, {_devices(run, inner[0])}", inner))
    return tuple(found)


def _devices(run: CollectiveFacts, group: GroupRun) -> str:
    kinds = sorted({rank.device for rank in run.ranks if rank.rank in group.ranks})
    return f"{len(group.ranks)} × {' or '.join(kinds) or 'unknown'}"


def _panel(facts: Facts, title: str, groups: Sequence[GroupRun]) -> Panel:
    return Panel(title, tuple(_curve(facts, groups, name) for name in collectives_in(groups)))


def _curve(facts: Facts, groups: Sequence[GroupRun], collective: str) -> Curve:
    found = [(size, busbw / _GB) for size, (busbw, _) in middle_curve(groups, collective).items()]
    least = [(size, expectation(facts, groups[0], collective, size)) for size, _ in found]
    known = [(size, one) for size, one in least if one is not None]
    return Curve(
        collective=collective,
        found=tuple(found),
        expected=tuple((size, one.busbw / _GB) for size, one in known),
        derived=any(one.derived for _, one in known),
    )


def heat_of(facts: Facts) -> Heat | None:
    """The matrix of the pairs, None for fewer than three nodes."""
    values = pair_bandwidths(facts.collectives.value) if facts.collectives.value is not None else {}
    nodes = sorted({node for pair in values for node in pair})
    if len(nodes) < 3:
        return None
    rows = [tuple(values.get((min(a, b), max(a, b)), math.nan * _GB) / _GB for b in nodes) for a in nodes]
    return Heat(tuple(nodes), tuple(rows))


def size_label(num_bytes: float) -> str:
    """`8 B`, `64 KiB`, `4 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} GiB"


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
