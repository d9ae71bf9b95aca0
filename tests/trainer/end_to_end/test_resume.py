"""One seed, one run: the same numbers twice; and a run gone on with is the run that was never stopped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.trainer.end_to_end.conftest import STEPS, STOP_AFTER
from tests.trainer.end_to_end.runs import Run, repeatable, rltrain

pytestmark = pytest.mark.timeout(1800)

LOSSES = ("actor/pg_loss", "actor/grad_norm", "actor/kl_loss", "critic/vf_loss", "critic/grad_norm", "actor/entropy")
COUNTED = ("critic/score/mean", "response_length/mean", "actor/lr", "actor/loss_tokens", "training/global_step")


def by_step(run: Run) -> dict[int, dict[str, Any]]:
    return {record["step"]: repeatable(record) for record in run.steps}


def test_the_run_has_what_could_go_wrong(whole: Run) -> None:
    """Without these a resume would prove little."""
    last = whole.steps[-1]
    assert [record["step"] for record in whole.steps] == list(range(STEPS + 1))
    coefficients = [record["actor/reward_kl_penalty_coeff"] for record in whole.steps[1:]]
    rates = [record["actor/lr"] for record in whole.steps[1:]]
    assert len(set(coefficients)) > 2
    assert len(set(rates)) == STEPS
    assert last["critic/vf_loss"] > 0
    assert last["actor/kl_loss"] > 0
    assert len({record["audit"]["rescored"]["sample"] for record in whole.steps[1:]}) == 2
    assert len({record["audit"]["sampled_tokens_sha256"] for record in whole.steps[1:]}) == STEPS


def test_two_runs_with_one_seed_have_the_same_metrics(whole: Run, interrupted: Run) -> None:
    expected, found = by_step(whole), by_step(interrupted)
    assert set(range(STOP_AFTER + 1)) <= set(found) < set(expected)
    for step, record in found.items():
        assert record == expected[step], step


def test_ctrl_c_keeps_what_was_learnt(interrupted: Run) -> None:
    assert interrupted.code == 130, interrupted.err
    last = interrupted.steps[-1]["step"]
    assert interrupted.checkpoint(last).is_dir()


def test_a_resumed_run_is_the_run_that_never_stopped(whole: Run, resumed: Run) -> None:
    """Metrics, sampled tokens and the parameters of every rank, bit for bit: the hashes are in the metrics."""
    assert by_step(resumed) == by_step(whole)


def test_so_are_its_checkpoints(whole: Run, resumed: Run) -> None:
    """Optimizer, schedule and random numbers of every rank; data position, KL controller and best."""
    one, other = (
        json.loads((run.checkpoint(STEPS) / "complete.json").read_text())["sha256"] for run in (whole, resumed)
    )
    names = [name for name in one if name.endswith((".distcp", ".pt", "train_state.json"))]
    assert {name for name in names if "0" in name} >= {"actor/__1_0.distcp", "critic/__1_0.distcp", "rng_00001.pt"}
    assert {name: one[name] for name in names} == {name: other[name] for name in names}
    assert _controller(whole) == _controller(resumed)
    assert "estimator" in _controller(whole)


def _controller(run: Run) -> str:
    """What the controller program has saved; its files lie in the run's own directory."""
    text = (run.checkpoint(STEPS) / "controller.json").read_text()
    assert str(run.directory) in text
    return text.replace(str(run.directory), "RUN")


def test_old_checkpoints_go_but_for_the_best(whole: Run) -> None:
    kept = {int(path.name.rpartition("_")[2]) for path in (whole.directory / "checkpoints").glob("global_step_*")}
    saved = {record["step"]: record["val/reward/mean"] for record in whole.steps if record["step"] in (2, 4, 6)}
    best = max(saved, key=lambda step: (saved[step], -step))
    assert whole.record["best"] == {"step": best, "value": saved[best]}
    assert kept == {best, STEPS}


def test_one_rank_goes_on_where_two_stopped(whole: Run, one_rank: Run) -> None:
    """The sums of floats have another order, so the next step is the same but for rounding."""
    expected, found = by_step(whole), by_step(one_rank)
    step = min(found)
    assert STOP_AFTER < step <= STEPS
    first, same = found[step], expected[step]
    assert first["audit"]["sampled_tokens_sha256"] == same["audit"]["sampled_tokens_sha256"]
    assert first["audit"]["optimizer_steps"] == same["audit"]["optimizer_steps"]
    for name in LOSSES:
        assert first[name] == pytest.approx(same[name], rel=1e-5, abs=1e-6), name
    for name in COUNTED:
        assert first[name] == pytest.approx(same[name], rel=1e-6), name
    assert first["actor/reward_kl_penalty_coeff"] == pytest.approx(same["actor/reward_kl_penalty_coeff"], rel=1e-6)
    assert len(first["audit"]["parameter_sha256"]) == 1


@pytest.mark.row("F64")
def test_eval_scores_a_checkpoint_as_its_last_validation_did(whole: Run) -> None:
    done = rltrain(whole.directory.with_name("eval"), "eval", whole.checkpoint(STEPS)).succeeded()
    (line,) = [line for line in done.out.splitlines() if line.startswith("mean reward")]
    assert float(line.split()[2]) == pytest.approx(whole.steps[-1]["val/reward/mean"], abs=5.1e-5)
