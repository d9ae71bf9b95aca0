"""A config is read whole, and everything wrong with it is said at once, with its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltrain.config import Machine, check, load, load_with_notes, resolve
from rltrain.config.names import verl_keys
from rltrain.core.errors import UserError
from rltrain.recipes import recipe_names
from tests.trainer.config import SMALL

MINIMAL = "actor_rollout_ref:\n  rollout:\n    name: vllm\n"
GIVEN = {
    "arithmetic-grpo": ["actor_rollout_ref.model.path=m"],
    "gsm8k-grpo": ["data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=m"],
    "gsm8k-ppo": ["data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=m"],
    "toy-add-grpo": ["actor_rollout_ref.model.path=m"],
    "toy-grpo": [],
    "toy-ppo": [],
}


def write(directory: Path, text: str) -> str:
    path = directory / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems(source: str, *overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(source, overrides)
    return str(caught.value).splitlines()


def test_there_is_a_case_for_every_recipe() -> None:
    assert recipe_names() == sorted(GIVEN)


@pytest.mark.parametrize("name", sorted(GIVEN))
def test_every_recipe_parses_without_a_note(name: str) -> None:
    loaded = load_with_notes(name, GIVEN[name])
    assert loaded.notes == ()
    assert loaded.config.trainer.experiment_name == name
    assert resolve(loaded.config, Machine("cpu", 0, 2)).trainer.default_local_dir.endswith(f"runs/rltrain/{name}")


@pytest.mark.parametrize("name", ["toy-grpo", "toy-ppo"])
def test_toy_recipes_need_nothing(name: str) -> None:
    check(resolve(load(name), Machine("cpu", 0, 2)))
    check(resolve(load(name), Machine("cuda", 1, 8)))


@pytest.mark.parametrize("name", ["gsm8k-grpo", "gsm8k-ppo"])
def test_a_recipe_says_which_overrides_it_needs(name: str) -> None:
    said = problems(name)
    assert [line.split(": ")[1] for line in said] == [
        "data.train_files",
        "data.val_files",
        "actor_rollout_ref.model.path",
    ]
    assert "e.g. the override data.train_files=/path/to/file.parquet" in said[0]
    assert said[0].startswith(f"{name}.yaml:")


@pytest.mark.parametrize("name", ["gsm8k-grpo", "gsm8k-ppo"])
def test_gsm8k_recipes_pass_every_rule_once_their_paths_exist(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    where = [
        f"data.train_files={tmp_path}",
        f"data.val_files={tmp_path}",
        f"actor_rollout_ref.model.path={tmp_path}",
    ]
    check(resolve(load(name, where), Machine("cpu", 0, 2)))


def test_a_wrong_value_is_named_with_file_and_line(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL + "  actor:\n    ppo_mini_batch_size: x\ntrainer:\n  seed: 1.5\n")
    assert problems(file) == [
        f"{file}:5: actor_rollout_ref.actor.ppo_mini_batch_size: expected an integer, got 'x'",
        f"{file}:7: trainer.seed: expected an integer, got 1.5",
    ]


def test_an_override_is_named_as_such_and_hides_the_line_of_the_file() -> None:
    assert problems("toy-ppo", "data.train_batch_size=x") == [
        "override 'data.train_batch_size=x': data.train_batch_size: expected an integer, got 'x'"
    ]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.total_epoch=3", "unknown key; did you mean trainer.total_epochs?"),
        ("ppo_epochs=2", "unknown key; did you mean actor_rollout_ref.actor.ppo_epochs or critic.ppo_epochs?"),
        ("actor.ppo_mini_batch_size=2", "did you mean actor_rollout_ref.actor.ppo_mini_batch_size?"),
        ("algorithm.adv_estimator=grp", "reinforce_plus_plus_baseline, remax, got 'grp'"),
        ("trainer.seed=true", "expected an integer, got true"),
        ("trainer.experiment_name=1", "expected text, got 1; for text, write it in quotes"),
        ("algorithm.gamma=2", "must be <= 1.0, got 2"),
        ("critic=5", "expected a section with keys below it, got 5"),
        ("actor_rollout_ref.actor.optim.betas={a: 1}", "expected a list of 2, got {'a': 1}"),
        ("actor_rollout_ref.model.override_config=[]", "expected a mapping, got []"),
        ("ray_kwargs=[]", "expected a section with keys below it, got []"),
        ("trainer.project_name=${a.b}", "trainer.project_name: cannot resolve '${a.b}'"),
        ("data.train_files=5", "expected text or a list of text, got 5"),
        ("trainer.logger=[console,wand]", "trainer.logger.1: expected one of console, tensorboard, wandb, got 'wand'"),
        ("actor_rollout_ref.actor.optim.betas=[0.9]", "optim.betas: expected a list of 2"),
        ("actor_rollout_ref.actor.optim.lr=.nan", "expected a finite number, got nan"),
        ("reward_model.rules.0.wieght=2", "reward_model.rules.0.wieght: unknown key; did you mean 'weight'?"),
        ("reward_model.rules=[{weight: 2}]", "reward_model.rules.0.kind: required"),
        ("toy.demo_mixture={copy: 2}", "toy.demo_mixture.copy: must be <= 1.0, got 2"),
        ("toy.demo_mixture={copy: 0.7, noise: 0.7}", "the shares add up to 1.4"),
        ("trainer.seed=${trainer.sed}", "cannot resolve '${trainer.sed}': Interpolation key 'trainer.sed' not found"),
        ("trainer.seed=[1", "did not find expected ',' or ']'"),
        ("trainer.seed", "expected trainer.seed=value; to remove a key write ~trainer.seed"),
        ("~trainer.sed", "has no key 'trainer.sed' to remove"),
        ("~actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.name: required"),
    ],
)
def test_what_is_said_of_a_bad_override(override: str, said: str) -> None:
    (line,) = problems("toy-ppo", override)
    assert said in line


def test_values_are_yaml_and_plus_signs_change_nothing() -> None:
    config = load(
        "toy-ppo",
        [
            "+trainer.wandb_proxy=http://proxy:3128",
            "++trainer.seed=7",
            "actor_rollout_ref.actor.optim.lr=1e-5",
            "trainer.logger=console",
            "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_cascade_attn=True",
            "actor_rollout_ref.actor.grad_clip=null",
            "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
            "reward_model.rules.0.weight=0.5",
            "~data.max_prompt_length",
        ],
    )
    parts = config.actor_rollout_ref
    assert (config.trainer.wandb_proxy, config.trainer.seed) == ("http://proxy:3128", 7)
    assert (parts.actor.optim.lr, parts.actor.grad_clip) == (1e-5, None)
    assert config.trainer.logger == ("console",)
    assert parts.rollout.engine_kwargs == {"vllm": {"disable_cascade_attn": True}}
    assert parts.actor.fsdp_config.model_dtype == "float32"
    assert config.reward_model.rules[0].weight == 0.5
    assert config.data.max_prompt_length == 512


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), ("resume_path", "/old")),
        (("trainer.resume_mode=auto",), ("auto", None)),
        (("trainer.resume_mode=disable",), ("disable", None)),
        (("trainer.resume_mode=/new",), ("/new", None)),
        (("~trainer.resume_from_path", "trainer.resume_mode=auto"), ("auto", None)),
        (("trainer.resume_mode=resume_path",), ("resume_path", "/old")),
        (("trainer.resume_from_path=/new",), ("resume_path", "/new")),
        # Both by override: that they contradict each other is for the rules to say.
        (("trainer.resume_from_path=/new", "trainer.resume_mode=auto"), ("auto", "/new")),
    ],
)
def test_an_override_of_the_resume_mode_replaces_the_files_path_too(
    overrides: tuple[str, ...], expected: tuple[str, str | None], tmp_path: Path
) -> None:
    """What every message says that names a way to go on or to start afresh, of a file that itself went on."""
    source = write(tmp_path, MINIMAL + "trainer:\n  resume_mode: resume_path\n  resume_from_path: /old\n")
    trainer = load(source, overrides).trainer
    assert (trainer.resume_mode, trainer.resume_from_path) == expected


def test_interpolations_see_defaults_and_overrides(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL + "trainer:\n  experiment_name: a${trainer.seed}\n")
    assert load(file).trainer.default_local_dir == "runs/rltrain/a1"
    assert load(file, ["trainer.seed=3"]).trainer.default_local_dir == "runs/rltrain/a3"


def test_a_section_whose_keys_are_all_comments_is_as_if_absent(tmp_path: Path) -> None:
    assert load(write(tmp_path, MINIMAL + "critic:\n  # enable: true\ntrainer:\n")).critic.enable is None


def test_an_empty_toy_section_is_a_toy(tmp_path: Path) -> None:
    assert load(write(tmp_path, MINIMAL)).toy is None
    assert load(write(tmp_path, MINIMAL + "toy: {}\n")).toy is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "my.yaml:2: not YAML"),
        ("trainer:\n  seed: 1\n  seed: 2\n", "my.yaml:3: not YAML: found duplicate key seed"),
        ("- 1\n", "my.yaml:1: expected sections such as `trainer:`"),
        (MINIMAL + "trainer.seed: 3\n", "my.yaml:4: trainer.seed: a key in a file holds no dots"),
    ],
)
def test_a_file_that_is_not_a_config(tmp_path: Path, text: str, said: str) -> None:
    (line,) = problems(write(tmp_path, text))
    assert said in line


def test_no_such_recipe_or_file(tmp_path: Path) -> None:
    (line,) = problems("toy-pp")
    assert "did you mean 'toy-ppo'?" in line
    assert str(Path.cwd() / "toy-pp") in line
    assert "is a directory" in problems(str(tmp_path))[0]
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in problems(str(tmp_path / "b.yaml"))[0]


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("actor_rollout_ref.actor.kl_loss_type=k3+", "one of kl, k1, abs, mse, k2, low_var_kl, k3, got 'k3+'"),
        ("algorithm.kl_penalty=low_var_kl+", "one of kl, k1, abs, mse, k2, low_var_kl, k3, got 'low_var_kl+'"),
        ("actor_rollout_ref.actor.loss_agg_mode=token-sum", "one of token-mean, seq-mean-token-sum, "),
        ("critic.loss_agg_mode=seq-mean-token-sum-norm2", "one of token-mean, seq-mean-token-sum, "),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo_token", "one of vanilla, gspo, cispo, got 'gspo_token'"),
        ("algorithm.adv_estimator=grpo_vectorized", "one of gae, grpo, rloo, "),
        ("algorithm.kl_ctrl.type=fixed_", "one of fixed, adaptive, got 'fixed_'"),
        ("algorithm.rollout_correction.rollout_is=tokens", "one of token, sequence, got 'tokens'"),
        ("actor_rollout_ref.actor.optim.lr_scheduler_type=cosin", "one of constant, cosine, linear, got 'cosin'"),
        ("reward_model.rules=[{kind: maths}]", "one of exact, digits, math, gsm8k, format, regex, got 'maths'"),
    ],
)
def test_no_other_formula_is_proposed(override: str, allowed: str) -> None:
    (line,) = problems("toy-ppo", override)
    assert allowed in line
    assert "did you mean" not in line


def test_verls_own_defaults_load_but_for_what_rltrain_does_otherwise(tmp_path: Path) -> None:
    """The config that verl generates for reference: 898 keys, interpolations included."""
    tree: dict[str, Any] = {}
    for key, value in verl_keys().items():
        *above, last = key.split(".")
        section = tree
        for part in above:
            section = section.setdefault(part, {})
        section[last] = value
    file = write(tmp_path, yaml.safe_dump(tree))
    assert [line.split(": ", 1)[1] for line in problems(file)] == [
        "actor_rollout_ref.rollout.name: must be given, e.g. the override actor_rollout_ref.rollout.name=VALUE",
        "actor_rollout_ref.actor.strategy: expected one of fsdp2, got 'fsdp'",
    ]
    wanted = ["actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.rollout.name=vllm"]
    loaded = load_with_notes(file, [*wanted, "data.max_prompt_length=99", "critic.strategy=fsdp2"])
    assert loaded.config.data.max_prompt_length == 99
    assert loaded.config.actor_rollout_ref.rollout.max_num_seqs == 256
    assert len(loaded.notes) == 1
    assert "verl keys without effect here, at verl's default" in loaded.notes[0]


def test_a_verl_key_away_from_its_default_is_refused_with_advice() -> None:
    assert problems("toy-ppo", "actor_rollout_ref.rollout.seed=3", "critic.ppo_micro_batch_size=8") == [
        "override 'actor_rollout_ref.rollout.seed=3': actor_rollout_ref.rollout.seed: rltrain does not have this key; "
        "trainer.seed seeds everything (verl's default 42 would pass)",
        "override 'critic.ppo_micro_batch_size=8': critic.ppo_micro_batch_size: rltrain does not have this key; it "
        "counts the samples of all ranks together and verl has deprecated it; give critic.ppo_micro_batch_size_per_gpu "
        "(verl's default null would pass)",
    ]


def test_a_verl_default_that_follows_another_key_is_worked_out_in_this_config() -> None:
    follows = "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=true"
    assert len(problems("toy-ppo", follows)) == 1
    loaded = load_with_notes("toy-ppo", [follows, "actor_rollout_ref.actor.use_dynamic_bsz=true"])
    assert "log_prob_use_dynamic_bsz" in loaded.notes[0]


def test_keys_that_moved_are_read_where_they_are_now() -> None:
    loaded = load_with_notes(
        "toy-ppo",
        [
            "reward.custom_reward_function.path=r.py",
            "reward.reward_model.enable=true",
            "critic.fsdp.param_offload=true",
        ],
    )
    assert loaded.config.custom_reward_function.path == "r.py"
    assert loaded.config.reward_model.enable
    assert loaded.config.critic.fsdp_config.param_offload
    assert "reward.reward_model.enable is read as reward_model.enable" in loaded.notes


def test_two_names_of_one_setting_must_agree() -> None:
    both = ["actor_rollout_ref.actor.optim.clip_grad=0.5", "actor_rollout_ref.actor.grad_clip=0.25"]
    assert "0.5 contradicts override" in problems("toy-ppo", *both)[0]
    agreed = load("toy-ppo", [both[0], "actor_rollout_ref.actor.grad_clip=0.5"])
    assert agreed.actor_rollout_ref.actor.grad_clip == 0.5


def test_a_problem_below_a_moved_key_names_the_place_where_it_was_given() -> None:
    (line,) = problems("toy-ppo", "reward.num_workers=x")
    assert line.startswith("override 'reward.num_workers=x': reward_model.num_processes: expected an integer")


def test_reading_a_config_imports_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from rltrain.config import *; import rltrain.cli.dry_run, rltrain.cli.init; load('toy-ppo');"
        "sys.exit(str({'torch', 'ray', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("reward_model.rules={kind: exact}", "reward_model.rules: expected a list of mappings, got {'kind': 'exact'}"),
        ("reward_model.rules=[1]", "reward_model.rules.0: expected a mapping, got 1"),
        ("reward_model.rules[5].kind=exact", "reward_model.rules is a list, its entries are 0 to 0; '5' is none of"),
        ("reward_model.rules.first=3", "reward_model.rules is a list, its entries are 0 to 0; 'first' is none of them"),
        ("trainer=4", "trainer: expected a section with keys below it, got 4"),
        ("trainer.seed[0]=3", "trainer.seed is an integer; give it whole: trainer.seed=VALUE"),
        ("trainer.logger.0=wandb", "trainer.logger is a list of one of console, tensorboard, wandb; give it whole"),
        ("toy.num_digits.x=3", "toy.num_digits is 4, which holds no 'x'"),
        ("[]=3", "expected key=value"),
        ("trainer[=3", "expected key=value"),
        ("trainer..seed=3", "expected key=value"),
        (".".join("a" * 1000) + "=1", "a key of 1000 parts is deeper than any config"),
        ("trainer.seed=" + "[" * 5000 + "]" * 5000, "a value nested deeper than any config"),
        ("~actor_rollout_ref", "actor_rollout_ref: required section; start from a recipe or `rltrain init`"),
        ("trainer.seed=-1", "trainer.seed: must be >= 0, got -1"),
        ("trainer.seed=4294967296", "trainer.seed: must be < 4294967296, got 4294967296"),
        ("data.seed=-1", "data.seed: must be >= 0, got -1"),
        ("actor_rollout_ref.actor.optim.betas=[0.9,1]", "betas.1: must be < 1.0, got 1"),
        ("critic.optim.betas=[a,0.9]", "betas.0: expected a number, got 'a'"),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=-2", "must be >= -1, got -2"),
        ("actor_rollout_ref.actor.kl_loss_coef=-0.1", "must be >= 0.0, got -0.1"),
        ("algorithm.kl_ctrl.kl_coef=-1", "must be >= 0.0, got -1"),
    ],
    ids=lambda value: value[:40],
)
def test_a_misfit_is_said_in_words_of_the_config(override: str, said: str) -> None:
    (line,) = problems(str(SMALL), override)
    assert said in line
    assert len(line) < 1000


def test_a_key_of_a_list_may_be_written_with_brackets() -> None:
    assert load(SMALL, ["reward_model.rules[0].weight=2"]).reward_model.rules[0].weight == 2
    assert load(SMALL, ["toy.model.new.key=2"]).toy.model["new"] == {"key": 2}  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("text", ["", "trainer:\n  seed: 3\n"])
def test_a_file_without_the_one_required_section(tmp_path: Path, text: str) -> None:
    (line,) = problems(write(tmp_path, text))
    assert line.endswith("my.yaml: actor_rollout_ref: required section; start from a recipe or `rltrain init`")


def test_a_file_nested_without_end(tmp_path: Path) -> None:
    (line,) = problems(write(tmp_path, "a: " + "[" * 20_000))
    assert line.endswith("my.yaml: nested deeper than any config; is it one?")
