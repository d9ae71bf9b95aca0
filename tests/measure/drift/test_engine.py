"""The doctor's side: what the plug-in is asked, and what becomes of its answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.base import MissingKind
from rlcheck.facts.drift import DriftFacts
from rlcheck.measure.config.read import read_run
from rlcheck.measure.drift import bridge
from rlcheck.measure.drift.bridge import DriftOptions, examine_drift
from rlcheck.measure.plugin import ProbeFailed

GAP = {"num_tokens": 3, "log_probs_diff_mean": 0.25, "log_corr": None}
FOUND: dict[str, Any] = {
    "model": "/models/tiny",
    "engine": "vllm",
    "engine_version": "0.32.0",
    "temperature": 0.7,
    "noise": 1e-5,
    "batch_invariant": True,
    "num_prompts": 4,
    "gap": {"value": GAP},
    "by_kind": {"data": GAP},
    "by_position": [{"low": 0.0, "high": 1.0, "num_tokens": 3}],
    "points": [[-1.0, -1.5]],
    "worst": [{"token": "7", "token_id": 7, "position": 0, "rollout_prob": 0.5, "train_prob": 0.25}],
    "weights": {"missing": {"kind": "absent", "reason": "cannot be read back"}},
    "variants": {"value": [{"name": "alone", "title": "one row", "gap": GAP, "removes": True, "overrides": ["a=1"]}]},
    "stages": [{"name": "config", "seconds": 0.5}],
    "notes": ["a note"],
}


class Child:
    """Stands for the plug-in's process: notes what it was asked, and answers."""

    def __init__(self, answer: dict[str, Any] | ProbeFailed) -> None:
        self.answer = answer
        self.request: dict[str, Any] = {}
        self.environ: Mapping[str, str] = {}
        self.limit: Callable[[str], float] = lambda _: 0.0

    def __call__(self, python: Sequence[str], name: str, request: dict[str, Any], **options: Any) -> dict[str, Any]:
        assert name == "drift"
        self.request, self.environ, self.limit = request, options["environ"], options["stage_timeout_s"]
        if isinstance(self.answer, ProbeFailed):
            raise self.answer
        return self.answer


def examined(monkeypatch: pytest.MonkeyPatch, child: Child, source: str = "toy-grpo", **options: Any) -> DriftFacts:
    monkeypatch.setattr(bridge, "run_probe", child)
    return examine_drift(read_run(source, ()), source, ("a=b",), "/tmp/place", DriftOptions(**options))


def test_what_was_measured_becomes_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = examined(monkeypatch, Child(FOUND))
    assert facts.gap.value is not None
    assert (facts.gap.value.log_probs_diff_mean, facts.gap.value.log_corr) == (0.25, None)
    assert (facts.target, facts.temperature, facts.noise, facts.batch_invariant) == ("toy-grpo", 0.7, 1e-5, True)
    assert facts.by_kind["data"].num_tokens == 3
    assert facts.points == ((-1.0, -1.5),)
    assert facts.weights.missing is not None
    assert (facts.weights.missing.kind, facts.weights.missing.reason) == (MissingKind.ABSENT, "cannot be read back")
    assert facts.variants.value is not None
    assert (facts.variants.value[0].overrides, facts.variants.value[0].removes) == (("a=1",), True)
    assert facts.operations.missing is not None
    assert facts.operations.missing.reason == "not measured"
    assert facts.failure is None


def test_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(FOUND)
    examined(monkeypatch, child, num_prompts=5, try_all=True, operations=True, noise=(("float32", 0.5),))
    assert child.request["source"] == "toy-grpo"
    assert child.request["overrides"] == ["a=b"]
    wanted = {"num_prompts": 5, "all": True, "explain": True, "operations": True, "noise": {"float32": 0.5}}
    assert wanted.items() <= child.request.items()
    assert child.limit("starting Ray") > child.limit("generation")
    assert "VLLM_BATCH_INVARIANT" not in child.environ.keys() - os.environ.keys()
    assert child.environ["TMPDIR"] == "/tmp/place"
    assert child.environ["RAY_TMPDIR"] == (os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def test_batch_invariant_mode_is_a_variable_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(FOUND)
    examined(monkeypatch, child, batch_invariant=True)
    assert child.environ["VLLM_BATCH_INVARIANT"] == "1"


def test_a_failure_keeps_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ProbeFailed("train-0 died", "crash")
    error.stage, error.stages, error.partial = (
        "generation",
        (("generation", 2.0),),
        {"model": "m", "gap": {"value": GAP}},
    )
    facts = examined(monkeypatch, Child(error))
    assert facts.failure is not None
    assert (facts.failure.stage, facts.failure.kind) == ("generation", "crash")
    assert facts.gap.value is not None
    assert facts.weights.missing is not None
    assert "train-0 died" in facts.weights.missing.reason
    assert (facts.stages[-1].name, facts.stages[-1].seconds) == ("generation", 2.0)


def test_an_engine_that_is_not_driven_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "verl.yaml"
    config.write_text("defaults: [ppo_trainer, _self_]\nactor_rollout_ref: {rollout: {name: trtllm}}\n")
    child = Child(FOUND)
    facts = examined(monkeypatch, child, str(config))
    assert facts.failure is not None
    assert facts.failure.kind == "unsupported"
    assert "trtllm" in facts.failure.line
    assert child.request == {}
