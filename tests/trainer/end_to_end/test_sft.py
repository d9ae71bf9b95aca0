"""`rltrain sft`: it learns, a killed training goes on as if it had not been, and what it leaves others can use."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlcheck.measure.run.read import read_training
from rltrain.records.run_dir import RunDir
from tests.trainer.end_to_end.runs import SMALL, Run, Started, anew, column, repeatable, rltrain, training

pytestmark = pytest.mark.timeout(1800)

STEPS, SAVE = 64, 16
KILL_AFTER = 20


def supervised(directory: Path, *values: str) -> tuple[str, ...]:
    """Arguments of `rltrain sft toy-sft` into DIRECTORY."""
    return ("sft", "toy-sft", f"trainer.default_local_dir={directory}", f"trainer.save_freq={SAVE}", *values)


@pytest.fixture(scope="module")
def whole(place: Path) -> Run:
    directory = anew(place / "sft")
    return rltrain(directory, *supervised(directory)).succeeded()


@pytest.fixture(scope="module")
def resumed(place: Path) -> Run:
    """Killed without a word in the middle of an epoch, between two checkpoints, and gone on with."""
    directory = anew(place / "sft-again")
    started = Started(directory, *supervised(directory))
    started.wait_for_step(KILL_AFTER, timeout_s=600)
    os.kill(started.pid, signal.SIGKILL)
    killed = started.finish(timeout_s=120)
    assert killed.code == -signal.SIGKILL
    assert max(record["step"] for record in killed.steps) < 2 * SAVE
    return rltrain(directory, *supervised(directory, "trainer.resume_mode=auto")).succeeded()


def test_the_recipe_learns_to_copy(whole: Run) -> None:
    losses, held_out = column(whole.steps, "train/loss"), column(whole.steps, "val/loss")
    assert [record["step"] for record in whole.steps] == list(range(STEPS + 1))
    assert losses[0] > 2
    assert held_out[0] > 2
    assert held_out[-1] < 0.02
    assert [record["step"] for record in whole.steps if "val/loss" in record] == [0, 16, 32, 48, 64]
    assert whole.record["best"] == {"step": STEPS, "value": held_out[-1]}
    assert "finished 64 steps" in whole.out
    assert f"rltrain run CONFIG actor_rollout_ref.model.path={whole.checkpoint(STEPS)}" in whole.out


def test_the_record_says_what_ran(whole: Run) -> None:
    record = whole.record
    assert (record["kind"], record["outcome"], record["config"]["optim"]["lr"]) == ("sft", "finished", 0.005)
    assert [rank["rank"] for rank in record["facts"]["training"]] == [0, 1]
    assert not list((whole.directory / "logs").glob("rollout*"))


def test_a_training_that_was_killed_goes_on_bit_for_bit(whole: Run, resumed: Run) -> None:
    assert "(step 16 of 64)" in resumed.out
    expected = {record["step"]: repeatable(record) for record in whole.steps}
    assert {record["step"]: repeatable(record) for record in resumed.steps} == expected
    one, other = (
        json.loads((run.checkpoint(STEPS) / "complete.json").read_text())["sha256"] for run in (whole, resumed)
    )
    names = [name for name in one if name.endswith((".distcp", ".pt", ".safetensors", "train_state.json"))]
    assert {"actor/__1_0.distcp", "rng_00001.pt", "huggingface/model.safetensors"} <= set(names)
    assert {name: one[name] for name in names} == {name: other[name] for name in names}


def test_transformers_alone_answers_from_the_checkpoint(whole: Run) -> None:
    place = whole.checkpoint(STEPS) / "huggingface"
    model: Any = AutoModelForCausalLM.from_pretrained(place)
    tokenizer: Any = AutoTokenizer.from_pretrained(place)
    rows = [json.loads(line) for line in (whole.directory / "toy" / "sft_val.jsonl").read_text().splitlines()]
    prompts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in rows]
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with torch.no_grad():
        out = model.generate(**encoded, do_sample=False, max_new_tokens=6)
    answers = tokenizer.batch_decode(out[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    right = sum(answer == row["response"] for answer, row in zip(answers, rows, strict=True))
    assert right >= 0.95 * len(rows)


def test_export_gives_the_same_model_and_eval_says_why_not(whole: Run) -> None:
    directory = whole.directory.with_name("sft-exported")
    rltrain(directory, "export", whole.checkpoint(STEPS), directory).succeeded()
    exported: Any = AutoModelForCausalLM.from_pretrained(directory)
    inside: Any = AutoModelForCausalLM.from_pretrained(whole.checkpoint(STEPS) / "huggingface")
    assert all(torch.equal(a, b) for a, b in zip(exported.parameters(), inside.parameters(), strict=True))
    refused = rltrain(directory, "eval", whole.checkpoint(STEPS))
    assert refused.code == 2
    assert "is of rltrain sft, which has no rewards to score answers with" in refused.err


def test_the_doctor_reads_it(whole: Run) -> None:
    facts = read_training(whole.directory)
    assert (facts.framework, facts.outcome, facts.last_step) == ("rltrain-sft", "finished", STEPS)
    assert {"train/loss", "val/loss", "actor/grad_norm", "actor/lr"} <= set(facts.curves)


@pytest.mark.long
def test_a_run_starts_from_its_checkpoint(whole: Run, place: Path) -> None:
    """What was learnt is what step 0 of the run validates: a fresh model earns 0.1."""
    directory = place / "after-sft"
    start = f"actor_rollout_ref.model.path={whole.checkpoint(STEPS)}"
    run = rltrain(directory, *training(directory, "toy-grpo", *SMALL, start, "trainer.total_training_steps=1"))
    run.succeeded()
    assert column(run.steps, "val/reward/mean")[0] > 0.95
    model = run.record["config"]["actor_rollout_ref"]["model"]
    assert model["path"] == model["tokenizer_path"] == str(whole.checkpoint(STEPS) / "huggingface")
    assert RunDir(directory).toy.is_dir()  # its prompts
