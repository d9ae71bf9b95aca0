"""What users see in the curves of a run, and what `rlcheck run` and `rlcheck drift` say of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import rlcheck
from tests.rows.machines import says, says_of

STEPS = 60
Change = Callable[[int], dict[str, float]]


def run_of(directory: Path, change: Change) -> Path:
    """A directory with the metrics of a healthy run, but for what CHANGE makes of a step."""
    noise = random.Random(1)
    lines = []
    for step in range(1, STEPS + 1):
        reward = 0.2 + 0.01 * step + noise.gauss(0, 0.02)
        row = {"step": step, "critic/score/mean": reward, "critic/score/max": 1.0, "critic/score/min": 0.0,
               "critic/rewards/mean": reward, "critic/vf_loss": 1 / (step + 1), "critic/vf_explained_var": step / 80,
               "actor/entropy": 1.5 - 0.01 * step + noise.gauss(0, 0.01), "actor/ppo_kl": 1e-3 + noise.random() * 5e-4,
               "actor/pg_clipfrac": 0.01 + noise.random() * 5e-3, "actor/grad_norm": noise.gauss(0.8, 0.1),
               "actor/pg_loss": noise.gauss(0, 0.02), "actor/lr": 1e-6, "response_length/mean": noise.gauss(300, 10),
               "response_length/clip_ratio": 0.01, "training/rollout_probs_diff_mean": 0.002}  # fmt: skip
        lines.append(json.dumps({**row, **change(step)}) + "\n")
    (directory / "metrics.jsonl").write_text("".join(lines))
    return directory


def answer(directory: Path, change: Change, *words: str, command: str = "run") -> None:
    """The first line names the problem, and the report holds WORDS."""
    done = rlcheck(command, run_of(directory, change))
    says(done, *words, code=1)
    assert words[0] in done.out.splitlines()[1]


@pytest.mark.parametrize("command", ["run", "drift"])
def test_the_run_is_healthy_without_a_change(command: str, tmp_path: Path) -> None:
    done = rlcheck(command, run_of(tmp_path, lambda step: {}))
    assert (done.code, "✗" in done.out) == (0, False), done.out


@pytest.mark.row("F33")
def test_every_reward_is_0(tmp_path: Path) -> None:
    zero = dict.fromkeys(("critic/score/mean", "critic/score/max", "critic/score/min", "critic/rewards/mean"), 0.0)
    answer(tmp_path, lambda step: zero, "RUN011", "every answer earns 0, steps 1 to 60", "explain rewards-all-alike")


@pytest.mark.row("F33")
def test_rewards_become_nan(tmp_path: Path) -> None:
    nan = {"critic/score/mean": float("nan")}
    answer(
        tmp_path, lambda step: nan if step > 20 else {}, "RUN010", "critic/score/mean is no number at steps 21 to 60"
    )


@pytest.mark.row("F40")
def test_the_critic_goes_first(tmp_path: Path) -> None:
    def spoilt(step: int) -> dict[str, float]:
        if step < 30:
            return {}
        later = dict.fromkeys(("actor/pg_loss", "actor/grad_norm"), float("nan")) if step > 30 else {}
        return {"critic/vf_loss": float("inf"), **later}

    words = ("RUN010", "critic/vf_loss: no number from step 30", "actor/pg_loss: no number from step 31")
    answer(tmp_path, spoilt, *words, "actor_rollout_ref.actor.optim.lr=")


@pytest.mark.row("F41")
def test_steps_that_are_too_large(tmp_path: Path) -> None:
    def wild(step: int) -> dict[str, float]:
        return {
            "actor/ppo_kl": 0.3,
            "actor/pg_clipfrac": 0.45,
            "actor/entropy": 1.5 * 0.9**step,
            "critic/score/mean": 0.3,
        }

    answer(tmp_path, wild, "RUN030", "a KL of 0.3 in a step", "the clip holds 45% of the tokens", "from 1.35 to")


@pytest.mark.row("F42")
def test_engine_and_training_part(tmp_path: Path) -> None:
    def parting(step: int) -> dict[str, float]:
        return {"training/rollout_probs_diff_mean": 0.002 * 1.06**step, "actor/grad_norm": 0.8 * 1.06**step}

    words = ("DRF002", "DRF007", "more from step 16 on", "disable_cascade_attn=True")
    answer(tmp_path, parting, *words, command="drift")
    done = rlcheck("drift", tmp_path, "-v")
    says_of(
        done, "DRF002", "disable_cascade_attn=True", "truncated importance sampling", "trainer.verify_weight_sync=true"
    )


@pytest.mark.row("F42")
def test_a_norm_that_rises_alone(tmp_path: Path) -> None:
    """A gradient that grows is no missing one: what to measure comes first, then the clip and the learning rate."""
    done = rlcheck("run", run_of(tmp_path, lambda step: {"actor/grad_norm": 0.88 * 1.073**step}), "-v")
    says_of(done, "RUN032", "a rise from 1.05 to 41", "comes before a policy that breaks",
            f"rlcheck drift {tmp_path}/metrics.jsonl", "grad_clip=1", "optim.lr=5e-07")  # fmt: skip
    assert "Without a gradient" not in done.out
    assert "No gradient in" not in done.out


@pytest.mark.row("F44")
def test_ranks_that_learn_the_same(tmp_path: Path) -> None:
    """Four GPUs, one of them learns: the others have the same rows."""
    record = {"schema_version": 1, "outcome": "finished", "config": {"trainer": {"n_gpus_per_node": 4, "nnodes": 1}}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    alike = {"actor/shard_loss_spread": 0.0, "critic/score/mean": 0.3, "critic/rewards/mean": 0.3}
    answer(tmp_path, lambda step: alike, "RUN040", "a spread of exactly 0 in all 60 steps", "DistributedSampler")
