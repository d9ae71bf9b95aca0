"""`rltrain eval` and `export`: what they take from a run, and what they leave of it."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rltrain.cli.eval import config_for
from rltrain.cli.eval import run as evaluate
from rltrain.cli.export import run as export
from rltrain.cli.from_run import run_of
from rltrain.cli.requests import EvalRequest, ExportRequest, RunRequest
from rltrain.cli.run import ending
from rltrain.cli.run import run as train
from rltrain.cluster.placement import training_roles
from rltrain.config import Machine, RunConfig, load, resolve
from rltrain.controller.prepare import tokenizer_of, with_toy
from rltrain.core.errors import RunFailure, UserError
from rltrain.records import run_record
from rltrain.records.checkpoints import CheckpointStore
from rltrain.records.run_dir import RunDir
from rltrain.toy.make import is_made, make_toy
from rltrain.workers.fsdp import models, state
from tests.trainer.cli.test_run import checkpoint
from tests.trainer.workers.fsdp.scenes import full, worker


@pytest.mark.parametrize("text", ["[]", "3", '{"config": []}', '{"config": null}'])
def test_a_record_that_is_no_record_is_named(text: str, tmp_path: Path) -> None:
    lost = checkpoint(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json holds no run config"):
        export(ExportRequest(lost, tmp_path / "out"))


def recorded(path: Path, **sampling: Any) -> RunDir:
    """A run directory with the record of a run on a toy."""
    directory = RunDir(path)
    directory.create()
    wanted = load("toy-ppo", [f"actor_rollout_ref.rollout.val_kwargs.{k}={v}" for k, v in sampling.items()])
    run_record.write_record(directory, described(wanted))
    return directory


def described(config: RunConfig) -> dict[str, Any]:
    return run_record.describe(config, command=[], chosen=[], preflight={})


@pytest.mark.parametrize(
    ("own", "n", "overrides", "expected"),
    [
        ({"do_sample": "true", "temperature": 0.7}, 1, (), (False, 0.7)),
        ({}, 4, (), (True, 1.0)),
        ({"temperature": 0.7}, 4, (), (True, 0.7)),
        ({"temperature": 0.7}, 4, ("temperature=0.2",), (True, 0.2)),
        ({}, 1, ("do_sample=true", "temperature=0.3"), (True, 0.3)),
    ],
)
def test_one_answer_is_greedy_and_more_are_sampled(
    own: dict[str, Any], n: int, overrides: tuple[str, ...], expected: tuple[bool, float], tmp_path: Path
) -> None:
    given = [f"actor_rollout_ref.rollout.val_kwargs.{override}" for override in overrides]
    found = config_for(recorded(tmp_path / "run", **own), given, n, tmp_path).actor_rollout_ref.rollout.val_kwargs
    assert (found.do_sample, found.temperature, found.n) == (*expected, n)


def evaluated(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, *overrides: str
) -> tuple[int, RunDir, RunConfig, RunDir]:
    """`rltrain eval` of a run in PATH, ended by ERROR: exit code, the run, the config and where its toy lies."""
    directory, seen = recorded(path), list[tuple[RunConfig, RunDir]]()
    make_toy(load("toy-ppo"), directory.toy)
    place = CheckpointStore(directory.checkpoints, None).save(3, {}, lambda _: None).path

    def fail(config: RunConfig, home: RunDir, _checkpoint: Path, logs: Path) -> list[list[float]]:
        seen.append((config, home))
        (logs / "rollout-0.log").write_text("== rollout, process 1, now\nValueError: no such layer\n")
        raise error

    monkeypatch.setattr("rltrain.cli.eval._rewards", fail)
    code = evaluate(EvalRequest(place, overrides))
    return code, directory, *seen[0]


def test_a_broken_evaluation_ends_in_words_with_logs_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, directory, _, home = evaluated(tmp_path / "run", monkeypatch, KeyError("x"))
    lines = capsys.readouterr().err.splitlines()
    log = directory.logs / "eval" / "controller.log"
    assert code == 1
    assert lines[0] == f"rltrain: KeyError: 'x'; its traceback: {log}"
    assert "KeyError" in log.read_text()
    assert lines[-1] == f"Logs: {directory.logs / 'eval'}"
    assert home.path == directory.path
    code, *_ = evaluated(tmp_path / "other", monkeypatch, RunFailure("rollout-0 died; see rollout-0.log"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "rltrain: rollout-0 died; see rollout-0.log",
        f"Likely cause: ValueError: no such layer ({tmp_path / 'other/logs/eval/rollout-0.log'}:2)",
    ]


def test_an_evaluation_asks_for_nothing_that_only_training_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    val = tmp_path / "val.jsonl"
    val.touch()
    gone = (f"data.val_files={val}", "data.train_files=/gone", "sft_warmup.files=/gone")
    resumed = ("trainer.resume_mode=resume_path", "trainer.resume_from_path=/gone/global_step_1")
    _, _, found, _ = evaluated(tmp_path / "run", monkeypatch, KeyError(), *gone, *resumed)
    assert found.data.train_files == found.data.val_files == (str(val),)
    assert (found.sft_warmup.steps, found.sft_warmup.files, found.trainer.resume_from_path) == (0, None, None)


@pytest.mark.parametrize("asked", ["actor_rollout_ref.actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true"])
def test_an_evaluation_has_neither_critic_nor_reference(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's config is one that training needs four models for."""
    values = (asked, "trainer.critic_warmup=1")
    assert training_roles(resolve(load("toy-ppo", values), Machine("cpu", 0, 1))) == ("actor", "ref", "critic")
    _, _, found, _ = evaluated(tmp_path / "run", monkeypatch, KeyError(), *values)
    assert training_roles(found) == ("actor",)
    assert found.trainer.n_gpus_per_node == load("toy-ppo").trainer.num_cpu_ranks


def test_an_export_makes_and_reads_the_actor_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that measured KL, whose reference the checkpoint holds."""
    directory = RunDir(tmp_path / "run")
    directory.create()
    values = ("actor_rollout_ref.actor.use_kl_loss=true", "trainer.num_cpu_ranks=1")
    run_record.write_record(directory, described(load("toy-ppo", values)))
    config = with_toy(resolve(load("toy-ppo", values), Machine("cpu", 0, 1)), directory)
    with worker(config) as rank:
        rank.sft_step([(list(range(7, 13)), list(range(7, 13)))])
        rank.end_sft()
        store = CheckpointStore(directory.checkpoints, None)
        place = store.save(1, {}, rank.save).path
        expected = full(rank)
    for module, name in ((models, "make_reference"), (models, "make_critic"), (state, "load")):
        monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(f"called {name}"))
    assert export(ExportRequest(place, tmp_path / "out")) == 0
    exported: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    source: Any = AutoModelForCausalLM.from_pretrained(directory.toy / "model", dtype=torch.float32)
    ids = torch.arange(7, 17)[None]
    with torch.no_grad():
        fresh = source.eval()(ids).logits
        source.load_state_dict(expected)
        trained = source.eval()(ids).logits
        assert not torch.equal(trained, fresh)
        assert torch.equal(exported.eval()(ids).logits, trained)


def test_an_evaluation_refuses_what_no_answers_can_show(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run")
    place = CheckpointStore(directory.checkpoints, None).save(3, {}, lambda _: None).path
    with pytest.raises(UserError, match="--pass nan: must be a number"):
        evaluate(EvalRequest(place, passing=math.nan))
    with pytest.raises(UserError, match=r"--k 4: an override of val_kwargs\.n leaves 2 answers a prompt"):
        evaluate(EvalRequest(place, ("actor_rollout_ref.rollout.val_kwargs.n=2",), 4, (1, 4)))


def test_an_evaluation_of_another_toy_leaves_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, directory, config, home = evaluated(tmp_path / "run", monkeypatch, KeyError(), "trainer.seed=99")
    assert home.path != directory.path
    assert config.trainer.seed == 99
    assert is_made(load("toy-ppo"), directory.toy)


def test_a_checkpoint_is_found_in_its_run_by_any_path(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run")
    store = CheckpointStore(directory.checkpoints, None)
    for step in (3, 5):
        store.save(step, {}, lambda _: None)
    for place in ("global_step_5", "global_step_3/../global_step_5", "../checkpoints/global_step_5"):
        found, run = run_of(directory.checkpoints / place)
        assert (found.step, run.path) == (5, directory.path)
    (moved,) = store.set_aside_after(3)
    found, run = run_of(moved)
    assert (found.path, run.path) == (moved, directory.path)


def test_the_best_step_of_the_closing_line_is_one_that_was_saved_or_said_not_to_be(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run")
    values = {0: 0.1, 60: 0.95, 90: 0.9}
    lines = [json.dumps({"step": step, "val/reward/mean": value}) + "\n" for step, value in values.items()]
    directory.metrics.write_text("".join(lines))
    store = CheckpointStore(directory.checkpoints, None)
    store.save(90, {}, lambda _: None)
    assert ending(directory, {"steps": 90, "wall_s": 1.0})[0].endswith(
        "0.100 -> 0.900, best 0.950 (step 60, not saved)"
    )
    store.save(60, {}, lambda _: None)
    assert ending(directory, {"steps": 90, "wall_s": 1.0})[0].endswith("best 0.950 (step 60)")


def test_without_a_checkpoint_auto_keeps_what_an_earlier_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = recorded(tmp_path / "run")
    directory.metrics.write_text('{"step": 0}\n')
    monkeypatch.setattr("rltrain.cli.run._train", lambda *_: {"steps": 0, "wall_s": 0.0})
    values = (f"trainer.default_local_dir={directory.path}", "trainer.resume_mode=auto")
    asked = RunRequest("toy-ppo", values, skip_checks=True)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert train(asked) == 0
        assert (tmp_path / "run.1" / "metrics.jsonl").read_text() == '{"step": 0}\n'
        assert not directory.metrics.exists()
        CheckpointStore(directory.checkpoints, None).save(1, {}, lambda _: None)
        directory.metrics.write_text('{"step": 1}\n')
        assert train(asked) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert directory.metrics.read_text() == '{"step": 1}\n'
    assert not (tmp_path / "run.2").exists()
    assert f"it is kept as {tmp_path / 'run.1'}" in capsys.readouterr().out


def test_an_export_has_the_template_of_the_run(tmp_path: Path) -> None:
    config = load("toy-ppo", ["actor_rollout_ref.model.custom_chat_template='{{ messages[0].content }}!'"])
    made = with_toy(resolve(config, Machine("cpu", 0, 1)), RunDir(tmp_path))
    with worker(made) as rank:
        rank.export(tmp_path / "out")
    loaded: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "copy 12"}]
    own: Any = tokenizer_of(made)
    assert loaded.apply_chat_template(messages, tokenize=False) == "copy 12!"
    assert loaded.apply_chat_template(messages)["input_ids"] == own.apply_chat_template(messages)["input_ids"]
    assert (loaded.eos_token_id, loaded.pad_token_id, len(loaded)) == (own.eos_token_id, own.pad_token_id, len(own))
