"""What is told of a GPU's memory while an engine sleeps, with a driver of our own in place of NVML's."""

from __future__ import annotations

from typing import Any

import pytest

from rltrain.config import load, resolve
from rltrain.config.resolve import Machine
from rltrain.core.nvml import Used
from rltrain.measure.rollout import trials

GIB = 1 << 30


class Engine:
    """Takes 50 GiB of the second GPU, and gives 48 back while it sleeps."""

    def __init__(self, forgets: bool) -> None:
        self.forgets, self.held, self.calls = forgets, 50, list[str]()

    def sleep(self) -> bool:
        self.held = 2 if self.forgets else 50
        return self.forgets

    def connect_sync(self, *_: object) -> None: ...

    def load_bucket(self, *_: object) -> None: ...

    def reset_prefix_cache(self) -> None: ...

    def wake(self, tag: str) -> None:
        self.calls.append(tag)
        self.held = 50


def slept(monkeypatch: pytest.MonkeyPatch, engine: Any) -> Any:
    before = (Used(70 * GIB, 80 * GIB), Used(GIB, 80 * GIB))
    monkeypatch.setattr(trials.nvml, "used", lambda: (before[0], Used((1 + engine.held) * GIB, 80 * GIB)))
    config = resolve(load("toy-grpo", ["actor_rollout_ref.rollout.name=hf"]), Machine("cpu", 0, 2))
    return trials.Trials(engine, config, None, (1, 2), before).sleep()["sleep"]


def test_the_gpu_of_the_engine_is_told_of_not_the_fullest(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(forgets=True)
    found = slept(monkeypatch, engine)
    sizes = [
        getattr(found.value, name) // GIB
        for name in ("before_start_bytes", "awake_bytes", "asleep_bytes", "again_bytes")
    ]
    assert sizes == [1, 51, 3, 51]
    assert engine.calls == ["weights", "kv_cache"]


def test_an_engine_that_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(forgets=False)
    assert "does not sleep" in slept(monkeypatch, engine).missing.reason
    assert engine.calls == []
