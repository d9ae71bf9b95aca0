"""Metrics as real runs leave them beside their trackers: printed dictionaries, JSON columns, Parquet, W&B's tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcheck.checks.run.endings import bound_of
from rlcheck.measure.run.read import CurveError, read_training
from tests.measure.run import write

SLIME = ("train/pg_clipfrac", "train/train_rollout_logprob_abs_diff", "train/grad_norm")


def entry(step: int, *, text: bool = False, epoch: float | None = None) -> str:
    """What a Trainer prints: floats as text since Transformers 5."""
    values = {"loss": 0.1, "grad_norm": 1.5, "reward": step / 10, "reward_std": 0.2, "kl": 1e-3,
              "completions/mean_length": 20.0, "completions/clipped_ratio": 0.25,
              "epoch": epoch or step / 100}  # fmt: skip
    return str({name: f"{value:.4g}" if text else value for name, value in values.items()})


def bar(step: int, total: int = 12) -> str:
    return f"\r {step}%|##  | {step}/{total} [00:07<00:30,  4.10s/it]\r"


def log(place: Path, *lines: str) -> Path:
    path = place / "train.log"
    path.write_text("Map: 100%|###| 30/30 [00:00<00:00]\nloading\n" + "".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("text", [False, True])
def test_dictionaries_of_a_trainer_take_their_steps_from_the_bar(text: bool, tmp_path: Path) -> None:
    lines = [bar(step, 60) + entry(step, text=text) for step in range(5, 65, 5)]
    facts = read_training(log(tmp_path, *lines, "{'train_runtime': 3.0, 'train_loss': 0.1, 'epoch': 1.0}"))
    assert (facts.framework, facts.num_steps, facts.first_step, facts.last_step) == ("trl", 12, 5, 60)
    assert facts.curves["critic/score/mean"].values[0] == pytest.approx(0.5)
    assert facts.notes == ()


def test_without_a_bar_that_moves_lines_are_counted(tmp_path: Path) -> None:
    """Where standard output is buffered the bar is far ahead of it."""
    facts = read_training(log(tmp_path, bar(12), *(entry(step) for step in range(1, 13))))
    assert (facts.first_step, facts.last_step) == (1, 12)
    assert any("the log names no step" in note for note in facts.notes)


def test_an_evaluation_has_the_step_of_the_training_before_it(tmp_path: Path) -> None:
    evaluation = "{'eval_loss': 0.5, 'eval_reward': 0.7, 'epoch': 0.02}"
    facts = read_training(
        log(tmp_path, bar(1) + entry(1), bar(2) + entry(2), bar(4, 4) + evaluation, bar(3) + entry(3))
    )
    assert facts.curves["val-core/all/reward/mean@1"].steps == (2,)
    assert facts.last_step == 3


@pytest.mark.parametrize("again", [bar(1, 50), ""])
def test_of_two_runs_the_last_is_read(again: str, tmp_path: Path) -> None:
    first = [bar(step, 20) + entry(step, epoch=0.01 * step) for step in range(1, 6)]
    later = [again + entry(7, epoch=0.3), bar(2, 50) + entry(8, epoch=0.6)]
    if not again:
        later = [entry(7, epoch=0.01), entry(8, epoch=0.02)]
    facts = read_training(log(tmp_path, *first, *later))
    assert facts.curves["critic/score/mean"].values == pytest.approx((0.7, 0.8))
    assert any("holds 2 runs; the last was read" in note for note in facts.notes)


def test_no_number_is_no_number(tmp_path: Path) -> None:
    lines = [entry(step).replace("1.5", "nan") for step in range(1, 4)]
    assert read_training(log(tmp_path, *lines)).curves["actor/grad_norm"].nonfinite == (1, 2, 3)


def test_dictionaries_of_slime(tmp_path: Path) -> None:
    lines: list[str] = []
    for step in range(9):
        rollout = {"rollout/raw_reward": 0.1 * step, "rollout/response_len/mean": 30.0}
        lines.append(f"(RolloutManager pid=7) [2026-01-02 03:04:05] data.py:241 - rollout {step}: {rollout}")
        lines.append(f"(Actor pid=8) model.py:847 - step {step}: {dict.fromkeys(SLIME, 0.01)}")
    facts = read_training(log(tmp_path, *lines))
    assert (facts.framework, facts.num_steps, facts.last_step) == ("slime", 9, 8)
    assert facts.curves["critic/score/mean"].values[-1] == pytest.approx(0.8)


def test_a_log_with_other_dictionaries_holds_no_metrics(tmp_path: Path) -> None:
    with pytest.raises(CurveError, match="no dictionaries of a Trainer"):
        read_training(log(tmp_path, "{'lr': 1e-6, 'beta': 0.04}", "step 3: {'a': 1}"))


@pytest.mark.parametrize("numbered", [True, False])
def test_columns_of_a_json_document(numbered: bool, tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    steps = {"step": [10, 20, 30]} if numbered else {}
    path.write_text(json.dumps({**steps, "critic/score/mean": [0.1, 0.2, None], "model": "toy"}))
    curve = read_training(path).curves["critic/score/mean"]
    assert curve.steps == ((10, 20) if numbered else (1, 2))


def test_a_list_of_records(tmp_path: Path) -> None:
    path = tmp_path / "log_history.json"
    path.write_text(json.dumps([{"step": step, "reward": 0.5, "reward_std": 0.1, "completion_length": 9.0}
                                for step in (1, 2)]))  # fmt: skip
    assert read_training(path).framework == "trl"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"_step": 9, "train/reward": 0.5}', "a summary holds the last values alone"),
        ('{"a": [1, 2], "b": [1, 2, 3]}', "no columns of numbers of one length"),
        ("[1, 2]", "no list of records"),
        ("reward", "is no JSON document"),
    ],
)
def test_a_document_without_curves_says_why(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "wandb-summary.json"
    path.write_text(text)
    with pytest.raises(CurveError, match=words):
        read_training(path)


def test_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "history.parquet"
    parquet.write_table(arrow.table({"_step": [0, 1], "critic/score/mean": [0.1, 0.2], "run": ["a", "a"]}), path)
    assert read_training(path).curves["critic/score/mean"].values == (0.1, 0.2)
    path.write_bytes(b"PAR1")
    with pytest.raises(CurveError, match="cannot be read"):
        read_training(path)


def test_a_table_of_pandas_has_its_step_in_any_column(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text(",reward,reward_std,completion_length,_step\n0,0.5,0.1,9,1\n1,0.6,0.1,9,2\n")
    facts = read_training(path)
    assert facts.framework == "trl"
    assert facts.curves["critic/score/mean"].steps == (1, 2)


def test_verl_before_0_3_has_other_names(tmp_path: Path) -> None:
    parts = "timing/gen:18.1 - actor/lr(1e-4):0.010 - critic/score/mean:0.5 - response_length/mean:30.0"
    facts = read_training(log(tmp_path, *(f"step:{step} - {parts}" for step in (1, 2))))
    assert facts.framework == "verl"
    assert facts.curves["actor/lr"].values == pytest.approx((1e-6, 1e-6))
    assert facts.curves["timing_s/gen"].values == (18.1, 18.1)


def test_metrics_of_no_known_trainer_are_said_to_be_unjudged(tmp_path: Path) -> None:
    own = [{"step": step, "reward_mean": 0.1, "clip_frac": 0.0} for step in (1, 2)]
    notes = read_training(write.lines(tmp_path / "grpo.jsonl", own)).notes
    assert any("no trainer that is known writes metrics of these names (clip_frac, reward_mean)" in n for n in notes)
    pairs = [{"step": 1, "rewards/margins": 0.1, "rewards/chosen": 0.0}]
    notes = read_training(write.lines(tmp_path / "dpo.jsonl", pairs)).notes
    assert any("preference training" in note for note in notes)


def test_answers_that_were_cut_say_the_limit(tmp_path: Path) -> None:
    """Means over the steps between two lines differ, also of the longest answer."""
    cut = [{"step": step, "reward": 0.5, "completions/clipped_ratio": 0.9, "completions/mean_length": 500.0,
            "completions/max_length": 512.0 - (step == 3)} for step in range(1, 13)]  # fmt: skip
    bound = bound_of(read_training(write.lines(tmp_path / "cut.jsonl", cut)))
    assert bound is not None
    assert (bound.tokens, bound.stated) == (512.0, 0.0)
    ended = [{**record, "completions/clipped_ratio": 0.0} for record in cut]
    assert bound_of(read_training(write.lines(tmp_path / "ended.jsonl", ended))) is None
