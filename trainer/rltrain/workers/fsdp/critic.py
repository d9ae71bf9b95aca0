"""The critic's update."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.value_loss import value_loss_terms
from rltrain.config.schema import CriticConfig
from rltrain.workers.fsdp.forward import values
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, Shard
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.updates import gradient_seconds, run_updates, step_metrics


def update_critic(
    sharded: ShardedModel, config: CriticConfig, minis: Sequence[MiniBatch], data_ranks: int
) -> dict[str, float]:
    """Train on MINIS, all epochs in order (collective).

    Returns:
        verl's metrics, equal on all ranks: `critic/vf_loss` is the mean over mini batches of the aggregated loss,
        `vf_clipfrac` and `vpred_mean` are means over tokens.
    """

    mode = config.loss_agg_mode
    assert mode is not None, "the config has not been resolved"

    def loss_function(rows: Shard, normalizer: AggNormalizer) -> tuple[Tensor, dict[str, Tensor]]:
        mask = rows["response_mask"].bool()
        predicted = values(sharded.model, rows, bool(config.model.use_remove_padding))
        sharded.watch.read(rows, vpreds=predicted)
        terms, sums = value_loss_terms(predicted, rows["values"], rows["returns"], mask, config.cliprange_value)
        loss = aggregate(terms, mask, mode, normalizer)
        return loss, {**sums, "vf_loss": loss, "loss_tokens": mask.sum()}

    sums, results = run_updates(sharded, minis, MicroSize.of(config), data_ranks, loss_function)
    tokens = max(sums["loss_tokens"], 1.0)
    return {
        "critic/vf_loss": sums["vf_loss"] / len(minis),
        "critic/vf_clipfrac": sums["vf_clipfrac"] / tokens,
        "critic/vpred_mean": sums["vpred_mean"] / tokens,
        "critic/loss_tokens": sums["loss_tokens"],
        "timing_s/critic_grad_comm": gradient_seconds(sharded),
    } | step_metrics("critic", results)
