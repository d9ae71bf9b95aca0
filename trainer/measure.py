"""Metrics of one step that follow from the batch alone; verl's names."""

from __future__ import annotations

from trainer.algos.aggregation import AggNormalizer, aggregate
from trainer.algos.metrics import data_metrics, rollout_diff_metrics
from trainer.batch import Batch
from trainer.callbacks import Metrics
from trainer.config.schema import RunConfig


def measure(batch: Batch, timing: Metrics, config: RunConfig) -> Metrics:
    """Metrics of the finished BATCH, with TIMING (`timing_s/*`) and the speed that follows from it.

    `perf/throughput` is tokens (prompts and responses) per second and training rank, as in verl.
    """
    data = config.data
    metrics = data_metrics(batch.bare(), data.max_prompt_length, data.max_response_length) | timing
    mask = batch["response_mask"]
    # With bypass_mode both are the engine's: a difference of 0 would say nothing.
    bypass = config.algorithm.rollout_correction.bypass_mode
    if not bypass and {"rollout_log_probs", "old_log_probs"} <= batch.names:
        metrics |= rollout_diff_metrics(batch["old_log_probs"], batch["rollout_log_probs"], mask)
    if "entropys" in batch.names:
        actor = config.actor_rollout_ref.actor
        normalizer = AggNormalizer.of(mask, actor.loss_scale_factor or float(data.max_response_length))
        metrics["actor/entropy"] = float(aggregate(batch["entropys"], mask, actor.loss_agg_mode, normalizer))
    num_ranks = config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1)
    tokens = float(batch["attention_mask"].sum())
    metrics["perf/total_num_tokens"] = tokens
    metrics["perf/time_per_step"] = timing["timing_s/step"]
    metrics["perf/throughput"] = tokens / (timing["timing_s/step"] * num_ranks)
    return metrics
