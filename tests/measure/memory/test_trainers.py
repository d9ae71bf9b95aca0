"""Other trainers' runs: what of a model each GPU holds, what configs leave open, and that nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcheck.checks.memory.fit import gpu_holds_the_peak
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts, ModelUse, RoleSpec, Sharding
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile
from rlcheck.finding import Finding
from rlcheck.judging import judge
from rlcheck.measure.config.fields import actual
from rlcheck.measure.config.read import read_run
from rlcheck.measure.memory.asked import gpu_named, profile_of
from rlcheck.measure.memory.roles import RoleMemory, role_memory
from rlcheck.measure.memory.shapes import shape_of
from rlcheck.measure.memory.unsaid import assumed, bounded
from tests.measure.config.test_trainers import ALL, LIBRARY, written
from tests.measure.memory.samples import QWEN

SHAPE = shape_of(QWEN)
PARAMETERS = SHAPE.parameters
BUCKET = 500_000_000
# What the configs of `tests/measure/config/trainers` leave open, and a prediction needs.
OPEN: dict[str, tuple[str, list[str]]] = {
    "trl": ("run.sh", ["data.max_prompt_length=512"]),
    "openrlhf": ("run.sh", []),
    "skyrl": ("run.sh", []),
    "nemo-rl": ("child.yaml", ["data.max_prompt_length=512"]),
    "areal": ("grpo.yaml", ["ref.infer_micro_batch_size=1", "ref.micro_batch_size=1"]),
    "roll": ("rlvr.yaml", []),
    "prime-rl": ("rl.toml", ["data.max_prompt_length=512"]),
    "slime": ("run.sh", ["data.max_prompt_length=512"]),
    "miles": ("lora.sh", ["data.max_prompt_length=512"]),
}
TRL = (
    "accelerate launch {launch} -m trl.scripts.grpo --model_name_or_path Org/Some --output_dir out --bf16 "
    "--per_device_train_batch_size 8 --num_generations 8 --max_completion_length 1024 --use_vllm "
    "--vllm_mode colocate --vllm_gpu_memory_utilization 0.3 --vllm_max_model_length 1536 {more}\n"
)
ZERO_FILE = """\
distributed_type: DEEPSPEED
num_machines: 1
num_processes: 4
deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: cpu}
"""
ZERO_JSON = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 1000}}
FSDP_FILE = """\
distributed_type: FSDP
num_machines: 2
num_processes: 16
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false, fsdp_offload_params: true}
"""


@pytest.fixture
def shape_file(tmp_path: Path) -> Path:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(QWEN))
    return path


def read(path: Path, shape: Path, *said: str) -> ConfigFacts:
    return assumed(read_run(str(path), [], look=False, model_shape=shape), said)


def predicted(run: ConfigFacts, gpu: str = "H200") -> MemoryProfile:
    found = gpu_named(gpu, "")
    assert found is not None
    return profile_of(run, found, 0)


def judged(memory: MemoryProfile) -> Finding:
    """What MEM001 says of it."""
    return judge(Facts(memory=known(memory)), [gpu_holds_the_peak], LIBRARY)[0]


def trl(directory: Path, launch: str, more: str = "") -> ConfigFacts:
    (directory / "train.sh").write_text(TRL.format(launch=launch, more=more))
    return read_run(str(directory / "train.sh"), [], look=False, model_shape=directory / "shape.json")


def held(strategy: str, gpus: int, *, lora: int = 0, **sharding: Any) -> RoleMemory:
    shards = Sharding(strategy=strategy, reduce_dtype="bfloat16", **sharding)
    return role_memory(RoleSpec(name="actor", model=ModelUse(lora_rank=lora), sharding=shards), SHAPE, gpus)


@pytest.mark.parametrize("name", list(ALL))
def test_each_trainers_run_is_predicted_and_said_not_to_be_measured(
    name: str, tmp_path: Path, shape_file: Path
) -> None:
    file, said = OPEN[name]
    written(ALL[name], tmp_path)
    memory = predicted(read(tmp_path / file, shape_file, *said))
    assert {"rollout", "actor update", "actor step"} <= {phase.name for phase in memory.phases}
    assert memory.parameters["actor"] == PARAMETERS
    assert any(note.startswith("not measured: ") for note in memory.notes)
    found = judged(memory)
    assert found.status in ("pass", "warn")
    assert "(not measured)" in found.message


@pytest.mark.parametrize(("stage", "weights", "gradients", "optimizer"), [(1, 1, 1, 8), (2, 1, 8, 8), (3, 8, 8, 8)])
def test_what_each_stage_of_zero_leaves_on_a_gpu(stage: int, weights: int, gradients: int, optimizer: int) -> None:
    found = held("deepspeed", 8, zero_stage=stage)
    assert found.weights == 2 * PARAMETERS // weights
    assert found.gradients == 2 * PARAMETERS // gradients
    assert found.optimizer == 12 * PARAMETERS // optimizer
    assert found.buffers == 2 * BUCKET
    assert found.step_buffers == 4 * PARAMETERS // 8


def test_zero_without_a_stage_is_adam_on_the_models_own_weights() -> None:
    found = held("deepspeed", 8, zero_stage=0)
    assert (found.weights, found.gradients, found.optimizer) == (2 * PARAMETERS, 2 * PARAMETERS, 4 * PARAMETERS)
    assert (found.buffers, found.step_buffers) == (0, 0)


def test_zero_offloads_to_the_host_what_it_is_told() -> None:
    found = held("deepspeed", 8, zero_stage=3, cpu_optimizer_share=1.0, param_offload=True)
    assert (found.weights, found.gradients, found.optimizer) == (0, 0, 0)
    assert found.on_host() == sum(each * PARAMETERS // 8 for each in (2, 4, 12))
    kept = held("deepspeed", 8, zero_stage=2, cpu_optimizer_share=1.0)
    assert (kept.weights, kept.gradients, kept.optimizer) == (2 * PARAMETERS, 0, 0)


def test_ddp_holds_everything_on_each_gpu_and_its_buckets_where_there_are_several() -> None:
    one, many = held("ddp", 1), held("ddp", 8)
    for found in (one, many):
        assert (found.weights, found.gradients, found.optimizer) == tuple(n * PARAMETERS for n in (4, 4, 8))
    assert (one.buffers, many.buffers) == (0, 4 * PARAMETERS)
    adapted = held("ddp", 8, lora=16, model_dtype="bfloat16")
    assert adapted.weights - 2 * PARAMETERS == adapted.gradients < PARAMETERS // 10


def test_the_launchers_file_says_how_a_trl_run_is_spread(tmp_path: Path, shape_file: Path) -> None:
    (tmp_path / "zero.yaml").write_text(ZERO_FILE)
    (tmp_path / "fsdp.yaml").write_text(FSDP_FILE)
    zero = trl(tmp_path, "--config_file zero.yaml")
    shards = zero.spec.actor.sharding
    assert (shards.strategy, shards.zero_stage, shards.cpu_optimizer_share) == ("deepspeed", 3, 1.0)
    assert shards.param_offload
    assert (zero.spec.nodes, zero.spec.gpus_per_node) == (1, 4)
    assert trl(tmp_path, "--config_file zero.yaml --num_processes 2").spec.gpus_per_node == 2
    fsdp = trl(tmp_path, "--config_file fsdp.yaml")
    shards = fsdp.spec.actor.sharding
    assert (shards.strategy, shards.reshard_after_forward, shards.offload_policy) == ("fsdp2", False, True)
    assert (fsdp.spec.nodes, fsdp.spec.gpus_per_node, shards.model_dtype) == (2, 8, "float32")


def test_deepspeeds_own_file_counts(tmp_path: Path, shape_file: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_JSON))
    told = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    (tmp_path / "launch.yaml").write_text(told)
    shards = trl(tmp_path, "--config_file launch.yaml").spec.actor.sharding
    assert (shards.zero_stage, shards.cpu_optimizer_share, shards.bucket_elements) == (2, 1.0, 1000)


def test_a_launchers_file_that_is_not_here_leaves_the_placement_open(tmp_path: Path, shape_file: Path) -> None:
    run = trl(tmp_path, "--config_file elsewhere.yaml --num_processes 8")
    assert "actor.sharding.strategy" in run.without
    assert any("elsewhere.yaml" in note for note in run.notes)
    with pytest.raises(UserError, match=r"--assume actor\.sharding\.strategy=VALUE") as refused:
        predicted(run)
    assert "\n" not in str(refused.value)
    assert "sharding.shard_size" not in str(refused.value)


def test_ddp_does_not_hold_what_zero_does(tmp_path: Path, shape_file: Path) -> None:
    alone = predicted(trl(tmp_path, "--multi_gpu --num_processes 8"), "H100-80GB")
    spread = predicted(trl(tmp_path, "--config_file zero3 --num_processes 8"), "H100-80GB")
    assert judged(alone).status == "warn"
    assert judged(spread).status == "pass"


def test_lora_in_trl_needs_no_second_model_for_the_reference(tmp_path: Path, shape_file: Path) -> None:
    whole = predicted(trl(tmp_path, "--num_processes 8", "--beta 0.04"))
    adapted = predicted(trl(tmp_path, "--num_processes 8", "--beta 0.04 --use_peft --lora_r 16"))
    assert "ref" in whole.parameters
    assert "ref" not in adapted.parameters
    peak, other = whole.peak, adapted.peak
    assert peak is not None
    assert other is not None
    assert other.num_bytes < peak.num_bytes


def test_prompts_are_bounded_by_the_engines_length(tmp_path: Path, shape_file: Path) -> None:
    run = trl(tmp_path, "--num_processes 8")
    assert "data.max_prompt_length" in run.without
    found = bounded(run)
    assert actual(found, "data.max_prompt_length") == 512
    assert any("prompts are counted with 512 tokens" in note for note in found.fallbacks)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("data.max_prompt_length", "expected FIELD=VALUE"),
        ("data.max_prompt_lenght=1", "no such field"),
        ("critic.micro_batch_size=1", "no such field"),
        ("data.max_prompt_length=short", "expected `int`"),
    ],
)
def test_what_cannot_be_assumed_is_refused_in_one_line(said: str, why: str, tmp_path: Path, shape_file: Path) -> None:
    with pytest.raises(UserError, match=why) as refused:
        assumed(trl(tmp_path, "--num_processes 8"), [said])
    assert "\n" not in str(refused.value)


def openrlhf(at: Path, shape: Path, *options: str) -> MemoryProfile:
    (at / "run.sh").write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path /m --ds.zero_stage 3 --vllm.num_engines 2 "
        "--vllm.tensor_parallel_size 4 --data.max_len 2048 --rollout.max_new_tokens 1024 "
        f"--rollout.n_samples_per_prompt 8 --algo.kl.init_coef 0.01 {' '.join(options)}\n"
    )
    return predicted(read(at / "run.sh", shape))


GRPO = "--reward.remote_url /r.py --algo.advantage.estimator group_norm"


def test_openrlhf_keeps_adam_on_the_host(tmp_path: Path, shape_file: Path) -> None:
    peaks: list[int] = []
    for option in ("--train.colocate_all --ds.adam_offload", "--train.colocate_all", ""):
        step = next(one for one in openrlhf(tmp_path, shape_file, GRPO, option).phases if one.name == "actor step")
        peaks.append(sum(one.num_bytes for one in step.owners if one.kind == "optimizer"))
    assert peaks == [0, 12 * PARAMETERS // 8, 12 * PARAMETERS // 8]


@pytest.mark.parametrize(
    ("options", "pools"),
    [
        (f"{GRPO} --train.colocate_all", set()),
        (f"{GRPO} --train.colocate_actor_ref", {"rollout"}),
        (GRPO, {"rollout", "ref"}),
        ("--reward.model_name_or_path /m", {"rollout", "ref", "critic", "reward_model"}),
        ("--reward.model_name_or_path /m --train.colocate_critic_reward", {"rollout", "ref", "critic"}),
    ],
)
def test_roles_on_gpus_of_their_own_are_predicted_there(
    options: str, pools: set[str], tmp_path: Path, shape_file: Path
) -> None:
    memory = openrlhf(tmp_path, shape_file, options)
    assert {phase.pool for phase in memory.phases} == {"train", *pools}
    assert any(note.startswith("on GPUs of their own: ref") for note in memory.notes) is bool(pools - {"rollout"})
    owners = {pool: {one.role for phase in memory.phases if phase.pool == pool for one in phase.owners}
              for pool in pools - {"rollout"}}  # fmt: skip
    assert all(pool in roles and "actor" not in roles for pool, roles in owners.items())
    if "critic" in pools:
        assert ("reward_model" in owners["critic"]) is ("reward_model" not in pools)


def test_a_role_with_few_gpus_of_its_own_needs_more_of_each(tmp_path: Path, shape_file: Path) -> None:
    weights = [
        sum(one.num_bytes for one in phase.owners if one.kind == "weights")
        for gpus in (8, 2)
        for phase in openrlhf(tmp_path, shape_file, GRPO, f"--ref.num_gpus_per_node {gpus}").phases
        if phase.pool == "ref"
    ]
    assert weights == [2 * PARAMETERS // 8, 2 * PARAMETERS // 2]


def test_segments_of_fixed_size_leave_fragments(tmp_path: Path, shape_file: Path) -> None:
    update = next(one for one in openrlhf(tmp_path, shape_file, GRPO).phases if one.name == "actor update")
    assert "fragments" in {one.kind for one in update.owners}
    grown = predicted(read(tmp_path / "run.sh", shape_file, "expandable_segments=true"))
    assert not any("fragments" in {one.kind for one in phase.owners} for phase in grown.phases)


@pytest.mark.parametrize(("sleeps", "cache"), [("", True), ("--vllm.enable_sleep", False)])
def test_an_engine_on_gpus_of_several_nodes_is_predicted_and_keeps_its_cache_while_weights_come(
    sleeps: str, cache: bool, tmp_path: Path, shape_file: Path
) -> None:
    (tmp_path / "run.sh").write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path /m --reward.remote_url /r.py "
        f"--actor.num_nodes 2 --vllm.num_engines 1 --vllm.tensor_parallel_size 8 {sleeps} --data.max_len 2048 "
        "--rollout.max_new_tokens 1024 --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 8 "
        "--algo.kl.init_coef 0.01\n"
    )
    memory = predicted(read(tmp_path / "run.sh", shape_file))
    syncing = next(one for one in memory.phases if (one.name, one.pool) == ("weight sync", "rollout"))
    assert ("kv_cache" in {one.kind for one in syncing.owners}) is cache
    assert "activations" not in {one.kind for one in syncing.owners}


@pytest.mark.parametrize(("optimizer", "moments"), [("adamw_torch", 1), ("adamw_torch_fused", 0)])
def test_adamw_over_lists_makes_the_root_of_its_second_moment_in_a_step(
    optimizer: str, moments: int, tmp_path: Path, shape_file: Path
) -> None:
    assert shape_file.exists()
    launch = "--num_processes 4 --num_machines 1"
    run = assumed(trl(tmp_path, launch, f"--optim {optimizer} --dtype bfloat16"), ["data.max_prompt_length=512"])
    step = next(phase for phase in predicted(run).phases if phase.name == "actor step")
    buffers = sum(one.num_bytes for one in step.owners if one.kind == "buffers")
    # Besides DDP's own copy of the gradients: https://github.com/huggingface/trl/pull/2776 has a log of it.
    assert buffers == 2 * PARAMETERS * (1 + moments)


@pytest.mark.parametrize(
    ("more", "whole"),
    [
        ("", True),
        ("actor_rollout_ref.rollout.layered_summon=True", False),
        ("actor_rollout_ref.actor.strategy=fsdp2", False),
        ("actor_rollout_ref.model.lora_rank=0", False),
    ],
)
def test_verl_gathers_the_whole_model_to_send_adapters(
    more: str, whole: bool, tmp_path: Path, shape_file: Path
) -> None:
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=512 "
        "data.max_response_length=512 actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=4 "
        f"actor_rollout_ref.model.lora_rank=32 {more}\n"
    )
    memory = predicted(read(tmp_path / "run.sh", shape_file))
    syncing = next(one for one in memory.phases if one.name == "weight sync")
    held = sum(one.num_bytes for one in syncing.owners if one.kind == "unsharded")
    assert (held >= 4 * PARAMETERS) is whole


def test_packed_rows_fit_up_to_a_length(tmp_path: Path, shape_file: Path) -> None:
    line = (
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=1024 "
        "data.max_response_length=7168 actor_rollout_ref.model.path=/m actor_rollout_ref.model.use_remove_padding={} "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 trainer.n_gpus_per_node=8"
    )
    packed = predicted(read_run(line.format(True), [], look=False, model_shape=shape_file), "H100-80GB")
    padded = predicted(read_run(line.format(False), [], look=False, model_shape=shape_file), "H100-80GB")
    assert 0 < packed.mean_tokens < packed.longest_tokens == 8192
    assert padded.mean_tokens == 0
    found, other = map(judged, (packed, padded))
    assert found.status == "warn"
    assert f"up to {packed.mean_tokens:,} tokens" in found.details[0]
    assert other.status == "fail"
