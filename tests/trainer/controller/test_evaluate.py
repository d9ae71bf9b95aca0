"""When the policy is validated, and what a reward is asked for then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from rltrain.cluster.teardown import Interrupted
from rltrain.cluster.waits import Waits
from rltrain.config.schema import RunConfig
from rltrain.controller.callbacks import StepRecord
from rltrain.controller.evaluate import Evaluator, Validation
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.rollout import Rollout
from rltrain.core.batch import Sample
from rltrain.core.clock import Clock
from rltrain.data.dataset import Dataset
from rltrain.data.schema import Row
from rltrain.rewards.pool import RewardPool
from tests.trainer.controller.build import batch, config, run

ROWS = [
    Row(index=at, messages=(), prompt_text="say", prompt_ids=(1,), data_source="toy", ground_truth=truth, extra_info={},
        place="row")
    for at, truth in enumerate("abab")
]  # fmt: skip


class Counting(RewardManager):
    asked = 0

    def rewards(self, samples: Sequence[Sample]) -> list[float]:
        self.asked += len(samples)
        return super().rewards(samples)


class Answering(Evaluator):
    """Stands where an engine would: it always answers "a"."""

    def answer(self) -> list[Sample]:
        return [Sample(uid=f"v-{row.index}", index=row.index, data_source="toy", prompt_text="say", response_text="a",
                       ground_truth=row.ground_truth) for row in ROWS]  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(config()) as opened:
        yield opened


def evaluator(pool: RewardPool, rescore: bool) -> tuple[Answering, Counting]:
    made: RunConfig = config()
    made = made.model_copy(update={"reward_model": made.reward_model.model_copy(update={"rescore": rescore})})
    manager = Counting(made, pool, None, Clock())
    return Answering(made, cast(Rollout, None), manager, cast(Dataset, ROWS), Clock()), manager


def test_an_answer_is_scored_once_unless_asked(pool: RewardPool) -> None:
    once, manager = evaluator(pool, rescore=False)
    assert once.evaluate()["val/reward/mean"] == 0.5
    assert manager.asked == len(ROWS)
    assert not {"val/reward/shuffled", "val/reward/best_constant"} & once.evaluate().keys()
    twice, manager = evaluator(pool, rescore=True)
    found = twice.evaluate()
    assert (found["val/reward/mean"], found["val/reward/best_constant"]) == (0.5, 0.5)
    assert "val/reward/shuffled" in found
    assert manager.asked > 2 * len(ROWS)


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [
        ({"test_freq": -1}, [0]),
        ({"test_freq": 3}, [0, 3, 6, 7]),
        ({"test_freq": 3, "val_before_train": False}, [3, 6, 7]),
        ({"test_freq": -1, "val_before_train": False}, []),
        ({"test_freq": 100}, [0, 7]),
    ],
)
def test_the_last_step_is_validated_where_any_is(
    trainer: dict[str, Any], steps: list[int], pool: RewardPool, tmp_path: Path
) -> None:
    validation = Validation(evaluator(pool, rescore=False)[0], Clock(), Waits())
    validation.on_run_start(run(tmp_path, total_steps=7, **trainer))
    found: list[int] = []
    for step in range(8):
        record = StepRecord(step, {}, None if step == 0 else batch())
        validation.on_step_end(record)
        if "val/reward/mean" in record.metrics:
            found.append(step)
    assert found == steps


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_signal_drops_the_validation_and_not_the_step(
    when: str, pool: RewardPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, answering = Waits(), evaluator(pool, rescore=False)[0]

    def signalled() -> list[Sample]:
        """A signal comes while the engine answers, and the wait for it notices."""
        waits.interrupt(Interrupted("stopped by SIGTERM (generating responses)"))
        waits.check()
        return []

    monkeypatch.setattr(answering, "answer", signalled)
    if when == "before":
        waits.interrupt(Interrupted("stopped by SIGTERM (the actor's update)"))
    validation, record = Validation(answering, Clock(), waits), StepRecord(7, {}, batch())
    validation.on_run_start(run(tmp_path, total_steps=7, test_freq=1))
    with waits.shielded():
        validation.on_step_end(record)
        waits.check()  # the rest of the step is finished
    assert (record.stopped, record.metrics) == (True, {})
    with pytest.raises(Interrupted, match=r"^stopped by SIGTERM \("):
        waits.check()
