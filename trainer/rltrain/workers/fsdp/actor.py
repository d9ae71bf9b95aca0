"""The actor: log-probabilities, and the update of the policy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.kl import kl_penalty
from rltrain.algos.policy_losses import POLICY_LOSSES, PolicyLossInputs
from rltrain.config.schema import ActorConfig
from rltrain.core.tensors import floats
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.metrics import Sums, by_rank, largest
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, Shard
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.updates import gradient_seconds, gradient_traffic, run_updates, step_metrics
from rltrain.workers.fsdp.watch import UNWATCHED, Watch


class ActorLoss:
    """aggregate(policy loss) + kl_loss_coef * aggregate(KL) - entropy_coeff * aggregate(entropy)."""

    def __init__(self, policy: Policy, config: ActorConfig, watch: Watch = UNWATCHED) -> None:
        """CONFIG is resolved: both clip ratios are set."""
        self._policy = policy
        self._config = config
        self._watch = watch
        self.log_ratio = torch.zeros(())
        """Of the last micro batch: the largest |log ratio| of new and old log-probabilities."""

    def __call__(self, rows: Shard, normalizer: AggNormalizer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro batch, and its sums for the metrics."""
        config, mask = self._config, rows["response_mask"].bool()

        def share(terms: Tensor) -> Tensor:
            return aggregate(terms, mask, config.loss_agg_mode, normalizer)

        stats = self._policy(rows, "learnt" if config.entropy_coeff else "read")
        assert stats.entropys is not None
        self._watch.read(rows, log_probs=stats.log_probs, entropys=stats.entropys)
        self.log_ratio = ((stats.log_probs.detach() - rows["old_log_probs"]).abs() * mask).amax()
        terms, sums = POLICY_LOSSES[config.policy_loss.loss_mode](self._inputs(stats.log_probs, rows, mask))
        policy_loss, entropy = share(terms), share(stats.entropys)
        loss = policy_loss - config.entropy_coeff * entropy if config.entropy_coeff else policy_loss
        shares = {"pg_loss": policy_loss, "entropy_loss": entropy}
        if config.use_kl_loss:
            kl = share(kl_penalty(stats.log_probs, rows["ref_log_probs"], config.kl_loss_type, mask))
            loss = loss + config.kl_loss_coef * kl
            shares["kl_loss"] = kl
        return loss, {**shares, **sums, "loss": loss, "loss_tokens": mask.sum()}

    def _inputs(self, log_probs: Tensor, rows: Shard, mask: Tensor) -> PolicyLossInputs:
        config = self._config
        assert config.clip_ratio_low is not None
        assert config.clip_ratio_high is not None
        return PolicyLossInputs(
            log_probs=log_probs,
            old_log_probs=rows["old_log_probs"],
            advantages=rows["advantages"],
            response_mask=mask,
            rollout_is_weights=rows.get("rollout_is_weights"),
            clip_ratio_low=config.clip_ratio_low,
            clip_ratio_high=config.clip_ratio_high,
            clip_ratio_c=config.clip_ratio_c,
        )


def update_actor(
    sharded: ShardedModel, policy: Policy, config: ActorConfig, minis: Sequence[MiniBatch], world_size: int
) -> dict[str, float]:
    """Train on MINIS, all epochs in order (collective).

    Returns:
        verl's metrics, equal on all ranks. `actor/pg_loss`, `entropy_loss`, `kl_loss` and `loss` are means over
        mini batches of the aggregated loss; `pg_clipfrac`, `pg_clipfrac_lower`, `ppo_kl` means over tokens;
        `actor/loss_tokens` counts tokens over all epochs; `actor/shard_loss_spread` is the difference between the
        largest and the smallest policy loss that a rank had on its own rows: 0 where all learn from the same;
        `actor/log_ratio_before_step` is the largest |log ratio| before the first optimizer step, when the policy is
        still the one whose log-probabilities were read: rounding, and nothing else.
    """
    loss, own, ratios = ActorLoss(policy, config, sharded.watch), Sums(sharded.device), list[Tensor]()

    def counted(rows: Shard, normalizer: AggNormalizer) -> tuple[Tensor, dict[str, Tensor]]:
        value, found = loss(rows, normalizer)
        if len(ratios) < minis[0].micro_batches:
            ratios.append(loss.log_ratio)
        own.add({name: found[name] for name in ("pg_loss", "loss_tokens")})
        return value, found

    sums, results = run_updates(sharded, minis, MicroSize.of(config), world_size, counted)
    tokens = max(sums["loss_tokens"], 1.0)
    metrics = {f"actor/{name}": sums[name] / len(minis) for name in ("pg_loss", "entropy_loss", "loss")}
    metrics |= {f"actor/{name}": sums[name] / tokens for name in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")}
    if config.use_kl_loss:
        metrics |= {"actor/kl_loss": sums["kl_loss"] / len(minis), "actor/kl_coef": config.kl_loss_coef}
    metrics["actor/loss_tokens"] = sums["loss_tokens"]
    losses = shard_losses(own, len(minis), tokens, sharded.device)
    metrics["actor/shard_loss_spread"] = max(losses) - min(losses)
    metrics["actor/log_ratio_before_step"] = largest(max(floats(torch.stack(ratios))), sharded.device)
    metrics |= gradient_traffic("actor", sharded)
    metrics["timing_s/grad_comm"] = gradient_seconds(sharded)
    return metrics | step_metrics("actor", results)


def shard_losses(own: Sums, num_minis: int, tokens: float, device: str) -> list[float]:
    """By rank, its mean policy loss over its own rows (collective).

    OWN: this rank's shares of `pg_loss` and its `loss_tokens`, over NUM_MINIS mini batches that have TOKENS over all
    ranks. A share is of a sum over all ranks, so a rank with more tokens has a larger one: that is taken out again.
    """
    mine = own.here("loss_tokens")
    return by_rank(own.here("pg_loss") / num_minis * (tokens / mine if mine else 0.0), device)
