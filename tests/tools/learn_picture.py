"""The curve of `arithmetic-grpo`, drawn from what `tests/bench/gpu/learn.sh` measured.

`docs/pictures/arithmetic/record.json` is that script's record. To put another there: copy it, then
`python -m tests.tools.build`, and then the figures in `docs/trainer/sft.md`, which a test holds against it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "arithmetic" / "record.json"
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 30, 50
BLUE, ORANGE, GREY = "#1f6feb", "#d9730d", "#6e7781"


@dataclass(frozen=True)
class Axes:
    """From steps and shares to places in the picture."""

    steps: int

    def x(self, step: float) -> float:
        """Pixels from the left."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * step / self.steps, 1)

    def y(self, share: float) -> float:
        """Pixels from the top."""
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)


def record() -> dict[str, Any]:
    """What was measured."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def validated(found: dict[str, Any]) -> list[tuple[int, float]]:
    """Step and held-out pass@1 of each validation of RL."""
    return [(one["step"], one["val/reward/mean"]) for one in found["rl"]["curve"] if "val/reward/mean" in one]


def svg() -> str:
    """Held-out pass@1 over steps of RL; beside it supervised training, and a policy that is blind to its prompt."""
    found = record()
    points, rl = validated(found), found["rl"]
    axes = Axes(rl["total"])
    blind = max(one["val/reward/best_constant"] for one in rl["curve"] if "val/reward/best_constant" in one)
    other, other_s = found["scored"]["val/reward/mean"], found["continued"]["seconds"]
    line = " ".join(f"{axes.x(step)},{axes.y(share)}" for step, share in points)
    half, end = axes.x(rl["resumed_at"]), axes.x(axes.steps)
    parts = [
        *_frame(axes),
        f'<line x1="{half}" y1="{TOP}" x2="{half}" y2="{axes.y(0)}" stroke="{GREY}" stroke-dasharray="2 4"/>',
        _text(half + 5, TOP + 12, "stopped and resumed", GREY),
        f'<line x1="{LEFT}" y1="{axes.y(points[0][1])}" x2="{end}" y2="{axes.y(other)}" stroke="{ORANGE}" '
        'stroke-width="2" stroke-dasharray="6 4"/>',
        _text(end - 5, axes.y(other) - 8, f"supervised training, {other_s:.0f} s: {other:.2f}", ORANGE, "end"),
        f'<line x1="{LEFT}" y1="{axes.y(blind)}" x2="{end}" y2="{axes.y(blind)}" stroke="{GREY}" stroke-width="2"/>',
        _text(end - 5, axes.y(blind) - 8, f"blind to the prompt: {blind:.2f}", GREY, "end"),
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2.5"/>',
        *(f'<circle cx="{axes.x(step)}" cy="{axes.y(share)}" r="3.5" fill="{BLUE}"/>' for step, share in points),
        _text(axes.x(points[0][0]) + 8, axes.y(points[0][1]) - 10, f"{points[0][1]:.2f}", BLUE),
        _text(end - 5, axes.y(points[-1][1]) + 20, f"GRPO: {points[-1][1]:.2f}", BLUE, "end"),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head, back, *parts, "</svg>", ""])


def _frame(axes: Axes) -> list[str]:
    """Axes, their ticks and titles."""
    parts: list[str] = []
    for tenth in range(0, 11, 2):
        y = axes.y(tenth / 10)
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#d0d7de"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tenth / 10:.1f}", "#24292f", "end"))
    for step in range(0, axes.steps + 1, 10):
        parts.append(_text(axes.x(step), HEIGHT - BOTTOM + 18, str(step), "#24292f", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "steps of RL", "#24292f", "middle"))
    parts.append(_text(LEFT, TOP - 12, "pass@1 on held-out sums of five digits", "#24292f"))
    return parts


def _text(x: float, y: float, words: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="13" fill="{colour}" text-anchor="{anchor}">{words}</text>'
