"""Metrics of one step that follow from the batch alone; verl's names."""

from __future__ import annotations

import torch

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.group_metrics import credit_metrics, duplicate_metrics, reward_metrics
from rltrain.algos.metrics import data_metrics, rollout_diff_metrics
from rltrain.config.schema import RunConfig
from rltrain.controller.algorithm import group_ids
from rltrain.controller.prompt_digests import compared
from rltrain.core.batch import Batch
from rltrain.core.metrics import Metrics
from rltrain.core.tensors import ints


def measure(step: int, batch: Batch, config: RunConfig) -> Metrics:
    """Metrics of STEP and its finished BATCH."""
    data = config.data
    metrics = data_metrics(batch.bare(), data.max_prompt_length, data.max_response_length)
    mask = batch["response_mask"]
    # With bypass_mode both are the engine's: a difference of 0 would say nothing.
    bypass = config.algorithm.rollout_correction.bypass_mode
    if not bypass and {"rollout_log_probs", "old_log_probs"} <= batch.names:
        read = batch.engine_mask
        metrics |= rollout_diff_metrics(batch["old_log_probs"], batch["rollout_log_probs"], read)
        metrics["training/rollout_probs_diff_answers"] = float(read.any(dim=-1).sum())
    # Not `clip_ratio`: an answer may end by itself with the last token that it is given.
    metrics["response/truncated_ratio"] = float(batch["truncated"].double().mean())
    metrics |= compared(batch) | _of_groups(batch) | _staleness(step, batch, config)
    if not bypass:
        metrics |= _reference_kl(batch)
    if "entropys" in batch.names:
        actor = config.actor_rollout_ref.actor
        normalizer = AggNormalizer.of(mask, actor.loss_scale_factor or float(data.max_response_length))
        metrics["actor/entropy"] = float(aggregate(batch["entropys"], mask, actor.loss_agg_mode, normalizer))
    metrics["perf/total_num_tokens"] = float(batch["attention_mask"].sum())
    return metrics


def _of_groups(batch: Batch) -> Metrics:
    groups, scores, mask = group_ids(batch), batch["token_level_scores"].sum(dim=-1), batch["response_mask"]
    engine = (batch["rollout_log_probs"], batch.engine_mask) if "rollout_log_probs" in batch.names else None
    found = duplicate_metrics(batch["responses"], mask, groups, engine)
    return reward_metrics(scores, groups) | found | credit_metrics(scores, batch["advantages"], mask, groups)


def _reference_kl(batch: Batch) -> Metrics:
    """KL of the policy that was read before the update to the reference, by the estimator that is never below 0."""
    if not {"old_log_probs", "ref_log_probs"} <= batch.names:
        return {}
    mask = batch["response_mask"]
    gaps = (batch["ref_log_probs"] - batch["old_log_probs"])[mask].double()
    return {"actor/ref_kl": float((gaps.expm1() - gaps).mean())} if len(gaps) else {}


def updates_between(version: int, step: int, config: RunConfig) -> int:
    """How many updates of the actor the weights that STEP begins with are ahead of those of VERSION.

    A version has the number of the step that made it; steps in which the critic learns alone make none.
    """
    idle = max(config.trainer.critic_warmup - 1, 0)
    return max(step - 1, idle) - min(max(version, idle), max(step - 1, idle))


def _staleness(step: int, batch: Batch, config: RunConfig) -> Metrics:
    """Updates between the weights that sampled and those that the update began with; 0: on policy."""
    behind = torch.tensor([updates_between(one, step, config) for one in ints(batch["policy_version"])])
    return {
        "training/policy_staleness/mean": float(behind.double().mean()),
        "training/policy_staleness/max": float(behind.max()),
    }
