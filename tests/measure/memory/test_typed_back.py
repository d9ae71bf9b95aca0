"""Every change that is advised is typed behind the config, read again, and predicted: it does what was said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import Change
from rlcheck.measure.config.read import read_run
from rlcheck.measure.memory.gpus import by_name
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.profile import profile
from rlcheck.measure.memory.summary import fits
from tests.bench.gpu.memory_configs import SIZES
from tests.measure.memory.samples import GIB

LARGE = {**SIZES["8B"], "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
         "num_attention_heads": 64}  # fmt: skip
MODELS = {"small": SIZES["0.5B"], "7b": SIZES["7B"], "70b": LARGE, "moe": SIZES["MoE"]}
HOST_BYTES = 1024 * GIB
_A = "actor_rollout_ref"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories that hold a config.json each."""
    root = tmp_path_factory.mktemp("models")
    for name, sizes in MODELS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(sizes))
    return root


def verl(models: Path, model: str, *more: str, gpus: int = 8, nodes: int = 1, gae: bool = False) -> list[str]:
    """The words of a verl run: responses of 8k tokens, micro batches of four samples."""
    words = [
        "python3", "-m", "verl.trainer.main_ppo", f"algorithm.adv_estimator={'gae' if gae else 'grpo'}",
        "data.train_batch_size=256", "data.max_prompt_length=1024", "data.max_response_length=8192",
        f"{_A}.model.path={models / model}", f"{_A}.actor.ppo_mini_batch_size=64",
        f"{_A}.actor.ppo_micro_batch_size_per_gpu=4", f"{_A}.rollout.log_prob_micro_batch_size_per_gpu=8",
        f"{_A}.ref.log_prob_micro_batch_size_per_gpu=8", f"{_A}.rollout.name=vllm", f"{_A}.rollout.n=8",
        f"{_A}.rollout.tensor_model_parallel_size=1",
        f"trainer.n_gpus_per_node={gpus}", f"trainer.nnodes={nodes}",
    ]  # fmt: skip
    words += [f"critic.model.path={models / model}", "critic.ppo_micro_batch_size_per_gpu=4"] if gae else []
    return [*words, *more]


CASES: dict[str, tuple[str, Any]] = {
    "LoRA on a small GPU": ("rtx4090", lambda at: verl(at, "7b", f"{_A}.model.lora_rank=32", gpus=1)),
    "PPO": ("a100-80gb", lambda at: verl(at, "7b", gpus=4, gae=True)),
    "an engine that never sleeps": ("h100", lambda at: verl(at, "7b", f"{_A}.rollout.free_cache_engine=False")),
    "70B, one GPU an engine": ("h100", lambda at: verl(at, "70b", nodes=8)),
    "small on small": ("t4", lambda at: verl(at, "small", gpus=1)),
    "Megatron": (
        "h100",
        lambda at: verl(
            at, "7b", "--config-name=ppo_megatron_trainer", f"{_A}.actor.megatron.tensor_model_parallel_size=4"
        ),
    ),
    "experts": ("l4", lambda at: verl(at, "moe", gpus=2, gae=True)),
}  # fmt: skip


def changes(run: ConfigFacts, gpu: Gpu) -> tuple[Change, ...]:
    found = profile(run, gpu, HOST_BYTES)
    assert not fits(found)
    return found.changes


@pytest.mark.parametrize("name", CASES)
def test_a_change_does_what_was_said_of_it(name: str, models: Path) -> None:
    kind, words = CASES[name]
    gpu = Gpu(kind, by_name(kind).total_bytes)
    line = " ".join(words(models))
    run = read_run(line, ())
    advised = changes(run, gpu)
    assert advised
    for change in advised:
        again = read_run(line, change.overrides)
        then = profile(again, gpu, HOST_BYTES)
        assert {problem.key for problem in again.problems} <= {problem.key for problem in run.problems}, change
        assert then.peak is not None
        assert (then.peak.num_bytes, fits(then)) == (change.peak_bytes, change.fits), change


def test_the_same_for_a_file_of_the_spec_and_a_recipe(models: Path, tmp_path: Path) -> None:
    gpu = Gpu("L4", by_name("L4").total_bytes)
    spec = {"nodes": 1, "gpus_per_node": 1, "actor": {"name": "actor", "model": {"path": str(models / "7b")},
            "micro_batch_size": 4}, "rollout": {"n": 4}}  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(spec))
    for source, given in ((str(tmp_path / "run.json"), ()), ("gsm8k-grpo", (f"{_A}.model.path={models / '7b'}",))):
        run = read_run(source, given)
        advised = changes(run, gpu)
        assert advised, source
        for change in advised:
            then = profile(read_run(source, (*given, *change.overrides)), gpu, HOST_BYTES)
            assert then.peak is not None
            assert (then.peak.num_bytes, fits(then)) == (change.peak_bytes, change.fits), (source, change)


def test_what_these_gpus_can_hold_is_said_before_more_of_them(models: Path) -> None:
    """Twice the GPUs would do alone; smaller passes and states on the host do too."""
    run = read_run(" ".join(verl(models, "7b", gpus=4, gae=True)), ())
    advised = changes(run, Gpu("A100", by_name("a100-80gb").total_bytes))
    assert advised[0].fits
    assert not any(word.startswith(("trainer.n", f"{_A}.model.lora")) for word in advised[0].overrides)


def test_an_engine_that_cannot_start_is_told_its_length_first(models: Path) -> None:
    """32,768 positions of the model, of which the run needs 9,216."""
    run = read_run(" ".join(verl(models, "7b", f"{_A}.rollout.gpu_memory_utilization=0.215", gpus=8)), ())
    found = profile(run, Gpu("H100", by_name("h100-80gb").total_bytes), HOST_BYTES)
    assert found.limits.concurrent_sequences == 0
    assert found.changes[0].overrides == (f"{_A}.rollout.max_model_len=9216",)
