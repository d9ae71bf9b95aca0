"""Metrics in texts: TRL's states of several versions, lines of verl's console, tables that W&B exports."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.run import RunFacts
from rlcheck.measure.run.read import CurveError, read_training
from rlcheck.measure.run.texts import console_record
from tests.measure.run import write

HUGGING_FACE = ("loss", "grad_norm", "learning_rate", "epoch")
TRL = {
    "0.14": ("completion_length", "reward", "reward_std", "kl", "rewards/accuracy_reward"),
    "0.16": ("num_tokens", "completion_length", "reward", "reward_std", "kl", "clip_ratio", "rewards/accuracy_reward"),
    "0.19": ("num_tokens", "completions/mean_length", "completions/min_length", "completions/max_length",
             "completions/clipped_ratio", "completions/mean_terminated_length", "rewards/accuracy_reward/mean",
             "rewards/accuracy_reward/std", "reward", "reward_std", "frac_reward_zero_std", "kl",
             "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
    "1.16": ("num_tokens", "step_time", "completions/mean_length", "completions/clipped_ratio", "reward", "reward_std",
             "frac_reward_zero_std", "entropy", "clip_ratio/region_mean",
             "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean"),
}  # fmt: skip
"""What the wheels of these versions write (trl/trainer/grpo_trainer.py), beside what every Trainer does."""
VERL = ("critic/score/mean", "response_length/mean", "timing_s/step", "actor/grad_norm", "actor/entropy")


def state(place: Path, names: tuple[str, ...], steps: int = 12) -> Path:
    """A trainer_state.json as a Trainer leaves it: a record a step, and the summary of the end."""
    history: list[dict[str, Any]] = [
        {**dict.fromkeys((*HUGGING_FACE, *names), 0.5 + 0.01 * step), "step": step} for step in range(1, steps + 1)
    ]
    history.append({"step": steps, "train_loss": 0.1, "train_runtime": 9.0, "total_flos": 0.0})
    path = place / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history, "global_step": steps, "max_steps": 250}))
    return path


@pytest.mark.parametrize("version", TRL)
def test_states_of_trl(version: str, tmp_path: Path) -> None:
    facts = read_training(state(tmp_path, TRL[version]))
    assert (facts.framework, facts.num_steps, facts.total_steps) == ("trl", 12, 250)
    told = {"critic/score/mean", "response_length/mean", "actor/grad_norm", "actor/lr", "actor/loss"}
    assert told <= set(facts.curves)
    assert ("actor/kl_loss" in facts.curves) == ("kl" in TRL[version])
    assert ("actor/pg_clipfrac" in facts.curves) == any("clip_ratio" in name for name in TRL[version])
    assert facts.curves["response_length/mean"].name in ("completion_length", "completions/mean_length")


def test_a_state_of_fine_tuning_is_no_run_of_trls(tmp_path: Path) -> None:
    assert read_training(state(tmp_path, ("mean_token_accuracy", "num_tokens", "entropy"))).framework == ""


def console(*parts: str, prefix: str = "", end: str = "") -> str:
    return f"{prefix}step:{' - '.join(parts)}{end}\n"


def test_lines_of_verls_console(tmp_path: Path) -> None:
    """As Ray passes them on: coloured, behind a progress bar, with numpy's own words for a number, beside anything."""
    path = tmp_path / "train.log"
    ray = "\x1b[36m(TaskRunner pid=41)\x1b[0m "
    text = f"{ray}Training Progress:   0%|          | 0/40 [00:00<?, ?it/s]\nstep:\nsome step:7 or other\n"
    for step in range(1, 41):
        values = [f"{name}:np.float64({0.5 + step / 100})" if step % 2 else f"{name}:{step:.1e}" for name in VERL]
        bar = f"{ray}Training Progress:  {step}%|1  | {step}/40 [00:01<00:59] " if step % 3 else ray
        text += console(str(step), *values, "critic/score/max:nan", "who:knows", prefix=bar)
        text += "INFO 11-22 10:00:00 engine.py:20] {not json}\n"
    path.write_text(text + "Traceback (most recent call last):\n")
    facts = read_training(path)
    assert (facts.framework, facts.first_step, facts.last_step, facts.num_steps) == ("verl", 1, 40, 40)
    assert facts.curves["critic/score/mean"].values[:3] == pytest.approx((0.51, 2.0, 0.53))
    assert facts.curves["critic/score/max"].nonfinite == tuple(range(1, 41))
    assert "who" not in facts.curves
    assert facts.notes == (), "a console says much else, which is no fault"


def test_a_line_of_a_console_has_a_step_and_a_metric() -> None:
    assert console_record(b"step:3 - a/b:-1.5e-07 - c:inf\x1b[0m\n") == {"step": 3, "a/b": -1.5e-07, "c": float("inf")}
    for line in (b"step:3 - \n", b"timestep:3 - a:1\n", b"step:x - a:1\n", b"a:1 - b:2\n", b"step:3 - a:1.2.3\n"):
        assert console_record(line) is None, line


def table(path: Path, runs: dict[str, int], metric: str, steps: int = 30) -> Path:
    """A panel as W&B exports it: `RUN - METRIC`, and its spread; RUNS by the number of their steps."""
    with path.open("w", newline="") as file:
        out = csv.writer(file, quoting=csv.QUOTE_ALL)
        out.writerow(["Step", *(f"{run} - {metric}{end}" for run in runs for end in ("", "__MIN", "__MAX"))])
        for step in range(1, steps + 1):
            out.writerow(
                [step, *(value for long in runs.values() for value in [step / 10 if step <= long else ""] * 3)]
            )
    return path


def test_a_table_of_wandb(tmp_path: Path) -> None:
    path = table(tmp_path / "wandb_export.csv", {"lr - 1e-6": 10, "other": 30}, "critic/score/mean")
    facts = read_training(path)
    assert list(facts.curves) == ["critic/score/mean"]
    assert facts.curves["critic/score/mean"].values == tuple(step / 10 for step in range(1, 31))
    assert facts.notes == ("wandb_export.csv: the table holds 2 runs; other, which has the most values, was read",)
    assert read_training(table(path, {"lr - 1e-6": 30}, "train/reward")).num_steps == 30


def test_tables_of_one_run_side_by_side(tmp_path: Path) -> None:
    for number, name in enumerate(("train/reward", "train/reward_std", "train/completion_length", "train/kl")):
        table(tmp_path / f"wandb_export_{number}.csv", {"grpo": 30}, name)
    (tmp_path / "data.csv").write_text("question,answer\n1+1,2\n")
    facts: RunFacts = read_training(tmp_path)
    assert facts.framework == "trl"
    assert {"critic/score/mean", "actor/kl_loss", "response_length/mean"} <= set(facts.curves)


@pytest.mark.parametrize("text", ["question,answer\n1+1,2\n", "Step,run - x\n", "", '"Step"\n1\n', "hello\n"])
def test_what_holds_no_metrics_says_what_to_switch_on(text: str, tmp_path: Path) -> None:
    for name in ("export.csv", "run.log"):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(CurveError) as caught:
            read_training(path)
        assert "\n" not in str(caught.value)
        if text:
            assert 'trainer.logger=\'["console","file"]\' (verl), report_to="tensorboard" (TRL)' in str(caught.value)
    write.lines(tmp_path / "good.jsonl", [{"step": 1, "x": 1.0}])
    assert read_training(tmp_path).curves["x"].values == (1.0,)
