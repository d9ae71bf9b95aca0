"""Keys that have no effect, as another key switches off what reads them: named in place, and no other key is."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts, KeyProblem
from rlcheck.facts.document import Facts
from rlcheck.measure.config import rltrain_data, verl_data
from rlcheck.measure.config.effects import effects_of
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.trainer import layout, versions
from rlcheck.measure.config.trainers import trainers
from rlcheck.tables import DATA

CHECK = next(check for check in family_checks("CFG") if check.id == "CFG075")
FRAMEWORKS = sorted(path.stem for path in (DATA / "effects").glob("*.json"))
VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm data.train_batch_size=64"
TRL = "trl grpo --model_name_or_path m --dataset_name d --output_dir o"
SLIME = "python3 train.py --advantage-estimator grpo --hf-checkpoint /m --rollout-batch-size 8 --num-rollout 3"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m"
A = "actor_rollout_ref.actor"


def without_effect(run: ConfigFacts) -> dict[str, KeyProblem]:
    return {one.key: one for one in run.problems if one.kind in ("off", "moot")}


def line(command: str, *words: str) -> dict[str, KeyProblem]:
    return without_effect(read_run(f"{command} {' '.join(words)}\n", [], look=False))


def verdict(run: ConfigFacts) -> Verdict:
    return CHECK.judge(Facts(config=known(run)))


def every_key(framework: str) -> set[str]:
    """The keys of FRAMEWORK in any release that is known."""
    if framework == "rltrain":
        return {*rltrain_data.keys()}
    if framework == "verl":
        engines = [(one, engine) for one in verl_data.versions() for engine in ("dp", "megatron")]
        return {*chain.from_iterable(verl_data.defaults(*one) for one in engines)}
    kinds = (trainers()[framework].kind, "rloo", "main_base")
    return {*chain.from_iterable(layout(framework, one, kind).keys for one in versions(framework) for kind in kinds)}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_key_of_a_table_is_one_of_the_framework(framework: str) -> None:
    effects, there = effects_of(framework), every_key(framework)
    assert effects is not None
    named = {key for row in effects.rows for key in (*row.keys, *row.off)}
    sections = {key for key in named if key[-1] == "." and any(one.startswith(key) for one in there)}
    stray = named - there - sections
    assert stray == set()
    # Other packages' options are not among those; every row has a place in a source.
    assert all(row.source.split(":")[0].endswith(".py") for row in effects.rows)


@pytest.mark.parametrize(
    ("command", "words", "key"),
    [
        (VERL, f"{A}.kl_loss_coef=0.01", f"{A}.kl_loss_coef"),
        (VERL, "algorithm.kl_ctrl.kl_coef=0.02", "algorithm.kl_ctrl.kl_coef"),
        (VERL, "reward.custom_reward_function.name=f", "reward.custom_reward_function.name"),
        (VERL, "actor_rollout_ref.nccl_timeout=7200", "actor_rollout_ref.nccl_timeout"),
        (TRL, "--eval_steps 50", "eval_steps"),
        (TRL, "--lora_r 32", "lora_r"),
        (TRL, "--vllm_mode server", "vllm_mode"),
        (SLIME, "--kl-loss-coef 0.01", "kl-loss-coef"),
        (SLIME, "--save /c", "save"),
        (SLIME, "--eval-prompt-data aime /d.jsonl", "eval-prompt-data"),
        (OPENRLHF, "--eval.steps 10", "eval.steps"),
        (OPENRLHF, "--algo.dynamic_filtering_range 0.1 0.9", "algo.dynamic_filtering_range"),
    ],
)
def test_a_key_whose_switch_the_user_did_not_write_is_a_warning(command: str, words: str, key: str) -> None:
    run = read_run(f"{command} {words}\n", [], look=False)
    found = without_effect(run)
    assert [*found] == [key]
    assert found[key].kind == "off"
    said = verdict(run)
    assert (said.status, said.params["key"]) == ("warn", key)
    assert re.split("[= ]", words, maxsplit=1)[0] in said.details[0], "the place"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (VERL, f"{A}.kl_loss_coef=0.01 {A}.use_kl_loss=True"),
        (VERL, f"{A}.kl_loss_coef=0.0"),
        (VERL, f"{A}.kl_loss_coef=0.001"),
        (VERL, "critic.optim.lr=2e-6"),
        (TRL, "--eval_steps 50 --eval_strategy steps --use_peft --lora_r 32"),
        (TRL, "--use_vllm --vllm_mode server --vllm_server_port 8001"),
        (SLIME, "--kl-loss-coef 0.01 --use-kl-loss --save /c --save-interval 5"),
        (SLIME, '--save /c "${ARGS[@]}"'),
        (OPENRLHF, "--eval.steps 10 --eval.dataset d"),
    ],
)
def test_a_key_that_acts_or_is_at_its_default_is_not_named(command: str, words: str) -> None:
    assert line(command, words) == {}


def test_a_switch_that_the_user_turned_off_is_a_mention() -> None:
    found = line(VERL, f"{A}.use_kl_loss=False {A}.kl_loss_coef=0.01 algorithm.adv_estimator=grpo critic.optim.lr=2e-6")
    assert {key: one.kind for key, one in found.items()} == {f"{A}.kl_loss_coef": "moot", "critic.optim.lr": "moot"}
    said = f"has no effect with {A}.use_kl_loss=false (verl 0.9.1, verl/workers/utils/losses.py:132)"
    assert found[f"{A}.kl_loss_coef"].message == said


def test_what_a_key_still_does_is_said() -> None:
    found = line(SLIME, "--kl-coef 0.05")
    assert found["kl-coef"].message.startswith("only loads the reference model with advantage-estimator=grpo")


def test_a_kind_of_config_that_the_table_is_not_of_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    for call, keys in (("PPOConfig", []), ("GRPOConfig", ["num_train_epochs"])):
        path.write_text(f"from trl import {call}\n{call}(output_dir='o', max_steps=5, num_train_epochs=2)\n")
        assert [*without_effect(read_run(str(path), [], look=False))] == keys, call


def test_the_place_of_a_key_in_a_file_is_its_line(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text("model_name_or_path: m\ndataset_name: d\noutput_dir: o\nlearning_rate: 1.0e-6\nlora_r: 32\n")
    run = read_run(str(path), [], framework="trl", look=False)
    assert without_effect(run)["lora_r"].place.line == 5
    assert f"{path}:5:1: lora_r: has no effect with use_peft=false, the default" in verdict(run).details[0]


def test_what_a_program_takes_from_elsewhere_switches_nothing_off(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    call = 'GRPOConfig(output_dir="o", vllm_mode="server"{})\n'
    for spread in (call.format(", **more"), call.replace("(", "(..., ").format("")):
        path.write_text("from trl import GRPOConfig\nmore = {}\n" + spread)
        assert without_effect(read_run(str(path), [], look=False)) == {}
    path.write_text("from trl import GRPOConfig\n" + call.format(""))
    assert [*without_effect(read_run(str(path), [], look=False))] == ["vllm_mode"]


@pytest.mark.parametrize("recipe", rltrain_data.recipe_names())
def test_recipes_set_no_key_without_effect(recipe: str) -> None:
    assert verdict(read_run(recipe, [], look=False)).status == "pass"


def test_a_framework_without_a_table_is_not_judged() -> None:
    said = verdict(ConfigFacts(framework="nemo-rl"))
    assert (said.status, "is not known" in said.message) == ("skip", True)
