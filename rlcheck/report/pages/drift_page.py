"""A measurement of drift, or the trend over a run, as one HTML page: inline SVG, light and dark, nothing loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rlcheck.facts.document import Facts
from rlcheck.facts.drift import Bin, DriftFacts
from rlcheck.report.pages import run_curves
from rlcheck.report.pages.parts import MORE_STYLE, head, table
from rlcheck.report.topics.drift import exhibits, headline, span, trend
from rlcheck.report.topics.run import number
from rlcheck.report.wording import clean

_WIDTH, _HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 12, 40
_MAX_POINTS = 2000
_STYLE = """
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(380px, 1fr)); gap: 12px; }
.pictures figure { margin: 0; } .bar { fill: var(--c0); } .point { fill: var(--c0); fill-opacity: 0.55; }
.same { stroke: var(--faint); stroke-dasharray: 4 4; } .axis { stroke: var(--line); } figcaption { font-size: 13px; }
"""


def page(facts: Facts) -> str:
    """The whole page as text."""
    drift, run = facts.drift.value, facts.run.value
    subject = clean(drift.target if drift is not None else run.source if run is not None else "")
    parts = [head(f"rlcheck drift {subject}", MORE_STYLE + run_curves.STYLE + _STYLE), f"<h1>{escape(subject)}</h1>",
             f"<p>{escape(clean(headline(facts)))}</p>"]  # fmt: skip
    if drift is not None:
        parts += ['<div class="pictures">', *_pictures(drift), "</div>", *map(table, exhibits(facts))]
    elif run is not None:
        figures = [run_curves.figure(name, "", [run.curves[name]]) for name in trend(run)]
        parts += ['<div class="charts">', *figures, "</div>"]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _pictures(drift: DriftFacts) -> list[str]:
    tokens = [math.log10(one.num_tokens + 1) for one in drift.histogram]
    found = [
        _bars(drift.histogram, tokens, "tokens by |log p - log p'| (height: logarithm of their number)", "tokens"),
        _scatter(drift.points),
        _bars(drift.by_position, [one.probs_diff_mean for one in drift.by_position],
              "mean |p - p'| by place in the response", "mean"),
        _bars(drift.by_length, [one.probs_diff_mean for one in drift.by_length],
              "mean |p - p'| by length of the sequence", "mean"),
    ]  # fmt: skip
    return [picture for picture in found if picture]


def _bars(bins: Sequence[Bin], heights: Sequence[float], caption: str, what: str) -> str:
    if not bins or not max(heights, default=0.0) > 0:
        return ""
    top, width = max(heights), (_WIDTH - _LEFT - _RIGHT) / len(bins)
    parts: list[str] = []
    for n, (one, height) in enumerate(zip(bins, heights, strict=True)):
        size = height / top * (_HEIGHT - _TOP - _BOTTOM)
        x, y = _LEFT + n * width, _HEIGHT - _BOTTOM - size
        words = f"{span(one)}: {one.num_tokens} tokens, mean |p - p'| {number(one.probs_diff_mean)}"
        parts.append(f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, width - 2):.1f}" '
                     f'height="{size:.1f}"><title>{escape(words)}</title></rect>')  # fmt: skip
    labels = [_text(_LEFT, _HEIGHT - 22, span(bins[0])), _text(_WIDTH - _RIGHT, _HEIGHT - 22, span(bins[-1]), "end")]
    if what == "mean":
        labels.append(_text(_LEFT - 6, _TOP + 10, number(top), "end"))
    return _figure([*parts, *labels], caption)


def _scatter(points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    shown = points[:: max(1, len(points) // _MAX_POINTS)]
    low = min(min(point) for point in shown) or -1.0

    def place(value: float, start: float, end: float) -> float:
        return start + (value - low) / -low * (end - start)

    dots = [f'<circle class="point" cx="{place(a, _LEFT, _WIDTH - _RIGHT):.1f}" '
            f'cy="{place(b, _HEIGHT - _BOTTOM, _TOP):.1f}" r="1.8"/>' for a, b in shown]  # fmt: skip
    line = f'<line class="same" x1="{_LEFT}" y1="{_HEIGHT - _BOTTOM}" x2="{_WIDTH - _RIGHT}" y2="{_TOP}"/>'
    labels = [_text(_LEFT, _HEIGHT - 22, number(low)), _text(_WIDTH - _RIGHT, _HEIGHT - 22, "0", "end")]
    return _figure([line, *dots, *labels], "log p in the engine (across) and in training (up); dashed: the same")


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>'


def _figure(body: Sequence[str], caption: str) -> str:
    axis = (f'<line class="axis" x1="{_LEFT}" y1="{_HEIGHT - _BOTTOM}" x2="{_WIDTH - _RIGHT}" '
            f'y2="{_HEIGHT - _BOTTOM}"/>')  # fmt: skip
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(caption)}">{axis}{"".join(body)}</svg>'
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
