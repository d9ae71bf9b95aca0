"""Dynamic sampling judges what an answer is worth, not how long it is; its rounds lose no metric."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from rltrain.config.schema import RunConfig
from rltrain.controller.assemble import answered
from rltrain.controller.collect import Collector
from rltrain.controller.filter_metric import filter_metric
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.rollout import OnAnswered, Rollout
from rltrain.core.batch import Batch, Sample
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.core.trajectory import int_array
from rltrain.data.schema import Row
from rltrain.rewards.pool import RewardPool
from rltrain.toy.tokenizer import build_tokenizer
from rltrain.workers.rollout.protocol import Completion, Sampling

N = 2
LIMIT = 8


def config(metric: str = "acc", **reward: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "algorithm": {"adv_estimator": "grpo", "filter_groups": {"enable": True, "metric": metric}},
            "actor_rollout_ref": {"rollout": {"name": "hf", "n": N}},
            "data": {"train_files": ["a.jsonl"], "val_files": ["a.jsonl"], "train_batch_size": 2}
            | {"max_response_length": LIMIT},
            "reward_model": {
                "rules": [{"kind": "exact"}, {"kind": "format", "pattern": ".*", "weight": 0.5}],
                "overlong_buffer": {"enable": True, "len": 6},
                **reward,
            },
        }
    )


def sample(uid: str, **parts: float) -> Sample:
    return Sample(uid=uid, index=0, data_source="toy", reward_parts=parts)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("acc", [1.0, 0.0]), ("score", [1.5, 0.5]), ("format", [1.0, 1.0]), ("exact", [1.0, 0.0])],
)
def test_the_penalty_for_length_never_counts(metric: str, expected: list[float]) -> None:
    answers = [sample("a", exact=1.0, format=1.0, overlong=-0.7), sample("a", exact=0.0, format=1.0, overlong=-0.1)]
    assert filter_metric(answers, config(metric)) == expected


def test_a_functions_own_accuracy_comes_first_and_its_score_last() -> None:
    own = {"exact": 0.0, "custom": 0.3, "custom/acc": 1.0, "custom/steps": 4.0}
    assert filter_metric([sample("a", **own)], config()) == [1.0]
    assert filter_metric([sample("a", **own)], config("custom/steps")) == [4.0]
    assert filter_metric([sample("a", custom=0.3, overlong=-1.0)], config()) == [0.3]
    with pytest.raises(UserError, match=r"'custom/none' is no part of the reward of sample a .*; it has custom, exact"):
        filter_metric([sample("a", exact=0.0, custom=1.0)], config("custom/none"))


class Script:
    """Answers as they are written down, in place of an engine: text and length of each, by prompt."""

    def __init__(self, answers: dict[str, list[tuple[str, int]]]) -> None:
        self._answers, self._tokenizer = answers, build_tokenizer(32)

    @contextmanager
    def phase(self) -> Generator[Script]:
        yield self

    def generate(self, samples: Sequence[Sample], sampling: Sampling, step: int, on_answered: OnAnswered) -> Batch:
        """The later half is answered first."""
        written = [self._answers[one.ground_truth][one.sample] for one in samples]
        made = [Completion(int_array([1] * length), None, "stop", int_array((2, 3))) for _, length in written]
        batch = answered(samples, made, self._tokenizer)
        texts = zip(batch.samples, written, strict=True)
        batch = batch.with_samples([replace(one, response_text=text) for one, (text, _) in texts])
        half = len(samples) // 2
        on_answered(dict(list(enumerate(batch.samples))[half:]))
        on_answered(dict(list(enumerate(batch.samples))[:half]))
        return batch


def rows(*truths: str) -> list[Row]:
    return [
        Row(number, (), "", prompt_ids=(2, 3), data_source="toy", ground_truth=truth, uid=f"{truth}-{number}")
        for number, truth in enumerate(truths)
    ]


def test_right_answers_of_other_lengths_are_dropped_and_no_round_is_forgotten() -> None:
    """Round 1: one group right twice, at 3 and at 8 tokens; one of which one is right. Round 2: two that differ."""
    script = Script(
        {"easy": [("easy", 3), ("easy", 8)], "some": [("some", 2), ("no", 2)], "more": [("no", 2), ("more", 2)]}
    )
    settings, rounds = config(), [rows("more", "more")]
    with RewardPool(settings) as pool:
        manager = RewardManager(settings, pool, lambda samples: ([0.0] * len(samples), 3), Clock())
        collector = Collector(settings, cast(Rollout, script), manager, lambda: rounds.pop(0))
        batch, metrics = collector.collect(1, rows("easy", "some"))
    assert [one.ground_truth for one in batch.samples] == ["some", "some", "more", "more"]
    assert metrics["train/num_gen_batches"] == 2
    assert metrics["reward/model_truncated"] == 6, "both rounds"
    assert metrics["reward/toy/count"] == 8
    assert torch.is_tensor(batch["token_level_scores"])
