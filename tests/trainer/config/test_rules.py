"""Each rule refuses what it is for; a config without faults passes them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.config import SMALL
from trainer.config import Machine, check, load, notes, resolve
from trainer.errors import UserError

CPU, GPU = Machine("cpu", 0, 2), Machine("cuda", 4, 16)
R, A = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."


def problems(machine: Machine, *overrides: str) -> list[str]:
    try:
        check(resolve(load(SMALL, overrides), machine))
    except UserError as error:
        return str(error).splitlines()
    return []


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
            "algorithm.filter_groups.metric=reward",
            "algorithm.use_kl_in_reward=true",
        ),
        "filter_groups.metric: groups are filtered before KL is taken off",
    ),
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
    (("algorithm.adv_estimator=grpo", f"{R}n=1"), "grpo compares the samples of one prompt, so n must be > 1, got 1"),
    (("algorithm.adv_estimator=rloo", f"{R}n=1"), "rloo compares the samples"),
    (("critic.enable=false",), "adv_estimator=gae needs the critic"),
    (("algorithm.adv_estimator=grpo", "trainer.critic_warmup=3"), "there is no critic to warm up"),
    (("algorithm.filter_groups.enable=true", f"{R}n=1"), "groups of one sample have equal rewards"),
    (("algorithm.rollout_correction.rollout_is=token", f"{R}calculate_log_probs=false"), "calculate_log_probs=true"),
    (("algorithm.rollout_correction={rollout_is: token, bypass_mode: true}",), "every weight is 1"),
    ((f"{R}max_model_len=29",), "29 is less than data.max_prompt_length + data.max_response_length = 30"),
    ((f"{R}enable_chunked_prefill=false", f"{R}max_num_batched_tokens=29"), "29 must be >= max_model_len=30"),
    ((f"{R}min_tokens=7",), "7 is more than data.max_response_length=6"),
    ((f"{R}val_kwargs.n=2",), "2 greedy answers to a prompt are the same"),
    ((f"{R}val_kwargs.do_sample=true",), "do_sample=true needs temperature > 0"),
    ((f"{R}nnodes=1",), "need actor_rollout_ref.hybrid_engine=false"),
    ((f"{R}name=hf", f"{R}tensor_model_parallel_size=2"), "the hf engine has no tensor parallelism"),
    ((f"{R}name=hf", f"{R}engine_kwargs.hf.x=1"), "takes no further arguments"),
    (("~toy.model",), "actor_rollout_ref.model.path: give the directory of a model"),
    (("~toy.model", "toy.model.hidden_size=8"), "toy.model.model_type: must be given"),
    (("data.train_max_samples=63",), "64 prompts a step, but only 63 rows"),
    (("toy.num_train=63",), "64 prompts a step, but only 63 rows"),
    (("toy.num_digits=6",), "6 does not hold an answer of toy.num_digits=6 and its end token"),
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
    (
        ("custom_reward_function.path=/no/such.py",),
        "custom_reward_function.path: no such file or directory: /no/such.py",
    ),
]


@pytest.mark.parametrize(("overrides", "said"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_refused(overrides: tuple[str, ...], said: str) -> None:
    (line,) = problems(CPU, *overrides)
    assert said in line


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((f"{R}tensor_model_parallel_size=3",), "3 does not divide trainer.n_gpus_per_node=4"),
        ((f"{R}num_replicas=5",), "5 engines of 1 GPUs need 5, there are 4 for rollout"),
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
    (CPU, ("trainer.num_cpu_ranks=3",), "2 rows of padding in each"),
    (CPU, (f"{R}top_p=0.9",), "cut the engine's distribution"),
    (CPU, (f"{R}val_kwargs.temperature=0.5",), "validation is greedy"),
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
