"""The audit record: each of its facts changes when the fault comes that it is there for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import torch

from rltrain.config.schema import RunConfig
from rltrain.controller.callbacks import StepRecord
from rltrain.controller.callbacks.audit import Audit, Seldom, sampled_tokens_hash
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.roles import Actor
from rltrain.controller.train_group import TrainGroup
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.rewards.pool import RewardPool
from rltrain.workers.fsdp.worker import TrainWorker
from tests.trainer.controller.build import batch, config
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import make_model, random_batch


class Ranks:
    """Two ranks, as far as the audit asks them."""

    def __init__(self) -> None:
        self.hashes = ["aa", "bb"]
        self.steps = 8

    def parameter_hashes(self) -> Sequence[str]:
        return list(self.hashes)

    def shard_hashes(self) -> Sequence[str]:
        return ["11", "22"]

    def optimizer_steps(self) -> tuple[int, int]:
        return self.steps, self.steps - 1


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with RewardPool(config()) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(pool: RewardPool, clock: Clock) -> Audit:
    actor = cast(Actor, type("Actor", (), {"recomputed": {"max_abs_diff": 0.0, "num_tokens": 3.0}})())
    return Audit(
        cast(TrainGroup, Ranks()), actor, RewardManager(config(), pool, None, clock), clock, asking(audit_freq=1)
    )


def asking(rescore: bool = True, **trainer: Any) -> RunConfig:
    made = config(**trainer)
    return made.model_copy(update={"reward_model": made.reward_model.model_copy(update={"rescore": rescore})})


def record(audit: Audit, of: Batch, step: int = 3, loss_tokens: float = 6.0) -> dict[str, Any]:
    found = StepRecord(step, {"actor/loss_tokens": loss_tokens}, of)
    audit.on_step_end(found)
    return found.audit


def test_a_sound_step(audit: Audit) -> None:
    found = record(audit, batch())
    assert found["response_tokens"] == found["loss_tokens"] == 6
    assert (found["optimizer_steps"], found["adam_steps"], found["parameter_sha256"]) == (8, 7, ["aa", "bb"])
    assert "truth_scored" not in found
    assert found["rescored"] == {"uid": "0-0", "sample": 0, "reward": 1.0, "again": 1.0}
    assert found["recomputed"] == {"max_abs_diff": 0.0, "num_tokens": 3.0}


def test_no_reward_is_asked_twice_without_being_asked(pool: RewardPool, clock: Clock) -> None:
    asked: list[Any] = []

    class Counting(RewardManager):
        def score(self, batch: Batch) -> Any:
            asked.append(batch)
            return super().score(batch)

    actor = cast(Actor, type("Actor", (), {"recomputed": {}})())
    manager = Counting(config(), pool, None, clock)
    found = record(Audit(cast(TrainGroup, Ranks()), actor, manager, clock, asking(rescore=False)), batch())
    assert not asked
    assert "rescored" not in found


def test_every_nth_step() -> None:
    third = Seldom(3)
    assert [step for step in range(1, 9) if third.is_due(step)] == [1, 4, 7]


def test_what_is_dear_takes_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("rltrain.controller.callbacks.audit.time.perf_counter", lambda: now[0])
    seldom, spent = Seldom(None), 0.0
    for step in range(1, 1001):
        now[0] += 10.0
        if seldom.is_due(step):
            with seldom.measured():
                now[0] += 2.0
                spent += 2.0
    assert 0.005 < spent / now[0] <= 0.0105
    assert Seldom(None).is_due(1), "the first step has one, whatever it takes"


def test_tokens_that_the_loss_left_out_show(audit: Audit) -> None:
    found = record(audit, batch(), loss_tokens=4.0)
    assert found["loss_tokens"] < found["response_tokens"]


def test_one_other_token_or_a_moved_row_changes_the_hash() -> None:
    sound = sampled_tokens_hash(batch())
    other, padding = batch()["responses"].clone(), batch()["responses"].clone()
    other[2, 0] += 1
    padding[1, 2] += 1
    assert sampled_tokens_hash(batch().with_fields({"responses": other})) != sound
    assert sampled_tokens_hash(batch().select([1, 0, 2])) != sound
    assert sampled_tokens_hash(batch().with_fields({"responses": padding})) == sound, "padding counts nowhere"


@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_reward_that_was_written_to_the_wrong_row_shows(audit: Audit, step: int) -> None:
    """The sample that is scored again wanders with the step, so each row's turn comes."""
    shifted = batch().with_fields({"token_level_scores": batch()["token_level_scores"].roll(1, 0)})
    sound, wrong = record(audit, batch(), step)["rescored"], record(audit, shifted, step)["rescored"]
    assert sound["uid"] == f"0-{step % 3}"
    assert sound["reward"] == sound["again"] == wrong["again"]
    if step % 3 != 0:  # rows 0 and 2 earn the same
        assert wrong["reward"] != wrong["again"]


def test_ground_truths_are_scored_once(audit: Audit) -> None:
    found = record(audit, batch(), step=1)["truth_scored"]
    assert [one["reward"] for one in found] == [1.0] * len(found)
    assert len({one["ground_truth"] for one in found}) == len(found) > 0


def test_no_function_of_the_users_is_asked_for_it(audit: Audit) -> None:
    manager = audit._reward_manager  # pyright: ignore[reportPrivateUsage]
    own = manager._config.custom_reward_function.model_copy(update={"path": "rewards.py"})  # pyright: ignore[reportPrivateUsage]
    manager._config = manager._config.model_copy(update={"custom_reward_function": own})  # pyright: ignore[reportPrivateUsage]
    assert "truth_scored" not in record(audit, batch(), step=1)


def test_the_time_of_the_audit_is_its_own(audit: Audit, clock: Clock) -> None:
    clock.taken()
    found = StepRecord(3, {}, batch())
    audit.on_step_end(found)
    assert found.metrics.keys() == {"timing_s/audit"}
    assert clock.taken() == {}, "scoring again must not count as the next step's reward"


def test_step_0_has_none(audit: Audit) -> None:
    before = StepRecord(0, {"val/reward/mean": 0.5})
    audit.on_step_end(before)
    assert before.audit == {}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainWorker]:
    with scenes.worker(make_config(make_model(tmp_path_factory.mktemp("model"), "qwen2"), packed=True)) as started:
        yield started


def test_a_micro_batch_recomputed_alone_shows_wrong_log_probs(worker: TrainWorker) -> None:
    """As a leak between packed rows would make them: one token of one row off by 0.01."""
    rows = random_batch(4, seed=5)
    fields = {name: rows[name] for name in ("input_ids", "attention_mask", "position_ids", "response_mask")}
    old = worker.log_probs(fields)["old_log_probs"]
    sound = worker.recompute_log_probs({**fields, "old_log_probs": old})
    wrong = old.clone()
    wrong[2, 0] += 0.01
    found = worker.recompute_log_probs({**fields, "old_log_probs": wrong})
    assert sound["max_abs_diff"] < 1e-5
    assert found["max_abs_diff"] == pytest.approx(0.01, rel=1e-2)
    assert found["num_tokens"] == float(rows["response_mask"].sum())


def test_the_parameter_hash_knows_a_single_weight(worker: TrainWorker) -> None:
    before = worker.parameter_hash()
    assert worker.parameter_hash() == before
    name, _ = next(worker.full_weights())
    for _ in worker.full_weights():
        pass
    parameter = next(worker._models["actor"].model.parameters())  # pyright: ignore[reportPrivateUsage]
    with torch.no_grad():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local.view(-1)[0] += 1e-6
    assert worker.parameter_hash() != before, name
