"""The plot as one HTML page: inline SVG, colours for light and dark, tables of the numbers, nothing loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from rlcheck.report.pages.collectives_curves import Curve, Heat, Panel
from rlcheck.text import size_label

_WIDTH, _HEIGHT = 760, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 16, 56
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #c9d1d9; --faint: #57606a;
  --c0: #0969da; --c1: #bc4c00; --c2: #1a7f37; --c3: #8250df; --c4: #bf3989; --c5: #7d4e00; --c6: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --faint: #9198a1;
  --c0: #4493f8; --c1: #f0883e; --c2: #3fb950; --c3: #ab7df8; --c4: #db61a2; --c5: #d29922; --c6: #f85149; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 800px; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { color: var(--faint); }
div { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { border: 1px solid var(--line); padding: 2px 8px; text-align: right; } th:first-child { text-align: left; }
.grid { stroke: var(--line); } .found { fill: none; stroke-width: 2; } .least { fill: none; stroke-dasharray: 6 4;
  stroke-width: 1.5; }
"""


def page(panels: Sequence[Panel], heat: Heat | None, node: str) -> str:
    """The whole page as text."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>rlcheck nccl{' on ' + escape(node) if node else ''}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
        "<h1>Bandwidth of collectives</h1>",
        "<p>Bus bandwidth as nccl-tests counts it. Dashed: the least that is expected.</p>",
    ]
    for panel in panels:
        parts += [f"<h2>{escape(panel.title)}</h2>", _chart(panel), _curve_table(panel)]
    if heat is not None:
        parts += ["<h2>Pairs of nodes</h2>", "<p>Best bandwidth in GB/s; ! hung or failed.</p>", _heat_table(heat)]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _chart(panel: Panel) -> str:
    points = [point for curve in panel.curves for point in (*curve.found, *curve.expected)]
    sizes = sorted({size for size, _ in points})
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])
    top = _round_up(max((value for _, value in points), default=1.0))
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(size: float, value: float) -> tuple[float, float]:
        across = (math.log2(size) - low) / (high - low) if high > low else 0.5
        return _LEFT + across * inner_width, _TOP + (1 - value / top) * inner_height

    body: list[str] = []
    for part in range(5):
        x, y = place(sizes[0], top * part / 4)
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * part / 4:.3g}</text>')
    for size in sizes[:: max(1, math.ceil(len(sizes) / 9))]:
        x, _ = place(size, 0)
        body.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{size_label(size)}</text>')
    for number, curve in enumerate(panel.curves):
        body += _lines(curve, number % 7, place)
    body += _legend(panel)
    label = (
        f'<text transform="translate(14 {_TOP + inner_height / 2:.0f}) rotate(-90)" text-anchor="middle">GB/s</text>'
    )
    title = f"<title>{escape(panel.title)}: bus bandwidth over size</title>"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{title}\n' + "\n".join([label, *body]) + "\n</svg>"


def _lines(curve: Curve, colour: int, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    found = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in curve.found)
    parts = [f'<polyline class="found" style="stroke: var(--c{colour})" points="{found}"/>']
    if curve.expected:
        least = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in curve.expected)
        parts.append(f'<polyline class="least" style="stroke: var(--c{colour})" points="{least}"/>')
    for point in curve.found:
        x, y = place(*point)
        hint = f"<title>{escape(curve.collective)} {size_label(point[0])}: {point[1]:.4g} GB/s</title>"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill: var(--c{colour})">{hint}</circle>')
    return parts


def _legend(panel: Panel) -> list[str]:
    parts: list[str] = []
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(panel.curves))
    for number, curve in enumerate(panel.curves):
        x, y = _LEFT + number * step, _HEIGHT - 12
        parts.append(f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" style="fill: var(--c{number % 7})"/>')
        parts.append(f'<text x="{x + 15:.0f}" y="{y}">{escape(curve.collective)}</text>')
    return parts


def _curve_table(panel: Panel) -> str:
    """Found, and below it in brackets the least that is expected, for each size."""
    sizes = sorted({size for curve in panel.curves for size, _ in curve.found})
    head = "".join(f"<th>{escape(curve.collective)}</th>" for curve in panel.curves)
    rows: list[str] = []
    for size in sizes:
        cells = "".join(f"<td>{_cell(curve, size)}</td>" for curve in panel.curves)
        rows.append(f"<tr><th>{size_label(size)}</th>{cells}</tr>")
    derived = (
        "<p>Some of what is expected is derived, not measured.</p>" if any(c.derived for c in panel.curves) else ""
    )
    return f"<div><table>\n<tr><th>GB/s (at least)</th>{head}</tr>\n" + "\n".join(rows) + f"\n</table></div>{derived}"


def _cell(curve: Curve, size: int) -> str:
    found, expected = dict(curve.found), dict(curve.expected)
    least = f" ({expected[size]:.0f})" if size in expected else ""
    return f"{found[size]:.4g}{least}" if size in found else ""


def _heat_table(heat: Heat) -> str:
    top = max((value for row in heat.values for value in row if not math.isnan(value)), default=0.0)
    head = "".join(f"<th>{escape(node)}</th>" for node in heat.nodes)
    rows = [
        f"<tr><th>{escape(node)}</th>" + "".join(_heat_cell(value, top) for value in row) + "</tr>"
        for node, row in zip(heat.nodes, heat.values, strict=True)
    ]
    return f"<div><table>\n<tr><th></th>{head}</tr>\n" + "\n".join(rows) + "\n</table></div>"


def _heat_cell(value: float, top: float) -> str:
    """A shade of red that grows with what is missing: it is seen on white and on black."""
    if math.isnan(value):
        return "<td></td>"
    if value <= 0:
        return '<td style="background: var(--c6); color: var(--paper)">!</td>'
    missing = round(100 * (1 - value / top)) if top else 0
    return f'<td style="background: color-mix(in srgb, var(--c6) {missing}%, var(--paper))">{value:.3g}</td>'


def _round_up(value: float) -> float:
    """A round number above `value` for the end of the axis."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 4, 5, 8, 10) if step * unit >= value)
