"""What users give by mistake, or to break it: each ends in one line or in a finding, and never in a wrong word."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.facts.base import MissingKind
from rlcheck.facts.config import ConfigFacts
from rlcheck.measure.config import models, source_text
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.read import read_run

MAIN = "python3 -m verl.trainer.main_ppo"


def script(tmp_path: Path, text: str, words: tuple[str, ...] = (), version: str = "0.9.1") -> ConfigFacts:
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    return read_run(str(path), words, framework=f"verl@{version}", look=False)


def said(run: ConfigFacts) -> dict[str, str]:
    return {problem.key: problem.message for problem in run.problems if problem.key != "actor_rollout_ref.rollout.name"}


def test_names_of_files_and_small_letters_are_worked_out(tmp_path: Path) -> None:
    text = f'ID=${{ID:-Org/Qwen2.5-0.5B}}\nname="$(basename "${{ID,,}}")-x"\n{MAIN} trainer.experiment_name="$name"\n'
    run = script(tmp_path, f"{text[:-1]} trainer.project_name=$(dirname /a/b) data.train_files=$(pwd)/a.parquet\n")
    assert (run.spec.experiment, run.spec.project) == ("qwen2.5-0.5b-x", "/a")
    assert run.spec.data.train_files == (f"{os.getcwd()}/a.parquet",)
    assert said(run) == {}


def test_what_only_the_shell_knows_is_a_default_and_no_failure(tmp_path: Path) -> None:
    words = (
        "trainer.nnodes=$(nproc) actor_rollout_ref.rollout.n=`nproc --all` actor_rollout_ref.actor.use_dynamic_bsz=$D"
    )
    run = script(tmp_path, f'{MAIN} {words} trainer.experiment_name=$(date +%F)-${{X##*/}} "${{@:2}}"\n')
    assert (run.spec.nodes, run.spec.rollout.n, run.spec.actor.dynamic_batch) == (1, 1, False)
    assert run.values["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"] is False
    assert {problem.kind for problem in run.problems} == {"unresolved", "missing"}
    assert "missing" not in {problem.kind for problem in run.problems if problem.key == "trainer.experiment_name"}
    assert "`nproc --all` is not run and is left as it is" in run.notes


def test_a_script_that_starts_nothing_known_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"run\.sh: no command in it starts verl\.trainer\.main_ppo"):
        script(tmp_path, "python3 -m mine.train \\\n  data.train_batch_size=8\n")


def test_an_override_of_the_command_line_keeps_its_own_place(tmp_path: Path) -> None:
    run = script(tmp_path, f"{MAIN} trainer.nnodes=2\n", ("trainer.nnodes=3",))
    assert run.spec.nodes == 3
    assert run.given["trainer.nnodes"].line == 0


def test_a_model_engine_that_the_release_has_not_is_refused(tmp_path: Path) -> None:
    old, new = (script(tmp_path, f"{MAIN} model_engine=megatron\n", version=version) for version in ("0.7.1", "0.9.1"))
    assert "use --config-name=ppo_megatron_trainer" in said(old)["model_engine"]
    assert "model_engine" not in said(new)


def test_the_gradient_clip_is_the_one_that_the_release_reads(tmp_path: Path) -> None:
    words = "actor_rollout_ref.actor.grad_clip=5 actor_rollout_ref.actor.optim.clip_grad=2"
    old, new = (script(tmp_path, f"{MAIN} {words}\n", version=version) for version in ("0.7.1", "0.9.1"))
    assert (old.spec.actor.optim.grad_clip, new.spec.actor.optim.grad_clip) == (5, 2)


@pytest.mark.parametrize(
    "text", ["trainer: " + "{a: " * 100_000, "trainer:\n" + "- " * 50_000, "trainer: " + "[" * 9000]
)
def test_depths_that_end_the_yaml_library_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ReadError, match="nested deeper"):
        read_run(str(path), (), framework="verl", look=False)


def test_a_pipe_is_read_and_a_silent_one_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("trainer: {nnodes: 4}", encoding="utf-8"))
    writer.start()
    assert read_run(str(pipe), (), framework="verl", look=False).spec.nodes == 4
    writer.join()
    monkeypatch.setattr(source_text, "_PIPE_DEADLINE_S", 0.1)
    with pytest.raises(ReadError, match="nobody wrote"):
        read_run(str(pipe), (), framework="verl", look=False)


def test_numbers_and_sections_that_make_no_sense_are_named_and_can_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        f"trainer: {{nnodes: {9 * 10**30}, n_gpus_per_node: -5, save_freq: 0x10}}\n"
        "actor_rollout_ref: {rollout: {n: 0, name: vllm}}\nalgorithm: 3\n",
        encoding="utf-8",
    )
    run = read_run(str(path), (), framework="verl", look=False)
    assert run.spec.save_freq == 16
    assert set(said(run)) == {
        "trainer.nnodes", "trainer.n_gpus_per_node", "actor_rollout_ref.rollout.n", "algorithm"
    }  # fmt: skip
    assert "expected a section" in said(run)["algorithm"]
    assert msgspec.json.decode(msgspec.json.encode(run), type=ConfigFacts).spec == run.spec


def test_a_model_with_odd_sizes_can_be_recorded(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"max_position_embeddings": True, "vocab_size": 10**30, "auto_map": 7, "text_config": []}
    (tmp_path / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": [1], "metadata": 3}', encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": [1], "eos_token": 3}), encoding="utf-8"
    )
    run = read_run("ppo_trainer", [f"actor_rollout_ref.model.path={tmp_path}"], framework="verl")
    assert run.models["actor"].value is not None
    assert run.spec.rollout.max_model_len == 1024, "the lengths of the data, since the model's own is no number"
    assert msgspec.json.decode(msgspec.json.encode(run), type=ConfigFacts).spec == run.spec


def test_a_model_on_a_server_that_is_gone_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> int:
        raise subprocess.TimeoutExpired(path, 5.0)

    monkeypatch.setattr("rlcheck.measure.config.mounts.mode_of", gone)
    run = read_run("ppo_trainer", [f"actor_rollout_ref.model.path={tmp_path}"], framework="verl")
    missing = run.models["actor"].missing
    assert missing is not None
    assert missing.kind is MissingKind.TIMEOUT


def test_a_pipe_in_the_place_of_a_models_file_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert models.model_directory(str(tmp_path)) == tmp_path
    run = read_run("ppo_trainer", [f"actor_rollout_ref.model.path={tmp_path}"], framework="verl")
    assert run.models["actor"].value is None
