"""Real verl configs: its defaults, release by release, and its examples' override lists. No false alarm."""

from __future__ import annotations

import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding
from rlcheck.measure.config.read import read_run
from rlcheck.playbook import Library
from tests.checks.config.examples import DYNAMIC, EXAMPLES, GRPO, MICRO, A, G

CHECKS = family_checks("CFG")

VERSIONS = ("0.7.1", "0.8.0", "0.9.0", "0.9.1")
LIBRARY = Library()


def run_of(words: str, version: str = "0.9.1", shape: str = "") -> ConfigFacts:
    line = f"python3 -m verl.trainer.main_ppo \\\n {words}"
    return read_run(line, (), framework=f"verl@{version}", look=False, model_shape=shape)


def problems(run: ConfigFacts) -> dict[str, Finding]:
    found = judging.judge(Facts(config=known(run)), CHECKS, LIBRARY)
    return {finding.id: finding for finding in found if finding.status in ("fail", "warn", "error")}


def details(findings: dict[str, Finding], id: str) -> str:
    return "\n".join((findings[id].message, *findings[id].details))


@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_fail_for_what_verl_itself_refuses_and_warn_of_nothing(version: str) -> None:
    run = read_run("ppo_trainer", (), framework=f"verl@{version}", look=False)
    found = problems(run)
    assert {id: finding.status for id, finding in found.items()} == {"CFG006": "fail", "CFG012": "fail"}
    assert "actor_rollout_ref.rollout.name" in details(found, "CFG006")
    for key in ("actor.ppo", "rollout.log_prob", "critic.ppo"):
        assert f"{key}_micro_batch_size_per_gpu: expected a micro batch" in details(found, "CFG012")
    assert f"verl {version} refuses" in found["CFG012"].message
    assert len(found["CFG012"].details) == 3, "the reference policy is not used by default"


@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_with_the_overrides_of_the_findings_are_clean(version: str) -> None:
    found = problems(read_run("ppo_trainer", (), framework=f"verl@{version}", look=False))
    typed = [line.rpartition("; type ")[2] for line in found["CFG012"].details]
    mended = read_run("ppo_trainer", [*typed, f"{G}.name=vllm"], framework=f"verl@{version}", look=False)
    assert problems(mended) == {}


def test_too_large_an_entropy_bonus_is_taken_away() -> None:
    """0.001, which was offered here, is what the playbook's source saw explode."""
    found = problems(run_of(f"{EXAMPLES[next(iter(EXAMPLES))]} {A}.entropy_coeff=0.5"))
    assert [fix.command for fix in found["CFG056"].fixes] == [f"{A}.entropy_coeff=0"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_clean(name: str) -> None:
    assert problems(run_of(EXAMPLES[name])) == {}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["grpo_trainer/run_qwen2-7b_seq_balance", "grpo_trainer/run_qwen3_30b_a3b_fsdp"])
def test_examples_that_are_as_old_as_the_release_are_clean(name: str, version: str) -> None:
    assert problems(run_of(EXAMPLES[name], version)) == {}


BROKEN = {
    "data.train_batch_size=1023": ("CFG010", "train_batch_size"),
    "data.train_batch_size=128": ("CFG011", "actor.ppo_mini_batch_size"),
    f"{A}.ppo_mini_batch_size=250": ("CFG011", "actor.ppo_mini_batch_size"),
    f"{A}.ppo_micro_batch_size=64": ("CFG012", "actor.ppo_micro_batch_size"),
    f"{A}.ppo_micro_batch_size_per_gpu=null": ("CFG012", "actor.ppo_micro_batch_size_per_gpu"),
    f"{G}.log_prob_use_dynamic_bsz=True": ("CFG013", "rollout.log_prob_use_dynamic_bsz"),
    f"{A}.ppo_micro_batch_size_per_gpu=7": ("CFG014", "actor.ppo_micro_batch_size_per_gpu"),
    f"{G}.log_prob_micro_batch_size_per_gpu=7": ("CFG014", "rollout.log_prob_micro_batch_size_per_gpu"),
    f"{A}.ulysses_sequence_parallel_size=8": ("CFG016", "actor.ulysses_sequence_parallel_size"),
    f"{A}.ulysses_sequence_parallel_size=2 actor_rollout_ref.model.use_remove_padding=False": (
        "CFG016",
        "type actor_rollout_ref.model.use_remove_padding=true",
    ),
    f"{A}.fsdp_config.fsdp_size=3": ("CFG017", "actor.fsdp_config.fsdp_size"),
    f"{G}.tensor_model_parallel_size=3": ("CFG018", "rollout.tensor_model_parallel_size"),
    f"{G}.tensor_model_parallel_size=8": ("CFG019", "rollout.tensor_model_parallel_size"),
    f"{G}.mode=sync": ("CFG022", "rollout.mode"),
    f"{G}.name=vlllm": ("CFG070", f"type {G}.name=vllm"),
    f"{G}.name=hf": ("CFG070", f"{G}.name"),
    f"{G}.expert_parallel_size=4": ("CFG023", "rollout.expert_parallel_size"),
    f"{G}.pipeline_model_parallel_size=2": ("CFG023", "rollout.pipeline_model_parallel_size"),
    "algorithm.adv_estimator=gae critic.enable=False": ("CFG024", "algorithm.adv_estimator"),
    "algorithm.adv_estimator=remax": ("CFG024", "type trainer.use_v1=false"),
    "algorithm.adv_estimator=optimal_token_baseline": ("CFG024", "actor.calculate_sum_pi_squared"),
    "trainer.critic_warmup=10 trainer.total_training_steps=10 critic.enable=True "
    "critic.ppo_micro_batch_size_per_gpu=4": ("CFG027", "trainer.critic_warmup"),
    "data.train_max_samples=1000": ("CFG028", "data.train_batch_size"),
    f"algorithm.rollout_correction.bypass_mode=True {G}.calculate_log_probs=False": (
        "CFG029",
        "type actor_rollout_ref.rollout.calculate_log_probs=true",
    ),
    f"{G}.val_kwargs.do_sample=True {G}.temperature=0": ("CFG029", "rollout.temperature"),
    "trainer.v1.trainer_mode=separate_async": ("CFG029", "checkpoint_engine.backend"),
    "trainer.v1.trainer_mode=asynchronous": ("CFG029", "trainer.v1.trainer_mode"),
    "algorithm.filter_groups.enable=True algorithm.filter_groups.metric=null": (
        "CFG029",
        "algorithm.filter_groups.metric",
    ),
    f"{A}.ppo_minibatch_size=4": ("CFG001", "actor.ppo_mini_batch_size"),
}
QWEN = (
    "hidden_size=3584,num_hidden_layers=28,num_attention_heads=28,num_key_value_heads=4,intermediate_size=18944,"
    "vocab_size=152064"
)


@pytest.mark.parametrize("change", BROKEN)
def test_each_break_fails_where_it_should(change: str) -> None:
    id, where = BROKEN[change]
    found = problems(run_of(f"{GRPO}{MICRO}{change}", shape=QWEN))
    assert found[id].status == "fail", found
    assert where in details(found, id)


def test_the_same_run_without_the_breaks_is_clean() -> None:
    assert problems(run_of(f"{GRPO}{MICRO}", shape=QWEN)) == {}


def test_everything_is_said_in_one_run() -> None:
    changes = f"data.train_batch_size=1023 {A}.fsdp_config.fsdp_size=3 {G}.mode=sync {G}.tensor_model_parallel_size=3"
    found = problems(run_of(f"{GRPO}{MICRO}{changes}"))
    assert {"CFG010", "CFG017", "CFG018", "CFG022"} <= set(found)
    assert "override data.train_batch_size=1023" in details(found, "CFG010")
    assert found["CFG010"].fixes[0].command == "data.train_batch_size=1024"


def test_dynamic_batches_need_no_micro_batch_and_no_divisor() -> None:
    changes = f"data.train_batch_size=1000 {A}.ppo_mini_batch_size=200 {A}.ppo_micro_batch_size_per_gpu=7"
    assert problems(run_of(f"{GRPO}{DYNAMIC}{changes}")) == {}


def test_two_keys_of_the_critic_are_one_mistake_that_is_explained() -> None:
    found = problems(run_of(f"{GRPO}{MICRO}algorithm.adv_estimator=gae critic.ppo_micro_batch_size=64"))
    assert "is copied from it" in found["CFG012"].found


def test_verl_0_7_rounds_where_later_releases_assert() -> None:
    changes = f"{GRPO}{MICRO}{A}.ppo_mini_batch_size=257 {A}.ppo_micro_batch_size_per_gpu=1"
    old, new = (problems(run_of(changes, version))["CFG011"] for version in ("0.7.1", "0.9.1"))
    assert (old.status, new.status) == ("warn", "fail")


def test_a_critic_on_another_kind_of_fsdp_is_a_warning() -> None:
    changes = f"{A}.strategy=fsdp2 algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=4"
    found = problems(run_of(f"{GRPO}{MICRO}{changes}"))
    assert {id: finding.status for id, finding in found.items()} == {"CFG017": "warn"}
    assert found["CFG017"].fixes[0].command == "critic.strategy=fsdp2"


def test_an_estimator_that_only_the_shell_knows_is_not_judged() -> None:
    assert problems(run_of(f"{GRPO}{MICRO}algorithm.adv_estimator=\\$ADV", shape=QWEN)) == {}
