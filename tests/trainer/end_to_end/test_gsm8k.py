"""The recipes for GSM8K on a model of a few thousand weights: parquet, chat template, `math`, a waived check, eval."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rltrain.records.run_dir import RunDir
from tests.trainer.end_to_end import gsm8k
from tests.trainer.end_to_end.runs import COMMAND, Run, anew, column, environ, rltrain, training

pytestmark = pytest.mark.timeout(1800)

BROKEN = ("env", "HF_HUB_OFFLINE=0", "HF_ENDPOINT=nonsense", *COMMAND)
"""On a machine where check HFC020 fails, which nothing here depends on: no model is fetched."""
SMALL = (
    "trainer.device=cpu",
    "trainer.total_training_steps=2",
    "data.train_batch_size=6",
    "data.max_prompt_length=128",
    "data.max_response_length=12",
    "actor_rollout_ref.actor.ppo_mini_batch_size=3",
    "actor_rollout_ref.rollout.n=4",
    "reward_model.num_processes=1",
    "reward_model.rescore=true",
    "sft_warmup.steps=40",
    "sft_warmup.batch_size=12",
    "sft_warmup.lr=0.01",
)


@pytest.fixture(scope="module")
def values(place: Path) -> tuple[str, ...]:
    directory = place / "gsm8k-files"
    directory.mkdir()
    return (*gsm8k.write(directory), *SMALL)


@pytest.fixture(scope="module")
def trained(place: Path, values: tuple[str, ...]) -> Run:
    directory = anew(place / "gsm8k-grpo")
    arguments = (*training(directory, "gsm8k-grpo", *values), "--ignore", "HFC020")
    return rltrain(directory, *arguments, program=BROKEN).succeeded()


def test_a_check_that_fails_stops_the_run_before_it_leaves_anything(place: Path, values: tuple[str, ...]) -> None:
    directory = place / "gsm8k-refused"
    run = rltrain(directory, *training(directory, "gsm8k-grpo", *values), program=BROKEN)
    assert run.code == 1
    (line,) = run.err.splitlines()
    assert line.startswith("rltrain: the preflight checks found what would stop this run (HFC020, above)")
    assert line.endswith("or waive it with --ignore HFC020")
    row, link = [line for line in run.out.splitlines() if "HFC020" in line and "✗" in line]
    assert "HF_ENDPOINT is not a usable address" in row
    assert "cache and data" in link
    assert not directory.exists()


def test_a_waived_check_stands_in_the_record(trained: Run) -> None:
    preflight = trained.record["preflight"]
    (found,) = [finding for finding in preflight["findings"] if finding["status"] == "fail"]
    assert (found["id"], found["waived"]) == ("HFC020", True)
    assert (preflight["ignored"], preflight["skipped"]) == (["HFC020"], False)
    (line,) = [line for line in trained.out.splitlines() if line.startswith("preflight: ")]
    assert line.endswith("waived: HFC020")


def test_skipped_checks_are_said_to_cost(tmp_path: Path) -> None:
    """And a run directory that cannot be is one line, also for root."""
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "run"
    arguments = ("run", "toy-ppo", "--skip-checks", f"trainer.default_local_dir={directory}")
    done = subprocess.run([*BROKEN, *arguments], env=environ(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "preflight: skipped (--skip-checks); what is wrong with this machine now shows late" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rltrain: the run directory {directory} cannot be made: Not a directory; name another")


def test_answers_earn_by_their_number(trained: Run) -> None:
    """Groups differ, so there is something to learn from, and the reference is in the loss."""
    first, *steps = trained.steps
    assert [first["step"], *(step["step"] for step in steps)] == [0, 1, 2]
    assert "supervised warm-up, 40 steps of 12 demonstrations" in trained.out
    assert max(column(steps, "val/reward/mean")) > steps[-1]["val/reward/best_constant"] == 0.5
    for step in steps:
        assert 0 < step["critic/score/mean"] < 1
        assert step["reward/openai/gsm8k/math/mean"] == step["critic/score/mean"]
        assert step["reward/openai/gsm8k/count"] == 24
        assert step["actor/grad_norm"] > 0
        assert step["training/rollout_probs_diff_mean"] <= 5e-6
    assert steps[-1]["actor/kl_loss"] > 0
    files = RunDir(trained.directory)
    assert list(files.tensorboard.glob("events.out.tfevents.*"))
    sample = (files.samples / "step_1.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert re.search(r"How many pears has \w+ now\? .*####.*<\|im_end\|>\\n<\|im_start\|>assistant\\n", sample)


@pytest.mark.row("F64")
def test_eval_samples_as_often_as_it_is_told(trained: Run) -> None:
    asked = ("--n", "4", "--k", "1", "--k", "4", "--pass", "0.5", "data.val_max_samples=4")
    done = rltrain(trained.directory.with_name("gsm8k-eval"), "eval", trained.checkpoint(2), *asked).succeeded()
    mean, first, fourth = [line for line in done.out.splitlines() if line.startswith(("mean reward", "pass@"))]
    assert mean.endswith(", 4 prompts)")
    assert first.startswith("pass@1 ")
    assert fourth.startswith("pass@4 ")
    shares = [float(re.split(r"\s{2,}", line)[1].split()[0]) for line in (mean, first, fourth)]
    # A reward here is 0 or 1.
    assert 0 < shares[0] == shares[1] <= shares[2] <= 1


def test_gsm8k_ppo_plans_with_a_critic(values: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, *training(tmp_path / "run", "gsm8k-ppo", *values, "actor_rollout_ref.rollout.n=1"), "--dry-run"],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for part in ("critic  node 0", "ref     node 0", "vllm    node 0"):
        assert part in done.stdout
    assert "train batch    6 prompts x 1 sample" in done.stdout
    assert not (tmp_path / "run").exists()
