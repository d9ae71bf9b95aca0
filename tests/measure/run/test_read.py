"""A run's directory as facts: rltrain's own, those of peers, several runs, bare files, ranks and samples."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.base import need
from rlcheck.measure.run.locate import locate
from rlcheck.measure.run.read import CurveError, read_training
from rlcheck.measure.run.samples import MOST_FILES
from tests.measure.run import write

CONFIG = {
    "trainer": {"total_training_steps": 90, "logger": ["console"]},
    "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-3}}, "model": {"path": None}},
}


def rltrain(place: Path, steps: int = 20, **record: Any) -> Path:
    """A run directory as rltrain leaves it."""
    metrics = [{"step": 0, "val/reward/mean": 0.1}]
    for step in range(1, steps + 1):
        audit = {"response_tokens": 10, "loss_tokens": 10.0, "optimizer_steps": 4 * step,
                 "parameter_sha256": ["a", "b"],
                 "shard_sha256": ["c", "d"], "shard_losses": [0.5, 0.25], "rescored": {"reward": 1.0, "again": 1.0},
                 "recomputed": {"max_abs_diff": 1e-7}}  # fmt: skip
        metrics.append({"step": step, "critic/score/mean": step / 90, "timing_s/step": 1.0, "audit": audit})
    write.lines(place / "metrics.jsonl", metrics)
    row = {"uid": "0-1", "data_source": "toy/copy", "prompt": "copy 12", "response": "12", "ground_truth": "12",
           "reward": 1.0, "reward_parts": {"digits": 1.0}, "response_length": 3, "policy_version": 0}  # fmt: skip
    for step in (1, 11):
        write.lines(place / "samples" / f"step_{step}.jsonl", [{"step": step, **row}] * 8)
    (place / "run.json").write_text(json.dumps({"config": CONFIG, **record}))
    return place


def test_a_run_directory_of_rltrain(tmp_path: Path) -> None:
    run = rltrain(tmp_path / "run", outcome="failed", error="rank 1 died\nmore")
    os.utime(run / "metrics.jsonl", (1000.0, 1000.0))
    facts = read_training(run, now=1060.0)
    assert (facts.framework, facts.outcome, facts.error) == ("rltrain", "failed", "rank 1 died")
    assert (facts.num_steps, facts.first_step, facts.last_step, facts.total_steps) == (20, 1, 20, 90)
    assert need(facts.idle_s) == 60.0
    assert facts.settings["actor_rollout_ref.actor.optim.lr"] == 1e-3
    assert facts.settings["trainer.logger"] == ["console"]
    assert facts.files == ("metrics.jsonl",)
    assert facts.curves["val/reward/mean"].steps == (0,)
    audit = need(facts.audit)
    assert (audit[4].step, audit[4].optimizer_steps, audit[4].shard_losses) == (5, 20, (0.5, 0.25))
    assert (audit[4].reward, audit[4].reward_again, audit[4].recomputed_max_diff) == (1.0, 1.0, 1e-7)
    samples = need(facts.samples)
    assert len(samples) == 16
    assert (samples[0].step, samples[0].response, samples[0].length, samples[0].parts) == (1, "12", 3, {"digits": 1.0})
    assert facts.notes == ()
    assert read_training(run / "metrics.jsonl", now=1060.0) == facts, "its metrics file stands for the run"


def test_whether_its_process_lives(tmp_path: Path) -> None:
    run = rltrain(tmp_path / "run")
    assert read_training(run).outcome == ""
    lock = run / "run.lock"
    lock.write_text("1\n")
    assert read_training(run).outcome == "dead"
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert read_training(run).outcome == "running"


@pytest.mark.parametrize("content", ["{", "[1]", '{"config": 3}', '{"config": {"a": {"b": {}}}, "outcome": 4}'])
def test_a_record_that_is_broken(tmp_path: Path, content: str) -> None:
    run = rltrain(tmp_path / "run")
    (run / "run.json").write_text(content)
    facts = read_training(run)
    assert (facts.framework, facts.settings, facts.outcome, facts.num_steps) == ("rltrain", {}, "", 20)


def verl_metrics(place: Path, name: str = "exp.jsonl", score: float = 0.5, steps: int = 9) -> Path:
    data = {"critic/score/mean": score, "response_length/mean": 9.0, "timing_s/step": 1.0}
    return write.lines(place / name, [{"step": step, "data": data} for step in range(1, steps + 1)])


def test_a_verl_run_with_its_config_and_dumps(tmp_path: Path) -> None:
    verl_metrics(tmp_path)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        "actor_rollout_ref:\n  actor:\n    optim: {lr: 0.5}\ntrainer:\n  total_training_steps: 50\n"
    )
    row = {"input": "2+2?", "output": "4", "gts": "4", "score": 1.0, "acc": True, "step": 3}
    write.lines(tmp_path / "rollouts" / "3.jsonl", [row] * 100)
    write.lines(tmp_path / "a_val_dump" / "3.jsonl", [{**row, "output": "validation"}])
    facts = read_training(tmp_path)
    assert (facts.framework, facts.num_steps, facts.total_steps) == ("verl", 9, 50)
    assert facts.settings["actor_rollout_ref.actor.optim.lr"] == 0.5
    samples = need(facts.samples)
    assert (samples[0].prompt, samples[0].response, samples[0].ground_truth, samples[0].reward) == (
        "2+2?",
        "4",
        "4",
        1.0,
    )
    assert samples[0].parts == {"acc": 1.0}


def test_samples_of_many_steps_are_spread_and_long_texts_cut(tmp_path: Path) -> None:
    verl_metrics(tmp_path)
    for step in range(1, 201):
        write.lines(tmp_path / "dump" / f"{step}.jsonl", [{"input": "q", "output": "a" * 9000 + "42", "score": 1.0}])
    samples = need(read_training(tmp_path).samples)
    assert len({row.step for row in samples}) == MOST_FILES
    assert (samples[0].step, samples[-1].step) == (1, 200)
    assert len(samples[0].response) < 2100
    assert samples[0].response.endswith("42")


def test_trainer_state_of_the_newest_checkpoint_and_tensorboard(tmp_path: Path) -> None:
    def state(steps: int) -> None:
        place = tmp_path / f"checkpoint-{steps}"
        place.mkdir()
        history = [{"step": step, "epoch": 0.1, "reward": 0.5, "completions/mean_length": 9.0, "kl": float("nan"),
                    "frac_reward_zero_std": 0.0, "learning_rate": 1e-6} for step in range(1, steps + 1)]  # fmt: skip
        (place / "trainer_state.json").write_text(
            json.dumps({"global_step": steps, "max_steps": 99, "log_history": history})
        )
        os.utime(place / "trainer_state.json", (1000.0 + steps, 1000.0 + steps))

    state(10)
    state(20)
    events = tmp_path / "runs" / "Nov22_09-19-20_host" / "events.out.tfevents.1"
    events.parent.mkdir(parents=True)
    body = (write.record(write.event(1.0, step, write.scalar("train/reward", 0.75))) for step in range(15, 26))
    events.write_bytes(write.start(1.0) + b"".join(body))
    facts = read_training(tmp_path)
    assert (facts.framework, facts.total_steps, facts.last_step) == ("trl", 99, 25)
    assert facts.curves["critic/score/mean"].steps == tuple(range(1, 26))
    assert facts.curves["critic/score/mean"].values[-1] == 0.75
    assert facts.curves["actor/kl_loss"].nonfinite == tuple(range(1, 21))
    alone = read_training(tmp_path / "checkpoint-10" / "trainer_state.json")
    assert (alone.framework, alone.last_step) == ("trl", 10)


def test_the_newest_of_several_runs(tmp_path: Path) -> None:
    for place, name in enumerate(("one", "two", "three")):
        file = verl_metrics(tmp_path / name, "metrics.jsonl", score=place)
        os.utime(file, (1000.0 + (place == 1), 1000.0 + (place == 1)))
    facts = read_training(tmp_path)
    assert facts.curves["critic/score/mean"].values[0] == 1.0
    assert facts.notes == (f"{tmp_path} holds 3 runs; two, written last, was read",)


def test_several_files_of_one_directory(tmp_path: Path) -> None:
    for place, name in enumerate(("a.jsonl", "b.jsonl")):
        os.utime(verl_metrics(tmp_path, name, score=place), (1000.0 - place, 1000.0 - place))
    write.lines(tmp_path / "eval.jsonl", [{"step": 5, "val-core/gsm8k/acc/mean@1": 0.5}])
    facts = read_training(tmp_path)
    assert facts.curves["critic/score/mean"].values[0] == 0.0
    assert "val-core/gsm8k/acc/mean@1" in facts.curves, "a file of other metrics belongs to the run"
    assert facts.notes == (
        f"{tmp_path} holds 3 files of metrics, some of the same; written last, and read: eval.jsonl, a.jsonl",
    )


@pytest.mark.parametrize(
    "name", ["rank_{}.jsonl", "metrics_rank{}.jsonl", "rank{}/metrics.jsonl", "logs/rank-{}.jsonl"]
)
def test_metrics_of_each_rank(tmp_path: Path, name: str) -> None:
    for rank in range(3):
        records = [
            {"step": step, "timing_s/step": rank + 1.0, **({"extra": 1.0} if rank == 2 else {})} for step in range(5)
        ]
        write.lines(tmp_path / name.format(rank), records)
    facts = read_training(tmp_path)
    assert [curve.values[0] for curve in facts.ranks["timing_s/step"]] == [1.0, 2.0, 3.0]
    assert [len(curve.steps) for curve in facts.ranks["extra"]] == [0, 0, 5]
    assert facts.num_steps == 5
    verl_metrics(tmp_path)
    both = read_training(tmp_path)
    assert len(both.ranks["timing_s/step"]) == 3
    assert "critic/score/mean" in both.curves


def test_ranks_beside_the_metrics_of_rltrain(tmp_path: Path) -> None:
    run = rltrain(tmp_path / "run")
    for rank in range(2):
        write.lines(run / "logs" / f"rank_{rank}.jsonl", [{"step": 1, "perf/run_memory_used_gb": float(rank)}])
    assert [curve.values for curve in read_training(run).ranks["perf/run_memory_used_gb"]] == [(0.0,), (1.0,)]


def test_a_run_that_wrote_no_metrics_says_how_it_ended(tmp_path: Path) -> None:
    run = rltrain(tmp_path / "run", outcome="failed", error="the config has no data")
    (run / "run.lock").write_text("1\n")
    (run / "metrics.jsonl").write_text("")
    for _ in range(2):
        with pytest.raises(CurveError, match=r"the run wrote no metrics \(failed: the config has no data\)"):
            read_training(run)
        (run / "metrics.jsonl").unlink(missing_ok=True)


def test_samples_lie_where_the_config_says(tmp_path: Path) -> None:
    elsewhere = write.lines(tmp_path / "elsewhere" / "step_4.jsonl", [{"response": "there", "reward": 1.0}]).parent
    run = rltrain(tmp_path / "run")
    config = {**CONFIG, "trainer": {"rollout_data_dir": str(elsewhere)}}
    (run / "run.json").write_text(json.dumps({"config": config}))
    assert [(row.step, row.response) for row in need(read_training(run).samples)] == [(4, "there")]


def test_a_trainer_and_its_orchestrator_are_one_run(tmp_path: Path) -> None:
    trainer = [{"step": step, "mismatch_kl/all/mean": 0.1, "optim/grad_norm": 1.0} for step in range(5)]
    other = [{"step": step, "train/agg/effective/reward/mean": 0.5} for step in range(5)]
    write.lines(tmp_path / "metrics.jsonl", trainer)
    write.lines(tmp_path / "run_default" / "metrics.jsonl", other)
    facts = read_training(tmp_path)
    assert facts.framework == "prime-rl"
    assert {"critic/score/mean", "actor/grad_norm", "rollout_corr/k3_kl"} <= set(facts.curves)
    assert facts.notes == ()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    verl_metrics(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert read_training(tmp_path).num_steps == 9
    with pytest.raises(CurveError, match="neither a directory nor a plain file"):
        read_training(tmp_path / "pipe.jsonl")


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    write.lines(empty / "samples.jsonl", [{"step": 1, "prompt": "p", "response": "r", "reward": 1.0}])
    text = tmp_path / "run.txt"
    text.write_text("no metrics")
    bare = write.lines(tmp_path / "nosteps.jsonl", [{"x": 1.0}] * 5)
    state = tmp_path / "state.json"
    state.write_text("{}")
    for path, words in (
        (tmp_path / "missing", "no such file or directory"),
        (empty, "holds no metrics"),
        (text, "holds no metrics: no JSON lines, no lines of verl.s console"),
        (bare, "no metric with a step"),
        (state, "no log_history"),
    ):
        with pytest.raises(CurveError, match=words) as caught:
            read_training(path)
        assert "\n" not in str(caught.value)


def test_a_bad_line_and_lines_without_a_step_are_noted(tmp_path: Path) -> None:
    path = verl_metrics(tmp_path)
    with path.open("a") as file:
        file.write('Traceback\n{"x": 1}\n{"step": 10')
    assert [note.partition(":")[0] for note in read_training(path).notes] == ["exp.jsonl", "exp.jsonl"]
    assert "the first: line 10" in read_training(path).notes[0]


def test_checkpoints_are_not_searched_for_metrics(tmp_path: Path) -> None:
    verl_metrics(tmp_path)
    verl_metrics(tmp_path / "global_step_5" / "data", score=9.0)
    assert [file.name for file in locate(tmp_path).lines] == ["exp.jsonl"]
    assert locate(tmp_path).written() <= time.time()


def test_what_a_run_of_rltrain_proves_is_read(tmp_path: Path) -> None:
    run = rltrain(tmp_path / "run")
    rules = [{"kind": "digits", "weight": 1.0, "name": None}]
    (run / "run.json").write_text(json.dumps({"config": {"reward_model": {"rules": rules, "odd": [{"a": {}}]}}}))
    audit = {"adam_steps": 4, "truth_scored": [{"ground_truth": 12, "reward": 0.75}, {"reward": None}, 3]}
    write.lines(run / "metrics.jsonl", [{"step": 1, "critic/score/mean": 0.5, "audit": audit}])
    facts = read_training(run)
    (one,) = need(facts.audit)
    assert (one.adam_steps, one.truths) == (4, (("12", 0.75),))
    assert facts.settings == {"reward_model.rules": rules}
