"""A config of rltrain that needs the memory that another framework's run, or a plain RunSpec, asks for."""

from __future__ import annotations

import os
from typing import Any

from rlcheck.facts.config import ModelUse, Optim, RoleSpec, RunSpec, Sharding
from rltrain.config.engines import ENGINES
from rltrain.config.estimators import needing
from rltrain.config.resolve import Machine, resolve
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from rltrain.measure.foreign import engine_section

_STRATEGIES = ("fsdp", "fsdp2")


def config_of(spec: RunSpec, directories: dict[str, str], num_gpus: int) -> RunConfig:
    """SPEC as a resolved config for NUM_GPUS GPUs of this machine, or for the CPU where there are none.

    Args:
        spec: of the run.
        directories: of models by role (actor, critic): each holds a config.json, and no weights are needed.
        num_gpus: training ranks; 0: one rank on the CPU.

    Raises:
        UserError: SPEC uses what rltrain does not have.
    """
    if problem := unsupported(spec):
        raise UserError(problem)
    critic = spec.critic
    tree: dict[str, Any] = {
        "actor_rollout_ref": {
            "model": {
                **_model(spec.actor.model, directories["actor"]),
                "use_fused_kernels": spec.actor.model.fused_kernels,
            },
            "actor": _actor(spec.actor),
            "ref": {"fsdp_config": _fsdp(spec.ref or spec.actor)},
            "rollout": _rollout(spec),
        },
        "critic": {"enable": critic is not None} | ({} if critic is None else _critic(critic, directories["critic"])),
        "data": {
            "max_prompt_length": spec.data.max_prompt_length,
            "max_response_length": spec.data.max_response_length,
            "train_batch_size": max(spec.data.train_batch_size, spec.actor.mini_batch_size or 1),
        },
        "algorithm": {"adv_estimator": needing(*(("critic",) if critic is not None else ()))[0]},
        "trainer": {"device": "cuda" if num_gpus else "cpu", "nnodes": 1, "n_gpus_per_node": max(num_gpus, 1)},
    }
    # `resolve` enables a critic by the estimator, and the reference by the loss.
    tree["actor_rollout_ref"]["actor"]["use_kl_loss"] = spec.ref is not None
    device = "cuda" if num_gpus else "cpu"
    return resolve(RunConfig.model_validate(tree), Machine(device, num_gpus, os.cpu_count() or 1))


def unsupported(spec: RunSpec) -> str:
    """What of SPEC cannot be run here, in one line; "" if all can."""
    for role in (spec.actor, spec.ref, spec.critic):
        if role is None:
            continue
        if role.sharding.strategy not in _STRATEGIES:
            return f"{role.name}: strategy {role.sharding.strategy} cannot be measured, only fsdp and fsdp2"
        if role.sharding.sequence_parallel > 1:
            return f"{role.name}: sequence parallel size {role.sharding.sequence_parallel} cannot be measured, only 1"
    return ""


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _model(use: ModelUse, directory: str) -> dict[str, Any]:
    return {
        "path": directory,
        "enable_gradient_checkpointing": use.gradient_checkpointing,
        "use_remove_padding": use.remove_padding,
        "trust_remote_code": use.trust_remote_code,
    }


def _fsdp(role: RoleSpec) -> dict[str, Any]:
    shards: Sharding = role.sharding
    return {
        "fsdp_size": shards.shard_size,
        "param_offload": shards.param_offload,
        "optimizer_offload": shards.optimizer_offload,
        "offload_policy": shards.offload_policy,
        "reshard_after_forward": shards.reshard_after_forward,
        "model_dtype": shards.model_dtype,
        "dtype": shards.dtype,
        "entropy_from_logits_with_chunking": role.chunked_logits,
    }


def _actor(role: RoleSpec) -> dict[str, Any]:
    return {
        "entropy_coeff": role.entropy_coeff,
        "grad_clip": role.optim.grad_clip,
        "use_torch_compile": role.torch_compile,
        **_trained(role),
    }


def _critic(role: RoleSpec, directory: str) -> dict[str, Any]:
    return {"model": _model(role.model, directory), "grad_clip": role.optim.grad_clip, **_trained(role)}


def _trained(role: RoleSpec) -> dict[str, Any]:
    optim: Optim = role.optim
    return _given(
        ppo_mini_batch_size=role.mini_batch_size,
        ppo_micro_batch_size_per_gpu=role.micro_batch_size,
        use_dynamic_bsz=role.dynamic_batch,
        ppo_max_token_len_per_gpu=role.max_tokens,
        optim={"lr": optim.lr},
        fsdp_config=_fsdp(role),
    )


def _rollout(spec: RunSpec) -> dict[str, Any]:
    rollout = spec.rollout
    return _given(
        name=rollout.name if rollout.name in ENGINES else next(iter(ENGINES)),
        **engine_section(rollout),
        log_prob_micro_batch_size_per_gpu=spec.actor.infer_micro_batch_size,
        engine_kwargs=rollout.engine_kwargs if rollout.name in ENGINES else {},
        checkpoint_engine={"update_weights_bucket_megabytes": max(rollout.sync_bucket_bytes >> 20, 1)},
    )
