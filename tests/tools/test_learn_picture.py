"""The curve of `arithmetic-grpo`: drawn from the record that the bench writes, and what the page says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.tools import learn_picture

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trainer" / "sft.md"


def made() -> dict[str, Any]:
    """A record as `tests/bench/gpu/learn.py` writes it."""
    curve: list[dict[str, float]] = [{"step": step, "seconds": 50.0 + step} for step in range(41)]
    for point in curve[::4]:
        point |= {"val/reward/mean": 0.4 + 0.014 * point["step"], "val/reward/best_constant": 0.01}
    rl = {"total": 40, "steps": 40, "resumed_at": 20, "seconds": 200.0, "curve": curve}
    return {"rl": rl, "scored": {"val/reward/mean": 0.41}, "continued": {"seconds": 199.4}}


def test_the_picture_has_the_curve_and_what_is_beside_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(made()), encoding="utf-8")
    monkeypatch.setattr(learn_picture, "RECORD", file)
    root = ElementTree.fromstring(learn_picture.svg())
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"0.40", "GRPO: 0.96", "supervised training, 199 s: 0.41", "blind to the prompt: 0.01"} <= {*words}
    (line,) = (element for element in root.iter() if element.tag.endswith("polyline"))
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == 11
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_figures_of_the_page_are_those_of_the_record() -> None:
    found = learn_picture.record()
    rl, points = found["rl"], learn_picture.validated(found)
    said = re.search(r"went from (\S+) to (\S+) in (\d+) steps and (\d+) seconds", " ".join(PAGE.read_text().split()))
    assert said is not None
    assert said.groups() == (f"{points[0][1]:.2f}", f"{points[-1][1]:.2f}", str(rl["steps"]), f"{rl['seconds']:.0f}")
