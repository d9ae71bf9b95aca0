"""`--measure`: what the plug-in is asked, what becomes of its answer, and of its silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rlcheck.cli import memory_profile
from rlcheck.cli.requests.configs import ProfileRequest, SourceRequest
from rlcheck.errors import UserError
from rlcheck.measure import plugin
from rlcheck.measure.plugin import ProbeFailed
from tests.measure.memory.samples import GIB, H200, memory, run

REQUEST = ProfileRequest(source=SourceRequest("run.yaml"), measure=True)


def test_the_plug_in_gets_the_run_and_its_answer_stands_beside_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(python: Sequence[str], name: str, request: dict[str, Any], **_: Any) -> dict[str, Any]:
        asked.append((name, request))
        return {"measured": [{"name": "rollout", "peak_bytes": 90 * GIB}], "notes": ["torch 2.11"]}

    monkeypatch.setattr(plugin, "run_probe", answer)
    found = memory_profile._measured(REQUEST, run(), memory())
    assert [(one.name, one.peak_bytes) for one in found.measured] == [("rollout", 90 * GIB)]
    assert found.notes == ("torch 2.11",)
    ((name, request),) = asked
    assert (name, request["gpu_bytes"]) == ("memory", H200)
    assert request["run"]["spec"]["gpus_per_node"] == 4


def test_a_plug_in_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> dict[str, Any]:
        raise ProbeFailed("plug-in memory is not installed in /usr/bin/python3", "missing")

    monkeypatch.setattr(plugin, "run_probe", fail)
    with pytest.raises(UserError, match="--measure: plug-in memory is not installed"):
        memory_profile._measured(REQUEST, run(), memory())


def test_an_answer_of_another_shape_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "run_probe", lambda *_, **__: {"measured": [{"peak": 1}]})
    with pytest.raises(UserError, match="answered in a way"):
        memory_profile._measured(REQUEST, run(), memory())
