"""Curves of a run as small inline SVG pictures: downsampled with their extremes kept, values under the pointer."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from html import escape
from statistics import median

from rlcheck.facts.run import Curve
from rlcheck.report.topics.run import number

MAX_POINTS = 500
_WIDTH, _HEIGHT = 320, 130
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 18, 18
_BANDS = 40
"""So many places of a picture say their values when one points at them."""
STYLE = """
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 10px 18px; }
.charts figure { margin: 0; border: 1px solid var(--line); border-radius: 4px; padding: 6px 8px; }
figcaption { font-size: 13px; overflow-wrap: anywhere; } figcaption b { font-weight: 600; }
.curve { fill: none; stroke-width: 1.4; stroke-linejoin: round; } .a { stroke: var(--c0); } .b { stroke: var(--c1); }
.dot-a { fill: var(--c0); } .dot-b { fill: var(--c1); } .lost { stroke: var(--c6); stroke-width: 2; }
.since { stroke: var(--c6); stroke-dasharray: 3 3; } .band { fill: transparent; }
.band:hover { fill: var(--faint); fill-opacity: 0.18; } svg .end { fill: var(--faint); font-size: 10px; }
"""


def thinned(curve: Curve, most: int = MAX_POINTS) -> tuple[tuple[int, float], ...]:
    """At most `most` points of a curve, in order; of each part that is thinned, the lowest and the highest."""
    points = list(zip(curve.steps, curve.values, strict=True))
    if len(points) <= most:
        return tuple(points)
    parts = max(1, most // 2)
    kept: list[tuple[int, float]] = []
    for n in range(parts):
        part = points[n * len(points) // parts : (n + 1) * len(points) // parts]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return tuple(kept)


def figure(name: str, label: str, curves: Sequence[Curve], since: int | None = None, most: int = MAX_POINTS) -> str:
    """One picture of a metric, of one run or of two.

    Args:
        name: of the metric.
        label: in words, "" for the name alone.
        curves: of the runs, on the same scale; an empty one is left out.
        since: a step that is marked.
        most: points of a curve.
    """
    drawn = [curve for curve in curves if curve.values]
    steps = [step for curve in curves for step in (*curve.steps, *curve.nonfinite)]
    if not steps:
        return ""
    values = [value for curve in drawn for value in curve.values] or [0.0]
    box = _Box(min(steps), max(steps), min(values), max(values))
    body = [_path(curve, n, box, most) for n, curve in enumerate(curves) if curve.values]
    body += [_lost(step, box) for curve in curves for step in curve.nonfinite[:100]]
    if since is not None and box.first <= since <= box.last:
        x = box.x(since)
        body.append(f'<line class="since" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
    body += _labels(box) + _bands(curves, box)
    title = f"<b>{escape(label)}</b> {escape(name)}" if label else escape(name)
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">' + "".join(body) + "</svg>"
    return f"<figure>{svg}<figcaption>{title}</figcaption></figure>"


class _Box:
    """Where steps and values are in the picture."""

    def __init__(self, first: int, last: int, low: float, high: float) -> None:
        self.first, self.last, self.low, self.high = first, last, low, high

    def x(self, step: float) -> float:
        """Of a step; a single one is in the middle."""
        share = (step - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Of a value; a flat curve is in the middle."""
        span = self.high - self.low
        share = (value - self.low) / span if 0 < span < math.inf else 0.5
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _path(curve: Curve, number_of_run: int, box: _Box, most: int) -> str:
    letter = "ab"[number_of_run]
    points = thinned(curve, most)
    if len(points) == 1:
        return f'<circle class="dot-{letter}" cx="{box.x(points[0][0]):.1f}" cy="{box.y(points[0][1]):.1f}" r="2.5"/>'
    path = "L".join(f"{box.x(step):.1f} {box.y(value):.1f}" for step, value in points)
    return f'<path class="curve {letter}" d="M{path}"/>'


def _lost(step: int, box: _Box) -> str:
    x, y = box.x(step), _HEIGHT - _BOTTOM
    line = f'<line class="lost" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 5}" y2="{y + 3}">'
    return f"{line}<title>step {step}: not a number</title></line>"


def _labels(box: _Box) -> list[str]:
    return [
        f'<text class="end" x="{_LEFT}" y="11">{number(box.high)}</text>',
        f'<text class="end" x="{_LEFT}" y="{_HEIGHT - 5}">{number(box.low)}</text>',
        f'<text class="end" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">'
        f"steps {box.first} to {box.last}</text>",
    ]


def _bands(curves: Sequence[Curve], box: _Box) -> list[str]:
    """Parts of the picture that tell steps and values."""
    longest = max((curve for curve in curves), key=lambda curve: len(curve.steps))
    count = min(_BANDS, len(longest.steps))
    width = (_WIDTH - _LEFT - _RIGHT) / count if count else 0.0
    span = box.last - box.first + 1
    parts: list[str] = []
    for n in range(count):
        first, end = box.first + n * span // count, box.first + (n + 1) * span // count
        words = [w for m, curve in enumerate(curves) if (w := _words(curve, first, end, len(curves) > 1, m))]
        if words:
            steps = f"step {first}" if end - first == 1 else f"steps {first} to {end - 1}"
            place = f'x="{_LEFT + n * width:.1f}" y="{_TOP}" width="{width:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"'
            parts.append(f'<rect class="band" {place}><title>{steps}: {"; ".join(words)}</title></rect>')
    return parts


def _words(curve: Curve, first: int, end: int, several: bool, run: int) -> str:
    values = curve.values[bisect_left(curve.steps, first) : bisect_left(curve.steps, end)]
    if not values:
        return ""
    name = f"{'AB'[run]} " if several else ""
    if len(values) == 1:
        return f"{name}{number(values[0])}"
    return f"{name}{number(median(values))} ({number(min(values))} to {number(max(values))})"
