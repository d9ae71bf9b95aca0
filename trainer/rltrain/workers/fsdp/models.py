"""Make the roles that a run config asks for, on this rank."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from rltrain.config.schema import ModelConfig, RunConfig
from rltrain.rewards.model import RewardModel, load_model, make_model
from rltrain.workers.fsdp import fused_layers, head_proof, packing
from rltrain.workers.fsdp.build import FILES, Weights, load_causal_lm, load_value_model, shard
from rltrain.workers.fsdp.comm_timing import time_gradients
from rltrain.workers.fsdp.forward import Policy, values
from rltrain.workers.fsdp.mesh import Mesh
from rltrain.workers.fsdp.metrics import largest
from rltrain.workers.fsdp.micro import Shard
from rltrain.workers.fsdp.optim import Schedule, Stepper
from rltrain.workers.fsdp.precision import to_dtype
from rltrain.workers.fsdp.rank import RankInfo, derive_seed
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.spread import read_once
from rltrain.workers.fsdp.value_model import ValueModel


def make_actor(
    config: RunConfig, info: RankInfo, mesh: Mesh, total_steps: int, weights: Weights = FILES
) -> ShardedModel:
    """The policy, with its optimizer. TOTAL_STEPS: of the run, also where the actor learns in fewer (as in verl)."""
    section = config.actor_rollout_ref
    model = load_causal_lm(section.model, section.actor.fsdp_config, weights)
    weights.check(model)
    fused = _fuse(model, config, info)
    shard(model, section.actor.fsdp_config, mesh, weights)
    optim = section.actor.optim
    stepper = Stepper(model, optim, section.actor.grad_clip, Schedule.of(optim, total_steps))
    timed = time_gradients(model, mesh.replicas(section.actor.fsdp_config))
    return ShardedModel("actor", model, section.actor.fsdp_config, info.device, stepper, timed, fused=fused)


def make_reference(config: RunConfig, info: RankInfo, mesh: Mesh, weights: Weights = FILES) -> ShardedModel:
    """The frozen policy."""
    section = config.actor_rollout_ref
    model = load_causal_lm(section.model, section.ref.fsdp_config, weights).requires_grad_(False)
    _fuse(model, config, info)
    shard(model, section.ref.fsdp_config, mesh, weights)
    return ShardedModel("ref", model, section.ref.fsdp_config, info.device)


def make_critic(
    config: RunConfig, info: RankInfo, mesh: Mesh, total_steps: int, weights: Weights = FILES
) -> ShardedModel:
    """The value model, with its optimizer."""
    section = config.critic
    seed = derive_seed(config.trainer.seed, "value head")
    model = load_value_model(section.model, section.fsdp_config, seed, weights)
    _fuse(model.backbone, config, info)
    shard(model, section.fsdp_config, mesh, weights)
    stepper = Stepper(model, section.optim, section.grad_clip, Schedule.of(section.optim, total_steps))
    timed = time_gradients(model, mesh.replicas(section.fsdp_config))
    return ShardedModel("critic", model, section.fsdp_config, info.device, stepper, timed)


def make_reward_model(config: RunConfig, info: RankInfo, mesh: Mesh) -> tuple[ShardedModel, RewardModel]:
    """The reward model, sharded, frozen."""
    section = config.reward_model

    def sharded(module: nn.Module) -> nn.Module:
        return cast("nn.Module", shard(module, section.fsdp_config, mesh))

    def load(model: ModelConfig, dtype: torch.dtype) -> nn.Module:
        return read_once(lambda: load_model(model, dtype), lambda: make_model(model, dtype))

    dtype = to_dtype(section.fsdp_config.model_dtype)
    model = RewardModel(section, device=info.device, dtype=dtype, load=load, transform=sharded)
    return ShardedModel("reward_model", model.module, section.fsdp_config, info.device), model


def make_policy(sharded: ShardedModel, config: RunConfig) -> Policy:
    """ROLE's model read as a policy at the temperature of the rollout."""
    section = config.actor_rollout_ref
    return Policy(
        model=sharded.model,
        temperature=section.rollout.temperature,
        packed=section.model.use_remove_padding,
        chunked=sharded.fsdp.entropy_from_logits_with_chunking,
        compiled=section.actor.use_torch_compile,
        head=sharded.head,
    )


def _fuse(model: nn.Module, config: RunConfig, info: RankInfo) -> frozenset[str]:
    if not config.actor_rollout_ref.model.use_fused_kernels:
        return frozenset()
    return frozenset(fused_layers.fuse(cast("PreTrainedModel", model), torch.device(info.device)))


def fuse_head(sharded: ShardedModel, config: RunConfig) -> str:
    """Read the policy's head by blocks from now on, if that gives what the whole logits give (collective).

    Returns:
        why it is not; "" if it is.
    """
    if not config.actor_rollout_ref.model.use_fused_kernels:
        return f"{packing.ACTOR}.use_fused_kernels=false"
    policy = replace(make_policy(sharded, config), compiled=False, head=None)
    bound = packing.BOUNDS.get(to_dtype(sharded.fsdp.dtype), packing.HALF).exact
    sharded.model.eval()
    with sharded.in_use():
        rows, _ = _trial(sharded, config)
        found = head_proof.proven(policy, rows, bound, lambda gap: largest(gap, sharded.device))
    if isinstance(found, str):
        return found
    sharded.head = found
    return ""


def prove_policy(sharded: ShardedModel, config: RunConfig) -> None:
    """Make sure that the policy reads rows as the run puts them together as it reads each alone (collective).

    Raises:
        UserError: see `packing.judge`.
    """
    policy = replace(make_policy(sharded, config), compiled=False)
    alone = replace(policy, packed=False)
    _prove(
        sharded,
        config,
        packing.ACTOR,
        policy.packed,
        lambda trial: packing.read_gaps(lambda rows: policy(rows).log_probs, lambda rows: alone(rows).log_probs, trial),
    )


def prove_critic(sharded: ShardedModel, config: RunConfig) -> None:
    """As `prove_policy`, of the critic's values."""
    model, packed = sharded.model, bool(config.critic.model.use_remove_padding)
    _prove(
        sharded,
        config,
        packing.CRITIC,
        packed,
        lambda trial: packing.read_gaps(
            lambda rows: values(model, rows, packed), lambda rows: values(model, rows, False), trial, relative=True
        ),
    )


def _prove(
    sharded: ShardedModel,
    config: RunConfig,
    section: str,
    packed: bool,
    read: Callable[[tuple[Shard, Shard]], packing.Gaps],
) -> None:
    sharded.model.eval()
    with sharded.in_use():
        gaps = read(_trial(sharded, config))
    worst = (largest(gap if math.isfinite(gap) else math.inf, sharded.device) for gap in astuple(gaps))
    dtype = to_dtype(sharded.fsdp.dtype)
    packing.judge(packing.Gaps(*worst), dtype, architecture(sharded.model), section, packed)


def _trial(sharded: ShardedModel, config: RunConfig) -> tuple[Shard, Shard]:
    model = sharded.model.backbone if isinstance(sharded.model, ValueModel) else sharded.model
    assert isinstance(model, PreTrainedModel)
    vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
    room = (config.data.max_prompt_length, config.data.max_response_length)
    return packing.trial_rows(vocabulary, room, sharded.device)


def num_parameters(model: nn.Module) -> int:
    """Parameters of the whole model, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def architecture(model: nn.Module) -> str:
    """The class of the model as transformers names it."""
    inner = model if isinstance(model, PreTrainedModel) else next(iter(model.children()))
    return type(inner).__name__.removeprefix("FSDP")
