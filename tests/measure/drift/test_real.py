"""A real crew (training rank, vLLM, Ray) on a toy in float32: healthy, and with one mistake after the other."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import rltrain.controller.rollout
from rlcheck.facts.base import need, why_missing
from rlcheck.facts.drift import DriftFacts
from rltrain.core.batch import Batch
from rltrain.measure.drift import measure, temperatures
from rltrain.measure.drift.configs import subject_of
from rltrain.measure.drift.explain import on_training_side
from rltrain.measure.drift.measure import measured
from rltrain.measure.drift.plugin import tell_measured, trials_of
from rltrain.measure.drift.prompts import Prompts, make_prompts
from rltrain.measure.drift.report import Report
from rltrain.measure.drift.sides import Sides, opened
from rltrain.workers.rollout.protocol import Request
from tests.measure.drift.workers import FaultyEngine, FaultyRank

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here"),
]
OVERRIDES = [
    "actor_rollout_ref.rollout.temperature=0.7",
    "trainer.num_cpu_ranks=1",
    "toy.num_train=64",
    "toy.num_demos=1",
]
Made = Callable[..., DriftFacts]


@dataclass
class Bench:
    """One crew, measured again and again."""

    sides: Sides
    prompts: Prompts
    told: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, **request: Any) -> DriftFacts:
        report = Report(self.told.append, DriftFacts())
        found = measured(self.sides, self.prompts, report)
        tell_measured(report, self.sides, found)
        trials = trials_of(request, found, 1e-5, report)
        if trials is not None:
            on_training_side(trials, self.sides, found)
        return report.facts

    def fail(self, rank: dict[str, Any] | None = None, **engine: Any) -> None:
        for group, faults in (
            (self.sides.crew.train_group.workers, rank or {}),
            (self.sides.crew.engine_group.workers, engine),
        ):
            group.all("obey", faults, deadline_s=30)


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("drift")
    request = {"source": "toy-grpo", "overrides": OVERRIDES, "directory": str(directory)}
    config = subject_of(request).config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltrain.measure.drift.sides.DriftTrainWorker", FaultyRank)
        patch.setattr("rltrain.measure.drift.sides.DriftEngineWorker", FaultyEngine)
        with opened(config, directory, Report(lambda _: None, DriftFacts())) as sides:
            yield Bench(sides, make_prompts(config, sides.tokenizer, 8))


@pytest.fixture
def bench(crew: Bench) -> Iterator[Bench]:
    """The crew without faults."""
    yield crew
    crew.fail({"unsent": "", "forgets": False, "rounds": False, "shifts": False}, deaf=False, raw=False)


def removing(found: DriftFacts) -> list[tuple[str, str]]:
    return [(variant.name, variant.family) for variant in need(found.variants) if variant.removes]


def test_healthy_is_exact_to_a_millionth(bench: Bench) -> None:
    found = bench.measure()
    assert need(found.gap).probs_diff_mean <= 1e-6
    assert need(found.gap).log_probs_diff_mean <= 1e-6
    assert all(gap.log_probs_diff_mean <= 1e-6 for gap in found.by_kind.values())
    assert set(found.by_kind) == {"data", "short", "long", "multi_turn", "repeated_prefix", "high_temperature"}
    assert need(found.gap).num_tokens == sum(part.num_tokens for part in found.by_position)
    assert need(found.weights).num_tensors > 20
    assert (need(found.weights).differing, need(found.prompts).num_differing, need(found.variants)) == ((), 0, ())
    assert "<|assistant|>" in found.worst[0].before


def test_every_reading_of_a_healthy_run_is_the_same(bench: Bench) -> None:
    """The changes themselves add nothing: only another temperature moves anything."""
    found = bench.measure(all=True)
    left = {variant.name: variant.gap.log_probs_diff_mean for variant in need(found.variants) if variant.gap}
    assert left.pop("raw_log_probs") > 0.01
    assert set(left) == {"float32_logits", "alone", "eager_attention"}
    assert max(left.values()) <= 1e-6


@pytest.mark.row("F42")
def test_weights_that_never_come_again(bench: Bench) -> None:
    bench.fail({"unsent": "."})
    found = bench.measure()
    differing = need(found.weights).differing
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(differing)
    assert need(found.weights).num_stale == len(differing)
    assert why_missing(found.variants)


def test_one_weight_that_stays_behind(bench: Bench) -> None:
    bench.fail({"unsent": "model.norm"})
    found = bench.measure()
    assert need(found.weights).differing == ("model.norm.weight",)
    assert need(found.gap).log_probs_diff_mean > 1e-3


def test_an_engine_that_drops_what_it_acknowledges(bench: Bench) -> None:
    bench.fail(deaf=True)
    train_group = bench.sides.crew.train_group
    train_group.call("scale_weights", 4.0, doing="changing the weights")
    found = bench.measure()
    train_group.call("scale_weights", 0.25, doing="changing them back")
    assert "lm_head.weight" in need(found.weights).differing
    assert need(found.weights).num_stale == 0


def test_log_probabilities_before_temperature(bench: Bench) -> None:
    bench.fail(raw=True)
    found = bench.measure()
    assert need(found.gap).log_probs_diff_mean > 0.01
    assert removing(found) == [("raw_log_probs", "wrong")]


def test_a_temperature_that_training_forgets(bench: Bench) -> None:
    bench.fail({"forgets": True})
    found = bench.measure()
    assert removing(found) == [("train_temperature", "wrong")]
    assert need(found.variants)[-1].side == "training"


@pytest.mark.row("F42")
def test_logits_in_bfloat16(bench: Bench) -> None:
    bench.fail({"rounds": True})
    found = bench.measure()
    assert 1e-5 < need(found.gap).log_probs_diff_mean < 0.01
    assert removing(found) == [("float32_logits", "imprecise")]


def test_targets_that_are_off_by_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temperatures, "_ROUNDED", 0.01)  # a new toy's distribution is nearly flat
    bench.fail({"shifts": True})
    found = bench.measure()
    assert need(found.gap).log_probs_diff_mean > 0.01
    assert removing(found) == [("train_reading", "wrong")]


def test_responses_that_are_tokenized_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training makes tokens of the response anew, and the first one is another."""
    real = rltrain.controller.rollout.assemble

    def assembled(samples: Any, completions: Any, *rest: Any) -> Batch:
        changed = [replace(one, token_ids=((one.token_ids[0] + 1) % 20, *one.token_ids[1:])) for one in completions]
        return real(samples, changed, *rest)

    monkeypatch.setattr(rltrain.controller.rollout, "assemble", assembled)
    found = bench.measure()
    assert need(found.prompts).num_differing == 0
    assert removing(found) == [("engine_responses", "wrong")]


def test_a_vocabulary_that_is_cut(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's log-probabilities are of what top-k leaves, which the training side does not know."""
    real = rltrain.controller.rollout.train_sampling
    monkeypatch.setattr(measure, "train_sampling", lambda config: replace(real(config), top_k=5))
    found = bench.measure()
    assert need(found.gap).kl > 0.1
    assert removing(found) == [("uncut_sampling", "wrong")]


def test_an_engine_that_hides_what_it_reads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bos, engine_group = bench.sides.tokenizer.bos_token_id, bench.sides.crew.engine_group
    real = engine_group.generate
    monkeypatch.setattr(rltrain.controller.rollout, "Request", lambda ids, *rest: Request((bos, *ids), *rest))
    monkeypatch.setattr(
        engine_group, "generate", lambda *args: [replace(one, prompt_ids=one.prompt_ids[:0]) for one in real(*args)]
    )
    found = bench.measure()
    assert why_missing(found.prompts)
    assert removing(found) == [("with_bos", "wrong")]


def test_a_special_token_that_one_side_adds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bos = bench.sides.tokenizer.bos_token_id
    monkeypatch.setattr(rltrain.controller.rollout, "Request", lambda ids, *rest: Request((bos, *ids), *rest))
    found = bench.measure()
    assert need(found.prompts).num_differing == need(found.prompts).num_prompts
    assert need(found.prompts).length_diff_mean == -1.0
    assert need(found.prompts).example_rollout == f"<bos>{need(found.prompts).example_train}"
    assert removing(found) == [("engine_prompts", "wrong")]


def test_another_template_in_training(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template without the mark of the answer: what it renders has one token less."""
    real = rltrain.controller.rollout.assemble

    def assembled(samples: Any, *rest: Any) -> Batch:
        return real([replace(sample, prompt_ids=sample.prompt_ids[:-1]) for sample in samples], *rest)

    monkeypatch.setattr(rltrain.controller.rollout, "assemble", assembled)
    found = bench.measure()
    assert need(found.prompts).num_differing == need(found.prompts).num_prompts
    assert removing(found) == [("engine_prompts", "wrong")]
