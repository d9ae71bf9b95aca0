"""Scripts of verl's recipes and of releases that are not known: read as the nearest that is, and said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.read import read_run
from rlcheck.report.topics.config import headline

CHECKS = {check.id: check for check in family_checks("CFG")}
WORDS = "algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True trainer.nnodes=2 data.own_key=7"
RECIPES = (
    "-m recipe.dapo.main_dapo", "-m recipe.dapo.src.main_dapo", "-m recipe.prime.main_prime",
    "recipe/dapo/main_dapo.py",
    "-m verl.experimental.fully_async_policy.fully_async_main", "-m verl.experimental.one_step_off_policy.main_ppo",
    "-m recipe.one_step_off_policy.async_main_ppo", "/opt/verl/recipe/fully_async_policy/fully_async_main.py",
    "-m verl.recipe.sppo.main_sppo", "$HOME/main_dapo.py",
)  # fmt: skip
NO_RL = ("verl.trainer.fsdp_sft_trainer", "verl.trainer.sft_trainer", "verl.trainer.sft_trainer_ray",
         "verl.trainer.main_eval", "recipe.r1.main_eval", "verl.trainer.main_generation_server")  # fmt: skip


def script(place: Path, line: str, *words: str, framework: str = "auto") -> ConfigFacts:
    path = place / "run.sh"
    path.write_text(f"#!/bin/bash\nset -x\n{line}\n")
    return read_run(str(path), words, framework=framework, look=False)


def verdict(id: str, run: ConfigFacts) -> Verdict:
    return CHECKS[id].judge(Facts(config=known(run)))


@pytest.mark.parametrize("module", RECIPES)
def test_recipes_over_verls_config(module: str, tmp_path: Path) -> None:
    run = script(tmp_path, f"python3 {module} {WORDS}")
    assert (run.framework, run.version, run.spec.nodes) == ("verl", "0.9.1", 2)
    assert run.spec.algorithm.adv_estimator == "grpo"
    name = module.removeprefix("-m ")
    assert f"{name} is read as main_ppo of verl 0.9.1, whose config it extends" in headline(Facts(config=known(run)))
    assert verdict("CFG001", run).status == "warn", "the recipe may have the key"
    same = script(tmp_path, f"python3 -m verl.trainer.main_ppo {WORDS}")
    assert (same.unsure_keys, verdict("CFG001", same).status) == ("", "fail")
    assert run.spec == same.spec


def test_the_file_that_a_recipe_starts_from(tmp_path: Path) -> None:
    flags = "--config-path=config --config-name='dapo_megatron_trainer.yaml'"
    line = f"python -m recipe.dapo.main_dapo {flags} trainer.nnodes=2"
    run = script(tmp_path, line)
    assert run.spec.actor.sharding.strategy == "megatron"
    assert "its dapo_megatron_trainer.yaml is not here, --config-dir gives it" in run.unsure_keys
    there = tmp_path / "config"
    there.mkdir()
    (there / "dapo_megatron_trainer.yaml").write_text(
        "defaults: [ppo_megatron_trainer, _self_]\ntrainer: {nnodes: 1}\n"
    )
    read = script(tmp_path, line, f"--config-dir={there}")
    assert "not here" not in read.unsure_keys
    assert (read.spec.nodes, read.spec.actor.sharding.strategy) == (2, "megatron")
    with pytest.raises(ReadError, match=r"no dapo_megatron_trainer\.yaml in "):
        script(tmp_path, line, f"--config-dir={tmp_path / 'nowhere'}")


@pytest.mark.parametrize("module", NO_RL)
def test_what_is_no_rl_run(module: str, tmp_path: Path) -> None:
    with pytest.raises(ReadError) as caught:
        script(tmp_path, f"torchrun --nproc_per_node=8 -m {module} data.train_batch_size=256")
    assert str(caught.value).endswith(f"{module} is no RL run (fine-tuning or evaluation); give a script of an RL run")
    run = script(tmp_path, f"torchrun -m {module} a=1\npython -m verl.trainer.main_ppo trainer.nnodes=3")
    assert run.spec.nodes == 3, "the RL run after it"
    named = tmp_path / "run.yaml"
    named.write_text("defaults: [ppo_trainer, _self_]\ntrainer:\n  project_name: sft_trainer\n")
    assert read_run(str(named), (), look=False).spec.project == "sft_trainer", "a name is no command"


@pytest.mark.parametrize(("asked", "read"), [("0.2.0", "0.7.1"), ("0.10.0", "0.9.1"), ("0.8.5", "0.8.0")])
def test_a_release_that_is_not_known_is_said_first(asked: str, read: str, tmp_path: Path) -> None:
    words = "+actor_rollout_ref.actor.fsdp_config.grad_offload=True actor_rollout_ref.actor.nonsense=1"
    run = script(tmp_path, f"python -m verl.trainer.main_ppo {words}", framework=f"verl@{asked}")
    assert run.version == read
    assert f"verl {read}, verl {asked} is not known, read as {read}, " in headline(Facts(config=known(run)))
    found = verdict("CFG001", run)
    assert found.status == "warn"
    assert f"verl {asked} is not known" in found.expected
    assert verdict("CFG002", run).status in ("warn", "pass")
    sure = script(tmp_path, f"python -m verl.trainer.main_ppo {words}", framework=f"verl@{read}")
    assert verdict("CFG001", sure).status == "fail"


def test_what_is_no_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="verl@main: no version; known are"):
        script(tmp_path, "python -m verl.trainer.main_ppo", framework="verl@main")
