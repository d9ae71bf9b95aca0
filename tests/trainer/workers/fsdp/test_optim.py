"""Learning rates, clipping, and gradients that are not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rltrain.config.schema import OptimConfig
from rltrain.workers.fsdp.optim import Schedule, Stepper, grad_norm
from rltrain.workers.fsdp.rank import RankInfo, connect, disconnect
from rltrain.workers.fsdp.split import actor_minis
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config


@pytest.fixture
def group() -> Any:
    connect(RankInfo(0, 1, "127.0.0.1", scenes.free_port(), "cpu"), timeout_s=10)
    yield
    disconnect()


def verls_schedule(optim: OptimConfig, total: int) -> list[float]:
    """As verl 0.9.1 has it: `_build_lr_scheduler` (workers/engine/fsdp/transformer_impl.py) and the functions that it
    calls (utils/torch_functional.py), stepped by torch once an update."""
    warmup = optim.lr_warmup_steps
    if warmup <= 0:
        warmup = int(optim.lr_warmup_steps_ratio * total)
    coef, intercept = (1 - optim.min_lr_ratio) * 0.5, (1 + optim.min_lr_ratio) * 0.5

    def ratio(update: int) -> float:
        if update < warmup:
            return float(update) / float(max(1, warmup))
        if optim.lr_scheduler_type == "constant":
            return 1.0
        progress = float(update - warmup) / float(max(1, total - warmup))
        return max(optim.min_lr_ratio, math.cos(math.pi * 0.5 * 2.0 * progress) * coef + intercept)

    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=optim.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, ratio)
    rates: list[float] = []
    for _ in range(total):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("kind", ["constant", "cosine"])
@pytest.mark.parametrize(("warmup", "ratio"), [(4, 0.0), (4, 0.9), (-1, 0.0), (-1, 0.15), (0, 0.35), (30, 0.0)])
def test_the_schedule_is_verls(kind: str, warmup: int, ratio: float) -> None:
    optim = OptimConfig(
        lr=2e-5, lr_warmup_steps=warmup, lr_warmup_steps_ratio=ratio, lr_scheduler_type=kind, min_lr_ratio=0.1
    )
    schedule = Schedule.of(optim, 13)
    assert [schedule.lr(update) for update in range(13)] == pytest.approx(verls_schedule(optim, 13), rel=1e-12)


@pytest.mark.parametrize("minis", [1, 4])
def test_an_update_has_one_rate_however_many_steps_it_takes(group: None, minis: int) -> None:
    model = nn.Linear(2, 1, bias=False)
    stepper = Stepper(model, OptimConfig(lr=1.0), 1.0, Schedule(1.0, 2, 10, "constant", 0.0))
    rates: list[list[float]] = []
    for _ in range(3):
        rates.append([])
        for _ in range(minis):
            model.weight.grad = torch.ones(1, 2)
            rates[-1].append(stepper.step("cpu").lr)
        stepper.end_update()
    assert rates == [[0.0] * minis, [0.5] * minis, [1.0] * minis]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_decay_ends_at_its_floor_and_stays(kind: str) -> None:
    optim = OptimConfig(lr=2.0, lr_warmup_steps=2, lr_scheduler_type=kind, min_lr_ratio=0.1)
    schedule = Schedule.of(optim, 12)
    rates = [schedule.lr(update) for update in range(2, 13)]
    assert rates[0] == 2.0
    assert rates[5] == pytest.approx(1.1)  # half-way, both kinds stand in the middle
    assert rates == sorted(rates, reverse=True)
    assert schedule.lr(12) == schedule.lr(99) == pytest.approx(0.2)


@pytest.mark.row("F40")
def test_a_long_gradient_is_cut_to_the_limit(group: None) -> None:
    """With plain numbers: AdamW's first step is the sign of the gradient, so look at the gradient's moments."""
    model = nn.Linear(2, 1, bias=False)
    stepper = Stepper(model, OptimConfig(lr=1e-3), 1.0, Schedule(1e-3, 0, 10, "constant", 0.0))
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert grad_norm([model.weight.grad], "cpu") == 5.0
    result = stepper.step("cpu")
    assert result.grad_norm == 5.0
    torch.testing.assert_close(
        stepper.optimizer.state[model.weight]["exp_avg"], 0.1 * torch.tensor([[0.6, 0.8]]), rtol=1e-6, atol=0
    )
    assert model.weight.grad is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(group: None, bad: float) -> None:
    model = nn.Linear(2, 1, bias=False)
    stepper = Stepper(model, OptimConfig(lr=1e-3), 1.0, Schedule(1e-3, 4, 10, "constant", 0.0))
    before = model.weight.detach().clone()
    model.weight.grad = torch.tensor([[bad, 1.0]])
    result = stepper.step("cpu")
    assert not result.applied
    assert (stepper.num_steps, stepper.num_skipped) == (0, 1)
    assert torch.equal(model.weight, before)
    assert not stepper.optimizer.state
    model.weight.grad = torch.ones(1, 2)
    assert stepper.step("cpu").lr == 0.0, "an update has one rate"
    stepper.end_update()
    assert stepper.schedule.lr(stepper.num_updates) == pytest.approx(1e-3 / 4), "the schedule does not wait, as verl's"


def test_one_ranks_nan_stops_every_rank(played: list[dict[str, Any]]) -> None:
    for rank in played:
        result = rank["one_rank_nan"]
        assert result["untouched"]
        assert result["bad"]["actor/skipped_steps"] == 1
        assert result["bad"]["actor/optimizer_steps"] == 0
        assert math.isnan(result["bad"]["actor/grad_norm"])
        assert result["moved"], "the next, healthy mini batch is learnt from"
        assert math.isfinite(result["good"]["actor/grad_norm"])


@pytest.mark.row("F40")
def test_a_nan_in_a_reward_never_reaches_the_weights(models: Path) -> None:
    config = make_config(models / "qwen2")
    with scenes.worker(config) as worker:
        batch = scenes.Run(worker, config).experience(0)
        batch["advantages"][batch["response_mask"]] = math.nan
        before = scenes.full(worker)
        metrics = worker.update_actor(actor_minis(batch, config, 0, 1)[0])
        after = scenes.full(worker)
    assert metrics["actor/skipped_steps"] == 2
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_gradient_that_is_lost_shows_in_what_the_ranks_send_and_receive(played: list[dict[str, Any]]) -> None:
    for rank in played:
        found = rank["lost_gradient"]
        sound, lost, silent = found["sound"], found["lost"], found["silent"]
        assert 0 < sound["actor/grad_norm_rank_min"] <= sound["actor/grad_norm_rank_max"]
        assert sound["actor/grad_reduce_error"] < 1e-5
        assert lost["actor/grad_norm_rank_min"] > 0
        assert lost["actor/grad_reduce_error"] > 0.01
        assert (silent["actor/grad_norm_rank_min"], silent["actor/grad_norm_rank_of_min"]) == (0.0, 1.0)
        assert silent["actor/grad_reduce_error"] < 1e-5


def test_the_ratio_before_the_first_step_is_1_and_later_ones_are_not_asked(played: list[dict[str, Any]]) -> None:
    for rank in played:
        found = rank["lost_gradient"]
        assert found["sound"]["actor/log_ratio_before_step"] < 1e-5
        assert found["lost"]["actor/log_ratio_before_step"] > 1e-5, "old log-probabilities are of the step before"


def test_the_optimizers_own_count(played: list[dict[str, Any]]) -> None:
    for rank in played:
        assert rank["lost_gradient"]["steps"] == (1, 1)
        assert rank["lost_gradient"]["emptied"] == (3, 0)
