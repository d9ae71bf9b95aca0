"""SkyRL: dotted overrides of `SkyRLTrainConfig` on the command line (NovaSky-AI/SkyRL@a956457)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rlcheck.facts.config import RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN, Refusal, Trainer

_POLICY, _CRITIC, _ENGINE = "trainer.policy", "trainer.critic", "generator.inference_engine"
_ALGORITHM, _PLACES, _SAMPLING = "trainer.algorithm", "trainer.placement", "generator.sampling_params"
_FIELDS = {
    "nodes": f"{_PLACES}.policy_num_nodes",
    "gpus_per_node": f"{_PLACES}.policy_num_gpus_per_node",
    "colocated": f"{_PLACES}.colocate_all",
    "run_dir": "trainer.ckpt_path",
    "project": "trainer.project_name",
    "experiment": "trainer.run_name",
    "save_freq": "trainer.ckpt_interval",
    "test_freq": "trainer.eval_interval",
    "val_before_train": "trainer.eval_before_train",
    "total_epochs": "trainer.epochs",
    "total_steps": "trainer.max_training_steps",
    "actor.model.path": f"{_POLICY}.model.path",
    "actor.model.gradient_checkpointing": "trainer.gradient_checkpointing",
    "actor.model.remove_padding": "trainer.remove_microbatch_padding",
    "actor.model.lora_rank": f"{_POLICY}.model.lora.rank",
    "actor.model.lora_alpha": f"{_POLICY}.model.lora.alpha",
    "actor.model.target_modules": f"{_POLICY}.model.lora.target_modules",
    "actor.optim.lr": f"{_POLICY}.optimizer_config.lr",
    "actor.optim.weight_decay": f"{_POLICY}.optimizer_config.weight_decay",
    "actor.optim.grad_clip": f"{_POLICY}.optimizer_config.max_grad_norm",
    "actor.mini_batch_size": "trainer.policy_mini_batch_size",
    "actor.micro_batch_size": "trainer.micro_train_batch_size_per_gpu",
    "actor.infer_micro_batch_size": "trainer.micro_forward_batch_size_per_gpu",
    "actor.epochs": "trainer.update_epochs_per_batch",
    "actor.clip_ratio": f"{_ALGORITHM}.eps_clip_low",
    "actor.clip_ratio_low": f"{_ALGORITHM}.eps_clip_low",
    "actor.clip_ratio_high": f"{_ALGORITHM}.eps_clip_high",
    "actor.clip_ratio_c": f"{_ALGORITHM}.clip_ratio_c",
    "actor.use_kl_loss": f"{_ALGORITHM}.use_kl_loss",
    "actor.kl_loss_coef": f"{_ALGORITHM}.kl_loss_coef",
    "actor.sharding.offload_policy": f"{_POLICY}.fsdp_config.cpu_offload",
    "actor.sharding.shard_size": f"{_POLICY}.fsdp_config.fsdp_size",
    "critic.model.path": f"{_CRITIC}.model.path",
    "critic.optim.lr": f"{_CRITIC}.optimizer_config.lr",
    "critic.mini_batch_size": "trainer.critic_mini_batch_size",
    "critic.micro_batch_size": "trainer.micro_train_batch_size_per_gpu",
    "critic.cliprange_value": f"{_ALGORITHM}.value_clip",
    "rollout.name": f"{_ENGINE}.backend",
    "rollout.n": "generator.n_samples_per_prompt",
    "rollout.temperature": f"{_SAMPLING}.temperature",
    "rollout.top_p": f"{_SAMPLING}.top_p",
    "rollout.top_k": f"{_SAMPLING}.top_k",
    "rollout.dtype": f"{_ENGINE}.model_dtype",
    "rollout.memory_utilization": f"{_ENGINE}.gpu_memory_utilization",
    "rollout.enforce_eager": f"{_ENGINE}.enforce_eager",
    "rollout.tensor_parallel": f"{_ENGINE}.tensor_parallel_size",
    "rollout.data_parallel": f"{_ENGINE}.data_parallel_size",
    "rollout.pipeline_parallel": f"{_ENGINE}.pipeline_parallel_size",
    "rollout.expert_parallel": f"{_ENGINE}.expert_parallel_size",
    "rollout.max_batched_tokens": f"{_ENGINE}.max_num_batched_tokens",
    "rollout.max_seqs": f"{_ENGINE}.max_num_seqs",
    "rollout.chunked_prefill": f"{_ENGINE}.enable_chunked_prefill",
    "rollout.prefix_caching": f"{_ENGINE}.enable_prefix_caching",
    "rollout.engine_kwargs": f"{_ENGINE}.engine_init_kwargs",
    "rollout.val_n": "generator.eval_n_samples_per_prompt",
    "data.max_prompt_length": "trainer.max_prompt_length",
    "data.max_response_length": f"{_SAMPLING}.max_generate_length",
    "data.train_batch_size": "trainer.train_batch_size",
    "algorithm.gamma": f"{_ALGORITHM}.gamma",
    "algorithm.lam": f"{_ALGORITHM}.lambd",
    "algorithm.use_kl_in_reward": f"{_ALGORITHM}.use_kl_in_reward",
    "algorithm.kl_coef": f"{_ALGORITHM}.kl_loss_coef",
    "algorithm.kl_ctrl_type": f"{_ALGORITHM}.kl_ctrl.type",
    "algorithm.norm_adv_by_std_in_grpo": f"{_ALGORITHM}.grpo_norm_by_std",
}
_NAMED = {
    "rollout_gpus_per_node": f"{_ENGINE}.num_engines",
    "actor.sharding.strategy": "trainer.strategy",
    "actor.sharding.sequence_parallel": f"{_POLICY}.sequence_parallel_size",
    "actor.sharding.tensor_parallel": f"{_POLICY}.megatron_config.tensor_model_parallel_size",
    "actor.loss_mode": f"{_ALGORITHM}.policy_loss_type",
    "actor.loss_agg_mode": f"{_ALGORITHM}.loss_reduction",
    "algorithm.adv_estimator": f"{_ALGORITHM}.advantage_estimator",
    "data.train_files": "data.train_data",
    "data.val_files": "data.val_data",
    "loggers": "trainer.logger",
}
_LACKS = frozenset(("actor.model.trust_remote_code", "actor.dynamic_batch"))
_ESTIMATORS = {"grpo": "grpo", "gae": "gae", "rloo": "rloo", "reinforce++": "reinforce_plus_plus"}
_REDUCED = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean",
            "seq_mean_token_sum_norm": "seq-mean-token-sum-norm"}  # fmt: skip


def _engines(config: Config) -> int:
    """GPUs of all engines."""
    pick = config.pick
    return pick.whole(f"{_ENGINE}.num_engines", 1) * pick.whole(f"{_ENGINE}.tensor_parallel_size", 1) * pick.whole(
        f"{_ENGINE}.pipeline_parallel_size", 1) * pick.whole(f"{_ENGINE}.data_parallel_size", 1)  # fmt: skip


def _actors(config: Config) -> int:
    return config.pick.whole(f"{_PLACES}.policy_num_nodes", 1) * config.pick.whole(
        f"{_PLACES}.policy_num_gpus_per_node", 1)  # fmt: skip


def _derive(config: Config) -> dict[str, Any]:
    pick = config.pick
    together, one_node = pick.flag(f"{_PLACES}.colocate_all"), pick.whole(f"{_PLACES}.policy_num_nodes", 1) == 1
    estimator = pick.text(f"{_ALGORITHM}.advantage_estimator", "grpo")
    ref = pick.flag(f"{_ALGORITHM}.use_kl_loss") or pick.flag(f"{_ALGORITHM}.use_kl_in_reward")
    local = pick.flag(f"{_ENGINE}.run_engines_locally", True)
    loss = pick.text(f"{_ALGORITHM}.policy_loss_type", "regular")
    found: dict[str, Any] = {
        "device": "cuda",
        "ray_address": "",
        "rollout_nodes": 0,
        "rollout_gpus_per_node": 0 if together else _engines(config) if one_node and local else UNKNOWN,
        "ref": ref,
        "critic": pick.text(f"{_CRITIC}.model.path") is not None,
        "reward_model": False,
        "loggers": pick.words("trainer.logger"),
        "critic_warmup": 0,
        "algorithm.adv_estimator": _ESTIMATORS.get(estimator, UNKNOWN),
        "algorithm.rollout_is": "token" if pick.flag(f"{_ALGORITHM}.use_tis") or pick.text(
            f"{_ALGORITHM}.off_policy_correction.tis_ratio_type") else None,
        "algorithm.bypass_mode": False,
        "actor.loss_mode": {"regular": "vanilla", "dual_clip": "vanilla", "gspo": "gspo"}.get(loss, UNKNOWN),
        "actor.loss_agg_mode": _REDUCED.get(pick.text(f"{_ALGORITHM}.loss_reduction", ""), UNKNOWN),
        "actor.entropy_coeff": pick.number(f"{_ALGORITHM}.entropy_loss_coef", 0.01) if pick.flag(
            f"{_ALGORITHM}.use_entropy_loss") else 0.0,
        "rollout.mode": "async",
        "rollout.sleeps": together,
        "rollout.multi_turn": pick.whole("generator.max_turns", 1) > 1,
        "rollout.calculate_log_probs": True,
        "rollout.quantization": None,
        "data.prompt_key": "prompt",
        "data.train_files": _local(pick.words("data.train_data")) if "data.train_data" in config.given else UNKNOWN,
        "data.val_files": _local(pick.words("data.val_data")) if "data.val_data" in config.given else UNKNOWN,
        "data.made": "",
        "ref.shares_actor": pick.whole(f"{_POLICY}.model.lora.rank", 0) > 0,
        "ref.model.path": pick.text("trainer.ref.model.path") or pick.text(f"{_POLICY}.model.path") or UNKNOWN,
        "ref.own_gpus": 0 if together or pick.flag(f"{_PLACES}.colocate_policy_ref", True) else _gpus(config, "ref"),
        "critic.own_gpus": 0 if together else _gpus(config, "critic"),
    }  # fmt: skip
    for role, at in (("actor", _POLICY), ("ref", "trainer.ref"), ("critic", _CRITIC)):
        found |= {f"{role}.{name}": value for name, value in _sharding(config, at).items()}
        # model_wrapper.py (a956457): logits are whole, their entropy alone is made in chunks.
        found |= {f"{role}.chunked_logits": False, f"{role}.model.fused_kernels": False}
        found[f"{role}.infer_dynamic_batch"] = False
    return found


def _local(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.startswith(("/", ".", "~")))


def _gpus(config: Config, role: str) -> int:
    return config.pick.whole(f"{_PLACES}.{role}_num_nodes", 1) * config.pick.whole(
        f"{_PLACES}.{role}_num_gpus_per_node", 1)  # fmt: skip


def _sharding(config: Config, at: str) -> dict[str, Any]:
    pick, strategy = config.pick, config.pick.text("trainer.strategy", "fsdp")
    megatron, side = strategy == "megatron", f"{at}.megatron_config"
    together = pick.flag(f"{_PLACES}.colocate_all", True) and not pick.flag(f"{at}.fsdp_config.cpu_offload")
    return {
        "sharding.strategy": {"fsdp": "fsdp2", "fsdp2": "fsdp2", "megatron": "megatron"}.get(strategy, UNKNOWN),
        # fsdp_worker.py: what learns is loaded in float32, a reference in bfloat16; Megatron keeps its own copy.
        "sharding.model_dtype": "bfloat16" if megatron or at == "trainer.ref" else "float32",
        # fsdp_strategy.py: with colocate_all a role goes to the host while it is idle, unless FSDP keeps it there.
        "sharding.param_offload": together,
        "sharding.optimizer_offload": together and pick.flag(f"{at}.optimizer_config.offload_after_step", True),
        "sharding.reshard_after_forward": pick.flag(f"{at}.fsdp_config.reshard_after_forward", True),
        "sharding.cpu_optimizer_share": 0.0,
        "sharding.dtype": "bfloat16" if pick.flag("trainer.bf16", True) else "float32",
        "sharding.sequence_parallel": 1 if megatron else pick.whole(f"{at}.sequence_parallel_size", 1),
        "sharding.tensor_parallel": pick.whole(f"{side}.tensor_model_parallel_size", 1) if megatron else 1,
        "sharding.pipeline_parallel": pick.whole(f"{side}.pipeline_model_parallel_size", 1) if megatron else 1,
        "sharding.context_parallel": pick.whole(f"{side}.context_parallel_size", 1) if megatron else 1,
        "sharding.expert_parallel": pick.whole(f"{side}.expert_model_parallel_size", 1) if megatron else 1,
    }


def _refused(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    """The assertions of `validate_batch_sizes` and `validate_cfg` (skyrl/train/utils/utils.py)."""
    pick = config.pick
    train, mini = pick.whole("trainer.train_batch_size", 1024), pick.whole("trainer.policy_mini_batch_size", 256)
    micro, n = pick.whole("trainer.micro_train_batch_size_per_gpu", 1), pick.whole("generator.n_samples_per_prompt", 5)
    for key in ("trainer.policy_mini_batch_size", "trainer.micro_train_batch_size_per_gpu",
                "trainer.micro_forward_batch_size_per_gpu"):  # fmt: skip
        if pick.whole(key, 1) < 1:
            yield Refusal(key, f"expected at least 1, got {pick.whole(key)}")
            return
    actors, engines = _actors(config), _engines(config)
    shards = _sharding(config, _POLICY)
    group = 1
    for name in ("sequence", "tensor", "pipeline", "context"):
        group *= shards[f"sharding.{name}_parallel"]
    if actors % max(1, group):
        yield Refusal(f"{_PLACES}.policy_num_gpus_per_node", f"expected a multiple of the {group} GPUs of one copy of "
                      f"the model, got {actors} GPUs")  # fmt: skip
        return
    each = mini * n // max(1, actors // max(1, group))
    if train % mini:
        yield Refusal("trainer.train_batch_size", f"expected a multiple of policy_mini_batch_size = {mini}, got "
                      f"{train}")  # fmt: skip
    elif each < 1 or each % micro:
        yield Refusal("trainer.micro_train_batch_size_per_gpu", f"expected a divisor of the {each} samples that a GPU "
                      f"has of a mini batch ({mini} × {n} over {actors // max(1, group)}), got {micro}")  # fmt: skip
    local = pick.flag(f"{_ENGINE}.run_engines_locally", True)
    if pick.flag(f"{_PLACES}.colocate_all") and local and actors != engines:
        yield Refusal(f"{_ENGINE}.num_engines", f"expected engines on {actors} GPUs, the policy's, with colocate_all, "
                      f"got {engines}")  # fmt: skip
    if shards["sharding.strategy"] == "megatron" and spec.critic is not None:
        yield Refusal(f"{_CRITIC}.model.path", "expected none with trainer.strategy=megatron, got a critic")


TRAINER = Trainer(
    name="skyrl",
    title="SkyRL",
    command=re.compile(
        r"skyrl\.train\.entrypoints\.(?P<kind>main_base)|(?:examples|integrations)\.[\w.]*\.main_(?!sft|generate)\w+"
    ),
    signs=("skyrl.train.entrypoints", ".main_"),
    kind="own",
    fields=_FIELDS,
    named=_NAMED,
    derive=_derive,
    lacks=_LACKS,
    refused=_refused,
    style="overrides",
    # A program of one's own has a subclass of the config.
    guessed=frozenset(("own",)),
    choices={
        "trainer.strategy": ("fsdp", "fsdp2", "megatron"),
        f"{_ALGORITHM}.kl_ctrl.type": ("fixed", "adaptive"),
        f"{_ALGORITHM}.kl_estimator_type": ("k1", "k2", "k3", "abs"),
        "trainer.resume_mode": ("none", "latest", "from_path"),
        f"{_ENGINE}.backend": ("vllm",),
    },
)
