"""How a config is cut down to one step, and what is said when the step fails. A whole step runs with the preflight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.rollout import StageTime
from rltrain.config import check, load, resolve
from rltrain.config.resolve import Machine
from rltrain.core.errors import UserError
from rltrain.measure.smoke import plugin as smoke

CPU = Machine("cpu", 0, 2)
HF = "actor_rollout_ref.rollout.name=hf"


def cut(tmp_path: Path, source: str, *overrides: str) -> tuple[int, Any]:
    """The batch that is chosen, and the config that it makes."""
    words = [HF, *overrides]
    loaded = load(source, words)
    batch = smoke.smallest_batch(loaded)
    changed = smoke._changes(resolve(loaded, CPU), batch, tmp_path / "run")
    config = resolve(load(source, [*words, *changed]), CPU)
    check(config)
    return batch, config


@pytest.mark.parametrize("source", ["toy-ppo", "toy-grpo"])
def test_the_batch_fills_one_micro_batch_on_every_rank(tmp_path: Path, source: str) -> None:
    batch, config = cut(tmp_path, source)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    samples = batch * rollout.n
    assert samples >= config.trainer.n_gpus_per_node * actor.ppo_micro_batch_size_per_gpu
    assert batch < load(source, [HF]).data.train_batch_size
    assert (actor.ppo_mini_batch_size, config.data.train_batch_size) == (batch, batch)
    assert (config.trainer.total_training_steps, config.sft_warmup.steps) == (1, 0)
    assert (config.trainer.save_freq, config.trainer.test_freq) == (1, 1), "the one step is validated and saved"
    assert Path(config.trainer.default_local_dir) == tmp_path / "run"


def test_the_user_s_limit_of_rows_is_kept(tmp_path: Path) -> None:
    _, config = cut(tmp_path, "toy-grpo", "data.train_max_samples=70")
    assert config.data.train_max_samples == 70


def test_a_config_that_no_batch_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: Any) -> None:
        raise UserError("actor: 3 does not divide 4")

    monkeypatch.setattr(smoke, "check", refuse)
    with pytest.raises(UserError, match=r"no batch of at most 64 prompts .*: actor: 3 does not divide 4"):
        cut(tmp_path, "toy-grpo")


def test_the_run_s_own_words_are_kept() -> None:
    lines = ["starting Ray: 6.0 s", "Traceback", "rltrain: engine 0 failed", "Likely cause: OOM", "Logs: /x"]
    assert smoke.last_words(lines, 1) == "engine 0 failed Likely cause: OOM Logs: /x"
    assert smoke.last_words([], -9) == "the run ended with status -9"


def test_metrics_of_the_last_step_that_trained(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0, "a": 1}\n{"step": 1, "a": 2.5, "b": null, "c": "words"}\n')
    found = smoke._metrics(file)
    assert found["a"] == 2.5
    assert found["b"] != found["b"]
    assert set(found) == {"step", "a", "b"}
    assert smoke._metrics(tmp_path / "none") == {}


def test_a_run_is_followed_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for rltrain, which takes ten seconds to import."""
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\necho 'starting Ray: 6.0 s'\necho \"$3\"\necho 'rltrain: broke' >&2\nexit 1\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(smoke.sys, "executable", str(stand_in))
    told: list[dict[str, Any]] = []
    stages, lines, status = smoke._trained(["toy-grpo", "a=b"], told.append)
    assert (stages, status) == ([StageTime(name="starting Ray", seconds=6.0)], 1)
    assert lines == ["starting Ray: 6.0 s", "toy-grpo", "rltrain: broke"]
    assert {"partial": {"stages": [{"name": "starting Ray", "seconds": 6.0}]}} in told
    assert told[-1] == {"stage": "run, after 'rltrain: broke'"}
