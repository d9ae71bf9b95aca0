"""Each rule refuses what it is for; a config without faults passes them all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rltrain.config import Machine, check, load, notes, resolve, reward_rules, rules
from rltrain.core.errors import UserError
from tests.trainer.config import SMALL

CPU, GPU = Machine("cpu", 0, 2), Machine("cuda", 4, 16)
R, A = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."


def problems(machine: Machine, *overrides: str) -> list[str]:
    try:
        check(resolve(load(SMALL, overrides), machine))
    except UserError as error:
        return str(error).splitlines()
    return []


APART = "actor_rollout_ref.hybrid_engine=false"
OFF = (APART, "algorithm.max_staleness=1")
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (
        (
            f"{A}use_dynamic_bsz=true",
            f"{A}ppo_max_token_len_per_gpu=16384",
            "critic.use_dynamic_bsz=false",
            "actor_rollout_ref.model.use_remove_padding=false",
        ),
        "use_dynamic_bsz: counts tokens without padding",
    ),
    (
        (
            "algorithm.filter_groups.enable=true",
            "algorithm.filter_groups.metric=overlong",
        ),
        "filter_groups.metric: 'overlong' is no part of the reward; choose one of acc, score",
    ),
    (("algorithm.rollout_correction.bypass_mode=true", f"{R}top_p=0.9"), "cut the distribution that the engine's"),
    (("algorithm.rollout_correction.bypass_mode=true", f"{R}top_k=50"), "or bypass_mode=false"),
    (("algorithm.rollout_correction.bypass_mode=true", f"{R}min_tokens=2"), "min_tokens=0"),
    (
        (f"{A}ppo_mini_batch_size=128", "critic.ppo_mini_batch_size=64"),
        "128 prompts is more than data.train_batch_size=64",
    ),
    (
        (f"{A}ppo_mini_batch_size=48", "critic.ppo_mini_batch_size=64"),
        "48 does not divide data.train_batch_size=64; try 32",
    ),
    (("critic.ppo_mini_batch_size=48",), "critic.ppo_mini_batch_size: 48 does not divide"),
    (
        ("trainer.num_cpu_ranks=300", "critic.ppo_mini_batch_size=64"),
        "leaves some of the 300 training ranks without any",
    ),
    (
        (f"{A}use_dynamic_bsz=true", f"{A}ppo_max_token_len_per_gpu=29", "critic.use_dynamic_bsz=false"),
        "29 tokens do not",
    ),
    (
        ("trainer.num_cpu_ranks=8", f"{A}fsdp_config.fsdp_size=3"),
        "actor.fsdp_config.fsdp_size: 3 does not divide the 8 training ranks; try 2, or -1",
    ),
    (("trainer.num_cpu_ranks=8", "critic.fsdp_config.fsdp_size=6"), "critic.fsdp_config.fsdp_size: 6 does not divide"),
    (("algorithm.adv_estimator=grpo", f"{R}n=1"), "grpo compares the samples of one prompt, so n must be > 1, got 1"),
    (("algorithm.adv_estimator=rloo", f"{R}n=1"), "rloo compares the samples"),
    (("critic.enable=false",), "adv_estimator=gae needs the critic"),
    (("algorithm.adv_estimator=grpo", "trainer.critic_warmup=3"), "there is no critic to warm up"),
    (("algorithm.filter_groups.enable=true", f"{R}n=1"), "groups of one sample have equal rewards"),
    (("algorithm.rollout_correction.rollout_is=token", f"{R}calculate_log_probs=false"), "calculate_log_probs=true"),
    (("algorithm.rollout_correction={rollout_is: token, bypass_mode: true}",), "set loss_type=reinforce"),
    (("algorithm.rollout_correction.loss_type=reinforce",), "nothing reads it without bypass_mode=true"),
    (
        ("algorithm.rollout_correction={loss_type: reinforce, bypass_mode: true, rollout_is_batch_normalize: true}",),
        "a micro batch at a time",
    ),
    (
        ("algorithm.rollout_correction={loss_type: reinforce, bypass_mode: true}", f"{A}policy_loss.loss_mode=gspo"),
        "reinforce takes the place of policy_loss.loss_mode=gspo",
    ),
    (("algorithm.rollout_correction.rollout_rs=seq_mean_k1",), "seq_mean_k1 needs one, such as 0.5_2.0"),
    (("algorithm.rollout_correction.rollout_is_threshold=2.0_0.5",), "2.0_0.5 has its lower bound last"),
    ((f"{R}max_model_len=29",), "29 is less than data.max_prompt_length + data.max_response_length = 30"),
    ((f"{R}enable_chunked_prefill=false", f"{R}max_num_batched_tokens=29"), "29 must be >= max_model_len=30"),
    ((f"{R}min_tokens=7",), "7 is more than data.max_response_length=6"),
    ((f"{R}val_kwargs.n=2",), "2 greedy answers to a prompt are the same"),
    ((f"{R}val_kwargs.do_sample=true",), "do_sample=true needs temperature > 0"),
    (("algorithm.max_staleness=1",), "devices of their own; set actor_rollout_ref.hybrid_engine=false"),
    ((*OFF, "algorithm.filter_groups.enable=true"), "filter_groups generates until a batch is full"),
    ((*OFF, "algorithm.adv_estimator=remax"), "remax asks for greedy answers as well; choose grpo"),
    ((*OFF, "trainer.capsule_steps=[1]"), "a capsule is of one policy"),
    ((APART, "algorithm.max_staleness=2", f"{R}stop=['x']"), "a text across two of them is not found"),
    (
        (APART, "algorithm.max_staleness=2", f"{R}name=sglang"),
        "which the sglang engine cannot; set max_staleness=1, or actor_rollout_ref.rollout.name=vllm or name=hf",
    ),
    ((APART, f"{R}n_gpus_per_node=2", f"{R}num_replicas=3"), f"there are 2 for rollout; set {R}num_replicas=2"),
    ((f"{R}nnodes=1",), "need actor_rollout_ref.hybrid_engine=false"),
    ((f"{R}name=hf", f"{R}tensor_model_parallel_size=2"), "the hf engine has no tensor parallelism"),
    ((f"{R}name=hf", f"{R}engine_kwargs.hf.x=1"), "takes no further arguments"),
    (("~toy.model",), "actor_rollout_ref.model.path: give the directory of a model"),
    (("~toy.model", "toy.model.hidden_size=8"), "toy.model.model_type: must be given"),
    (("data.train_max_samples=63",), "64 prompts a step, but only 63 rows"),
    (("toy.num_train=63",), "64 prompts a step, but only 63 rows"),
    (("toy.num_digits=6",), "6 does not hold the 7 tokens of an answer of toy.num_digits=6 and its end"),
    (("reward_model.rules=[]",), "nothing scores the responses"),
    (("reward_model.enable=true",), "needs the directory of a sequence classifier"),
    (("reward_model.rules=[{kind: regex}]",), "reward_model.rules.0.pattern: kind=regex needs a regular expression"),
    (("reward_model.rules=[{kind: regex, pattern: '('}]",), "not a regular expression"),
    (("reward_model.rules=[{kind: math, pattern: a}]",), "kind=math takes no pattern"),
    (("reward_model.overlong_buffer.enable=true",), "0 must be between 1 and data.max_response_length=6"),
    (("trainer.save_freq=0",), "trainer.save_freq: 0 must be -1 (never in between) or"),
    (("data.val_max_samples=0",), "data.val_max_samples: 0 must be -1 (all) or"),
    (("trainer.resume_mode=resume_path",), "needs the directory of a checkpoint"),
    (("trainer.resume_from_path=/",), "has no effect with resume_mode=auto; set resume_path"),
    (("trainer.logger=[]",), "must name at least one of"),
    (("trainer.resume_mode=disabel",), "got 'disabel'; did you mean 'disable'?"),
    (("trainer.resume_mode=never",), "a directory of this name is written ./never"),
    (("trainer.resume_mode=/nope/at/all",), "trainer.resume_mode: no such file or directory: /nope/at/all"),
    (("reward_model.rules=[{kind: math}, {kind: math}]",), "2 rules are named 'math'; give each a `name`"),
    (("reward_model.rules=[{kind: math, name: custom}]",), "rules.0.name: 'custom' names another part of the reward"),
    (("reward_model.rules=[{kind: format, pattern: ''}]",), "rules.0.pattern: kind=format needs a regular expression"),
    ((f"custom_reward_function.path={__file__[:-2]}yaml",), "no such file or directory"),
    ((f"custom_reward_function.path={SMALL}",), "is no Python file; its name must end in .py"),
    ((f"data.train_files={SMALL}",), "small.yaml: unknown kind of file; expected .jsonl, .ndjson, .json, .parquet"),
    (("data.val_files=[]",), "data.val_files: an empty list; name a file"),
    ((f"{R}stop=['']",), "stop: an empty text is found in every response at once"),
    (("toy.model.hidden_size=abc",), "toy.model: hidden_size: expected an integer > 0, got 'abc'"),
    (("toy.model.hidden_size=null",), "toy.model: hidden_size: expected an integer > 0, got null"),
    (("toy.model.hidden_size=[1,2]",), "toy.model: hidden_size: expected an integer > 0, got [1, 2]"),
    (("toy.model.num_attention_heads=0",), "toy.model: num_attention_heads: expected an integer > 0, got 0"),
    (("toy.model.vocab_size=-5",), "toy.model: vocab_size: expected an integer > 0, got -5"),
    (("toy.model.max_position_embeddings=-5",), "toy.model: max_position_embeddings: expected an integer > 0, got -5"),
    (
        ("toy.model.max_position_embeddings=29",),
        "max_prompt_length + data.max_response_length = 30 is more than the model has positions for: "
        "max_position_embeddings=29 in toy.model",
    ),
    (
        ("custom_reward_function.path=/no/such.py",),
        "custom_reward_function.path: no such file or directory: /no/such.py",
    ),
]


def test_bounded_staleness() -> None:
    assert problems(CPU, APART, "algorithm.max_staleness=4") == []
    assert problems(CPU, APART, "algorithm.max_staleness=4", f"{R}name=hf", f"{R}stop_token_ids=[3]") == []
    assert problems(CPU, *OFF, f"{R}stop=['x']") == [], "one step off, no answer is written in parts"


def test_one_step_off() -> None:
    assert problems(CPU, *OFF) == []
    gpus = (f"{R}n_gpus_per_node=1", "trainer.n_gpus_per_node=3")
    assert problems(GPU, *OFF, *gpus) == []
    (line,) = problems(GPU, "algorithm.max_staleness=1")
    assert f"hybrid_engine=false and {R}n_gpus_per_node, or max_staleness=0" in line


@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_refused(overrides: tuple[str, ...], said: str) -> None:
    (line,) = problems(CPU, *overrides)
    assert said in line


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((f"{R}tensor_model_parallel_size=3",), "3 does not divide trainer.n_gpus_per_node=4"),
        ((f"{R}num_replicas=5",), f"5 engines of 1 GPUs need 5, there are 4 for rollout; set {R}num_replicas=4"),
        (("actor_rollout_ref.hybrid_engine=false",), "hybrid_engine=false needs GPUs for rollout"),
        ((f"{R}name=hf",), "the hf engine cannot sleep"),
    ],
)
def test_refused_on_a_gpu(overrides: tuple[str, ...], said: str) -> None:
    (line,) = problems(GPU, *overrides)
    assert said in line
    assert problems(CPU, *overrides) == []


def test_all_problems_come_at_once() -> None:
    assert len(problems(CPU, "critic.enable=false", "trainer.save_freq=0", f"{R}val_kwargs.n=2")) == 3


def test_without_a_toy_files_and_a_model_are_needed() -> None:
    said = problems(CPU, "~toy")
    assert [line.split(":")[0] for line in said] == [
        "data.train_files",
        "data.val_files",
        "sft_warmup.files",
        "actor_rollout_ref.model.path",
    ]


def test_a_missing_file_is_shown_as_it_was_resolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (relative,) = problems(CPU, "data.train_files=sub/train.parquet")
    assert f"no such file or directory: {tmp_path}/sub/train.parquet ({tmp_path} exists" in relative
    (home,) = problems(CPU, "data.val_files=~/val.parquet")
    assert f"{tmp_path}/val.parquet" in home
    (variable,) = problems(CPU, "data.val_files=$NOT_SET_ANYWHERE/val.parquet")
    assert "a variable in it is not set" in variable
    (windows,) = problems(CPU, r"data.val_files=data\val.parquet")
    assert "write / between directories" in windows


def test_a_model_directory_must_hold_a_model(tmp_path: Path) -> None:
    (line,) = problems(CPU, f"actor_rollout_ref.model.path={tmp_path}")
    assert (
        line
        == f"actor_rollout_ref.model.path: {tmp_path} holds no config.json; it must be a model in Hugging Face layout"
    )
    (tmp_path / "config.json").write_text("{}")
    assert problems(CPU, f"actor_rollout_ref.model.path={tmp_path}") == []
    (absent,) = problems(CPU, f"critic.model.path={tmp_path}/x", f"critic.model.tokenizer_path={tmp_path}")
    assert absent.startswith("critic.model.path: no such file or directory")


NOTED: list[tuple[Machine, tuple[str, ...], str]] = [
    (CPU, ("algorithm.use_kl_in_reward=true", f"{A}use_kl_loss=true"), "counts twice"),
    (CPU, ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0"), "for measurement only"),
    (CPU, (f"{A}use_kl_loss=true", f"{A}kl_loss_coef=0"), "for measurement only"),
    (CPU, ("algorithm.kl_ctrl.type=adaptive",), "has no effect without algorithm.use_kl_in_reward"),
    (CPU, (f"{A}policy_loss.loss_mode=gspo", f"{A}clip_ratio=0.001"), "goes with loss_agg_mode=seq-mean-token-mean"),
    (CPU, (f"{A}policy_loss.loss_mode=gspo", f"{A}loss_agg_mode=seq-mean-token-mean"), "its paper uses"),
    (
        CPU,
        ("algorithm.adv_estimator=grpo", "critic.enable=true"),
        "trains a critic that adv_estimator=grpo does not use",
    ),
    (CPU, (f"{R}top_p=0.9",), "cut the engine's distribution"),
    (CPU, ("trainer.save_freq=-1",), "no checkpoint is saved, not even at the end (as in verl)"),
    (CPU, ("trainer.critic_warmup=1",), "is the first step in which the actor learns (as in verl)"),
    (CPU, (f"{R}engine_kwargs.sglang.x=1",), "engine_kwargs.sglang has no effect with name=vllm"),
    (CPU, ("trainer.wandb_proxy=http://p",), "does not name wandb"),
    (CPU, (f"{R}dtype=bfloat16",), "the actor computes in float32, the engine in bfloat16"),
    (CPU, (f"{A}fsdp_config.model_dtype=bfloat16",), "smaller than its rounding are lost"),
    (GPU, (f"{R}num_replicas=3",), "1 of 4 rollout GPUs hold no engine"),
    (GPU, (f"{R}free_cache_engine=false",), "keeps its memory while the actor trains"),
]


@pytest.mark.parametrize(
    ("machine", "overrides", "said"), NOTED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_noted(machine: Machine, overrides: tuple[str, ...], said: str) -> None:
    config = resolve(load(SMALL, overrides), machine)
    check(config)
    (line,) = notes(config)
    assert said in line


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_the_toy_has_nothing_to_note(machine: Machine) -> None:
    assert notes(resolve(load(SMALL), machine)) == []


def model_at(directory: Path, text: str) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(text)
    return f"actor_rollout_ref.model.path={directory}"


def test_a_sample_fits_in_the_positions_of_each_model(tmp_path: Path) -> None:
    enough, short = '{"max_position_embeddings": 30}', '{"max_position_embeddings": 29}'
    model = model_at(tmp_path / "enough", enough)
    assert problems(CPU, model) == []
    model_at(tmp_path / "short", short)
    (line,) = problems(CPU, model, f"critic.model.path={tmp_path}/short")
    assert line.endswith(f"max_position_embeddings=29 in {tmp_path}/short/config.json")
    overridden = "actor_rollout_ref.model.override_config.max_position_embeddings=29"
    assert problems(CPU, model, overridden)[0].endswith("config.json with override_config")
    stretched = '{"max_position_embeddings": 29, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'
    assert problems(CPU, model_at(tmp_path / "stretched", stretched)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "config.json: expected a JSON object with the sizes of a model, got [1, 2]"),
        ("null", "config.json: expected a JSON object with the sizes of a model, got null"),
        ("{", "config.json: not JSON: "),
        ("[" * 100_000, "config.json: not JSON: "),
        ('{"max_position_embeddings": "x"}', "config.json: max_position_embeddings: expected an integer > 0, got 'x'"),
    ],
    ids=lambda text: text[:20],
)
def test_a_models_file_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    (line,) = problems(CPU, model_at(tmp_path / "m", text))
    assert said in line


def test_what_the_rules_know_of_readers_and_rewards_is_so() -> None:
    from rltrain.data.readers import READERS
    from rltrain.rewards.spec import CUSTOM, FAILED, MODEL, OVERLONG

    assert set(rules.DATA_SUFFIXES) == set(READERS)
    assert set(reward_rules.PART_NAMES) == {CUSTOM, MODEL, OVERLONG, FAILED}


def test_a_checkpoint_to_go_on_from_may_be_a_relative_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(problems(CPU, "trainer.resume_mode=./step")) == 1
    (tmp_path / "step").mkdir()
    assert problems(CPU, "trainer.resume_mode=./step") == []


def test_a_divisor_of_a_huge_number_is_found_at_once() -> None:
    huge = ("data.train_batch_size=2147483646", "data.train_files=/", "critic.ppo_mini_batch_size=2")
    begin = time.process_time()
    (line,) = problems(CPU, *huge, f"{A}ppo_mini_batch_size=2147483645")
    assert "try 1073741823" in line
    assert time.process_time() - begin < 5


def test_a_models_file_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = model_at(tmp_path / "m", "{}")

    def refuse(path: Path, **_options: object) -> str:
        raise PermissionError(13, "Permission denied", path)

    loaded = load(SMALL, [model])
    monkeypatch.setattr(Path, "read_text", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(UserError) as caught:
        check(resolve(loaded, CPU))
    assert str(caught.value) == f"{tmp_path}/m/config.json: cannot be read: Permission denied"
