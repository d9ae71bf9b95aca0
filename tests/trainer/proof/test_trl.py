"""Capsules of a trainer with TRL's methods: healthy ones have no difference, each mistake is named at its link."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from rlcheck.capsules.trl import CapsuleCallback
from rlcheck.errors import UserError
from rlcheck.facts.step import LINKS, CapsuleProof, StepFacts
from rltrain.proof.plugin import run
from tests.conftest import IMPORT_PATH
from tests.trainer.proof.trl_like import REWARDS, Trainer

Plant = Callable[[Any], None]
NO_ENGINE = {"engine-weights", "engine-after"}


def proven(
    place: Path, settings: dict[str, Any], plant: Plant | None = None, score: bool = True, steps: Any = (1,)
) -> list[CapsuleProof]:
    trainer = Trainer(place, **settings)
    if plant is not None:
        plant(trainer)
    trainer.add_callback(CapsuleCallback(trainer, steps=steps))
    trainer.train()
    capsules = sorted(map(str, (place / "capsules").glob("step_*")))
    assert [Path(one).name for one in capsules] == [f"step_{step}" for step in steps]
    (place / "reward.py").write_text(REWARDS)
    request = {"capsules": capsules, "checkpoint": None, "score": str(place / "reward.py") if score else None}
    found = msgspec.convert(run(request, lambda _: None), StepFacts)
    assert found.failure is None, found.failure
    return list(found.capsules)


HEALTHY: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo, two iterations": {"loss_type": "grpo", "num_iterations": 2, "temperature": 0.7},
    "dr_grpo, two steps a generation": {
        "loss_type": "dr_grpo", "scale_rewards": "none", "steps_per_generation": 4, "generation_batch_size": 16,
        "beta": 0.0,
    },
    "two generations a step": {"steps_per_generation": 1, "generation_batch_size": 4, "max_grad_norm": 100.0},
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_step_has_no_difference(tmp_path: Path, name: str) -> None:
    for proof in proven(tmp_path, HEALTHY[name], steps=(1, 3)):
        assert [link.name for link in proof.links] == list(LINKS)
        assert not [link for link in proof.links if link.status == "differs"]
        # A capsule of TRL names no files of its models: only in the first step the reference is the actor itself.
        later = {"reference-log-probs"} if HEALTHY[name].get("beta", 0.04) else set()
        unheld = {"start-weights"} if proof.step == 1 else later
        assert {link.name for link in proof.links if link.status == "unknown"} == NO_ENGINE | unheld
        assert all(link.compared for link in proof.links if link.name in ("gradient", "optimizer", "advantages"))


def test_functions_are_not_run_without_score(tmp_path: Path) -> None:
    links = {link.name: link for link in proven(tmp_path, {}, score=False)[0].links}
    assert links["rewards"].status == "unknown"
    assert "digits, short were not run" in links["rewards"].said
    assert "--score FILE" in links["rewards"].said


def output(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    def plant(trainer: Any) -> None:
        call = trainer._generate_and_score_completions
        trainer._generate_and_score_completions = lambda inputs: {**(found := call(inputs)), **change(found)}

    return plant


def put(name: str, value: Any) -> Plant:
    return lambda trainer: setattr(trainer, name, value)


def other_reference(trainer: Any) -> None:
    with torch.no_grad():
        for parameter in trainer.ref_model.parameters():
            parameter.add_(0.01)


def cut_texts(trainer: Any) -> None:
    call = trainer._calculate_rewards
    trainer._calculate_rewards = lambda inputs, prompts, said, ids: call(inputs, prompts, [t[1:] for t in said], ids)


def neighbours(trainer: Any) -> None:
    call = trainer._calculate_rewards
    trainer._calculate_rewards = lambda *args: call(*args).roll(1, 0)


def unclipped(trainer: Any) -> None:
    call = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda parameters, limit: call(parameters, float("inf"))


FAULTS: dict[str, tuple[str, str, dict[str, Any], Plant]] = {
    "advantages doubled": ("advantages", "times 2", {}, output(lambda found: {"advantages": 2 * found["advantages"]})),
    "advantages of neighbours": (
        "advantages", "row before", {"scale_rewards": "none"},
        output(lambda found: {"advantages": found["advantages"].roll(1)}),
    ),
    "advantages not scaled": ("advantages", "scale_rewards 'none'", {}, put("scale_rewards", "none")),
    "KL with the wrong sign": ("loss", "KL with the opposite sign", {"num_iterations": 2}, put("beta", -0.04)),
    "another loss": ("loss", "loss_type 'grpo'", {"loss_type": "dr_grpo"}, put("loss_type", "grpo")),
    "weights of rewards": ("rewards", "weight of 'short' is 1", {}, put("reward_weights", torch.ones(2))),
    "rewards of neighbours": ("rewards", "row before", {}, neighbours),
    "another reference": ("reference-log-probs", "does not hold the weights", {}, other_reference),
    "a stale reference": (
        "reference-log-probs", "", {},
        output(lambda found: {"ref_per_token_logps": found["ref_per_token_logps"] + 0.01}),
    ),
    "texts cut": ("rewards", "rewards of", {}, cut_texts),
    "other tokens trained": (
        "answers", "or other ones", {}, output(lambda found: {"completion_ids": (found["completion_ids"] + 1) % 20}),
    ),
    "another temperature": (
        "sampling", "temperature was 0.5", {}, lambda trainer: setattr(trainer.generation_config, "temperature", 0.5),
    ),
    "not clipped": ("clip", "not clipped", {"max_grad_norm": 0.05}, unclipped),
    "another learning rate": ("optimizer", "learning rate is 0.002", {}, put("peak", 2e-3)),
    "rows twice": (
        "update-rows", "", {},
        lambda trainer: setattr(trainer, "_split", lambda found: [
            {key: value[:4] if value.ndim else value for key, value in found.items()}
        ] * 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_at_its_link(tmp_path: Path, name: str) -> None:
    link, words, settings, plant = FAULTS[name]
    found = proven(tmp_path, {"max_steps": settings.get("num_iterations", 1), **settings}, plant, link == "rewards")
    every = [one for one in found[0].links if one.status == "differs"]
    assert every
    assert every[0].name == link, every[0]
    assert words in "; ".join((every[0].said, *every[0].causes)), every[0]


def test_a_capsule_changes_nothing_of_the_run(tmp_path: Path) -> None:
    plain, kept = Trainer(tmp_path, max_steps=2), Trainer(tmp_path, max_steps=2)
    kept.add_callback(CapsuleCallback(kept, tmp_path / "elsewhere", steps=(1, 2)))
    for trainer in (plain, kept):
        torch.manual_seed(1)
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), kept.model.parameters(), strict=True))
    assert len([*(tmp_path / "elsewhere").glob("step_*")]) == 2


def test_what_cannot_be_noted_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(tmp_path)
    trainer.reward_func_names = ["one", "two", "three"]
    trainer.add_callback(CapsuleCallback(trainer, steps=(1,)))
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 4
    assert not (tmp_path / "capsules").exists()
    assert "no capsule of step 1: ValueError" in caplog.text


def test_a_run_that_ends_early_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(tmp_path, num_iterations=3)
    trainer.add_callback(CapsuleCallback(trainer, steps=(4,)))
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert "no capsule of step 4: the run ended" in caplog.text


def test_another_trainer_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="object has no method _generate_and_score_completions"):
        CapsuleCallback(object())


def test_the_writer_imports_no_training_stack() -> None:
    code = "import sys, rlcheck.capsules.trl; print(sorted({'torch', 'transformers', 'trl'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": IMPORT_PATH}, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
