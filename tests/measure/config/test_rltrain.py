"""rltrain configs as the doctor reads them are what the trainer itself makes of them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.measure.config import own_rules
from rlcheck.measure.config.models import TOY_SIGNS, TOY_TOKENS
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.rltrain_data import TRAINER, aliases, recipe_names
from rltrain.config.doctor import problems
from rltrain.config.load import load
from rltrain.config.names import aliases as trainers_aliases
from rltrain.config.names import verl_keys
from rltrain.config.resolve import Machine, resolve
from rltrain.config.schema import ActorConfig, CriticConfig
from rltrain.recipes import recipe_names as trainers_recipes

PATHS = ["actor_rollout_ref.model.path=/m", "data.train_files=/a.parquet", "data.val_files=[/b.jsonl]"]
CASES: list[tuple[str, list[str]]] = [
    ("toy-ppo", []),
    ("toy-grpo", ["trainer.device=cpu", "actor_rollout_ref.actor.use_kl_loss=true"]),
    ("gsm8k-ppo", PATHS),
    ("gsm8k-grpo", [*PATHS, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null"]),
    ("gsm8k-ppo", [*PATHS, "critic.ppo_mini_batch_size=16", "critic.model.path=/c", "trainer.n_gpus_per_node=4"]),
    ("gsm8k-grpo", [*PATHS, "actor_rollout_ref.actor.fsdp_config.dtype=bf16", "algorithm.use_kl_in_reward=true"]),
    ("gsm8k-grpo", [*PATHS, "actor_rollout_ref.hybrid_engine=false", "actor_rollout_ref.rollout.n_gpus_per_node=2"]),
]  # fmt: skip


def _same_role(role: RoleSpec, own: ActorConfig | CriticConfig) -> None:
    assert role.micro_batch_size == own.ppo_micro_batch_size_per_gpu
    assert role.mini_batch_size == own.ppo_mini_batch_size
    assert (role.dynamic_batch, role.max_tokens) == (own.use_dynamic_bsz, own.ppo_max_token_len_per_gpu)
    assert (role.epochs, role.optim.lr, role.optim.grad_clip) == (own.ppo_epochs, own.optim.lr, own.grad_clip)
    assert (role.sharding.model_dtype, role.sharding.dtype) == (own.fsdp_config.model_dtype, own.fsdp_config.dtype)
    assert role.sharding.param_offload == own.fsdp_config.param_offload


@pytest.mark.parametrize(("recipe", "words"), CASES)
def test_the_spec_is_what_the_trainer_resolves(recipe: str, words: list[str]) -> None:
    spec = read_run(recipe, words, look=False).spec
    wanted = resolve(load(recipe, words), Machine("cuda", 3, 2))
    if "trainer.n_gpus_per_node=4" not in words and wanted.trainer.device == "cuda":
        wanted = resolve(load(recipe, words), Machine("cuda", spec.gpus_per_node + spec.rollout_gpus_per_node, 2))
    parts = wanted.actor_rollout_ref
    assert (spec.device, spec.nodes, spec.gpus_per_node) == (
        wanted.trainer.device if "toy" not in recipe or "trainer.device=cpu" in words else "cuda",
        wanted.trainer.nnodes,
        wanted.trainer.n_gpus_per_node,
    )
    _same_role(spec.actor, parts.actor)
    assert spec.actor.infer_micro_batch_size == parts.rollout.log_prob_micro_batch_size_per_gpu
    assert (spec.actor.clip_ratio_low, spec.actor.clip_ratio_high) == (
        parts.actor.clip_ratio_low,
        parts.actor.clip_ratio_high,
    )
    assert (spec.critic is not None) == wanted.critic.enable
    if spec.critic is not None:
        _same_role(spec.critic, wanted.critic)
        assert spec.critic.model.path == wanted.critic.model.path
        assert spec.critic.cliprange_value == wanted.critic.cliprange_value
    assert (spec.ref is not None) == wanted.needs_reference
    if spec.ref is not None:
        assert spec.ref.infer_micro_batch_size == parts.ref.log_prob_micro_batch_size_per_gpu
    assert spec.rollout.max_model_len == parts.rollout.max_model_len
    assert (spec.rollout.dtype, spec.rollout.n, spec.rollout.sleeps) == (
        parts.rollout.dtype, parts.rollout.n, parts.rollout.free_cache_engine)  # fmt: skip
    assert spec.colocated == parts.hybrid_engine
    assert spec.run_dir == load(recipe, words).trainer.default_local_dir
    assert spec.loggers == wanted.trainer.logger


def test_there_is_one_copy_of_verls_keys_and_of_the_aliases() -> None:
    assert "actor_rollout_ref.actor.clip_ratio" in verl_keys()
    assert dict(aliases().moved) == dict(trainers_aliases().moved)
    assert recipe_names() == trainers_recipes()


def test_the_toy_has_as_many_tokens_as_its_tokenizer() -> None:
    from rltrain.toy.task import DIGITS
    from rltrain.toy.tasks import NAMES, TASKS

    # Its module imports transformers, which takes seconds; the names that it adds are literals.
    literals = ast.parse((TRAINER / "toy" / "tokenizer.py").read_text())
    tuples = [ast.literal_eval(part.value) for part in literals.body if isinstance(part, ast.Assign)
              and isinstance(part.value, ast.Tuple)]  # fmt: skip
    assert sum(len(names) for names in tuples) + len(DIGITS) + len(NAMES) == TOY_TOKENS
    assert {name: len(task.symbols) for name, task in TASKS.items() if task.symbols} == TOY_SIGNS
    model = read_run("toy-ppo", ["toy.vocab_size=64"], look=False).models["actor"].value
    assert model is not None
    assert model.sizes["vocab_size"] == 64


@pytest.mark.parametrize(
    ("word", "kind", "instead"),
    [
        ("data.train_bach_size=3", "unknown", ("data.train_batch_size",)),
        ("actor_rollout_ref.rollout.mode=sync", "foreign", ()),
        ("actor_rollout_ref.rollout.skip_tokenizer_init=true", "idle", ()),
        ("critic.fsdp.param_offload=true", "deprecated", ("critic.fsdp_config.param_offload",)),
        ("data.train_batch_size=many", "type", ()),
        ("trainer.logger=[tensorbord]", "", ()),
        ("data.max_prompt_length=null", "type", ()),
        ("trainer.total_epochs", "syntax", ()),
        ("trainer.run_name=${nowhere.x}", "missing", ()),
    ],
)
def test_what_is_wrong_with_a_key_is_said(word: str, kind: str, instead: tuple[str, ...]) -> None:
    found = [p for p in read_run("toy-ppo", [word], look=False).problems if p.place.text == word]
    assert [(problem.kind, problem.instead) for problem in found][:1] == ([(kind, instead)] if kind else [])


def test_verls_names_reach_the_spec() -> None:
    spec = read_run("toy-ppo", ["critic.fsdp.param_offload=true"], look=False).spec
    assert spec.critic is not None
    assert spec.critic.sharding.param_offload


def test_what_the_trainer_refuses_is_added_with_key_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def adapter(name: str) -> Any:
        del name
        return problems

    monkeypatch.setattr(own_rules, "_adapter", adapter)
    words = ["data.train_batch_size=100"]
    facts = read_run("toy-ppo", words, look=False)
    found = {problem.key: problem for problem in own_rules.with_own_rules(facts, "toy-ppo", words).problems}
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"].kind == "refused"
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"].place.file == "toy-ppo.yaml"
    assert [row.kind for row in problems("toy-ppo", ["algorithm.kl_ctrl.type=adaptive"])] == ["note"]
    assert own_rules.with_own_rules(ConfigFacts(framework="verl"), "x", []) == ConfigFacts(framework="verl")


def test_rules_that_cannot_be_asked_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_rules, "_NEEDS", ("no_such_package",))
    facts = own_rules.with_own_rules(ConfigFacts(framework="rltrain"), "toy-ppo", [])
    assert "no_such_package not installed" in facts.notes[0]


def test_the_trainer_is_not_imported(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys; from rlcheck.measure.config.read import read_run\n"
    code += "read_run('toy-ppo', []); read_run('ppo_trainer', [])\n"
    code += "print([n for n in ('rltrain', 'pydantic', 'omegaconf', 'torch', 'transformers') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


A = "actor_rollout_ref.actor"
SHARED = [
    [f"{A}.optim.lr_warmup_steps=7", "critic.optim.lr_warmup_steps_ratio=0.1", "trainer.critic_warmup=3"],
    [f"{A}.optim.lr_scheduler_type=cosine", f"{A}.loss_agg_mode=seq-mean-token-mean", "trainer.save_freq=4"],
    [f"{A}.loss_agg_mode=seq-mean-token-sum", "critic.loss_agg_mode=token-mean", "trainer.test_freq=-1"],
    [f"{A}.clip_ratio_low=0.1", f"{A}.clip_ratio_high=0.3", "trainer.total_epochs=3"],
]


@pytest.mark.parametrize("words", SHARED)
def test_one_key_is_one_fact_in_both(words: list[str]) -> None:
    """Training iterations in both, and so on: docs/trainer/from-verl.md says where the two differ."""
    needed = [f"{A}.optim.lr=1e-6", "critic.optim.lr=1e-5", "algorithm.adv_estimator=gae"]
    own = read_run("gsm8k-ppo", [*PATHS, *needed, *words], look=False).spec
    verls = read_run("ppo_trainer", [*needed, *words], framework="verl", look=False).spec
    assert own.critic is not None
    assert verls.critic is not None
    assert own.actor.optim == verls.actor.optim
    assert own.critic.optim == verls.critic.optim
    for role, other in ((own.actor, verls.actor), (own.critic, verls.critic)):
        assert role.loss_agg_mode == other.loss_agg_mode
    assert (own.actor.clip_ratio_low, own.actor.clip_ratio_high) == (
        verls.actor.clip_ratio_low,
        verls.actor.clip_ratio_high,
    )
    assert own.critic_warmup == verls.critic_warmup
    for word, name in (("trainer.save_freq", "save_freq"), ("trainer.test_freq", "test_freq")):
        if any(one.startswith(word) for one in words):
            assert getattr(own, name) == getattr(verls, name)
