"""The actor: log-probabilities, and the update of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer, aggregate
from rltrain.algos.bypass import correction_now
from rltrain.algos.kl import kl_penalty
from rltrain.algos.policy_losses import POLICY_LOSSES, PolicyLossInputs, reinforce
from rltrain.config.schema import ActorConfig, RolloutCorrectionConfig
from rltrain.core.tensors import floats
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.fused_head import EntropyUse
from rltrain.workers.fsdp.metrics import Sums, by_rank, largest
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, Shard, cut, row_lengths
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.updates import gradient_seconds, gradient_traffic, run_updates, step_metrics
from rltrain.workers.fsdp.watch import UNWATCHED, Watch


class ActorLoss:
    """aggregate(policy loss) + kl_loss_coef * aggregate(KL) - entropy_coeff * aggregate(entropy)."""

    def __init__(
        self,
        policy: Policy,
        config: ActorConfig,
        watch: Watch = UNWATCHED,
        reads_entropy: bool = False,
        bypass: RolloutCorrectionConfig | None = None,
    ) -> None:
        """CONFIG is resolved: both clip ratios are set. READS_ENTROPY: also where it has no part in the loss. BYPASS:
        the old log-probabilities are the engine's, and are corrected for here."""
        self._policy, self._bypass = policy, bypass
        self._config = config
        self._watch = watch
        self._entropy: EntropyUse = "learnt" if config.entropy_coeff else "read" if reads_entropy else "none"
        self.log_ratio = torch.zeros(())
        """Of the last micro batch: the largest |log ratio| of new and old log-probabilities."""
        self.read: dict[str, Tensor] = {}
        """Of the last micro batch: `log_probs`, and `entropys` if they are computed, [b, r]."""

    def __call__(self, rows: Shard, normalizer: AggNormalizer) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro batch, and its sums for the metrics. Without `old_log_probs` they are its own."""
        config, mask = self._config, rows["response_mask"].bool()

        def share(terms: Tensor, kept: Tensor = mask) -> Tensor:
            return aggregate(terms, kept, config.loss_agg_mode, normalizer)

        stats = self._policy(rows, self._entropy)
        if "old_log_probs" not in rows:
            rows = {**rows, "old_log_probs": stats.log_probs.detach()}
        computed = {"log_probs": stats.log_probs} | ({} if stats.entropys is None else {"entropys": stats.entropys})
        self.read = {name: values.detach() for name, values in computed.items()}
        self._watch.read(rows, **self.read)
        self.log_ratio = ((stats.log_probs.detach() - rows["old_log_probs"]).abs() * mask).amax()
        kept, corrected, of_tokens = mask, dict[str, Tensor](), POLICY_LOSSES[config.policy_loss.loss_mode]
        if self._bypass is not None:
            weights, kept, corrected = correction_now(stats.log_probs, rows["old_log_probs"], mask, self._bypass)
            rows = rows if weights is None else {**rows, "rollout_is_weights": weights}
            of_tokens = reinforce if self._bypass.loss_type == "reinforce" else of_tokens
        terms, sums = of_tokens(self._inputs(stats.log_probs, rows, mask))
        loss = policy_loss = share(terms, kept)
        shares = {"pg_loss": policy_loss}
        if stats.entropys is not None:
            shares["entropy_loss"] = share(stats.entropys)
            loss = policy_loss - config.entropy_coeff * shares["entropy_loss"] if config.entropy_coeff else policy_loss
        if config.use_kl_loss:
            kl = share(kl_penalty(stats.log_probs, rows["ref_log_probs"], config.kl_loss_type, mask))
            loss = loss + config.kl_loss_coef * kl
            shares["kl_loss"] = kl
        return loss, {**shares, **sums, **corrected, "loss": loss, "loss_tokens": mask.sum()}

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
    sharded: ShardedModel,
    policy: Policy,
    config: ActorConfig,
    minis: Sequence[MiniBatch],
    data_ranks: int,
    bypass: RolloutCorrectionConfig | None = None,
) -> dict[str, float]:
    """Train on MINIS, all epochs in order (collective). BYPASS: of a run whose old log-probabilities are the engine's,
    where nothing has read the entropy before.

    Returns:
        verl's metrics, equal on all ranks. `actor/pg_loss`, `entropy_loss` (where entropies are computed), `kl_loss`
        and `loss` are means over mini batches of the aggregated loss; `pg_clipfrac`, `pg_clipfrac_lower`, `ppo_kl`
        means over tokens; `actor/loss_tokens` counts tokens over all epochs; `actor/shard_loss_spread` is the
        difference between the largest and the smallest policy loss that a rank had on its own rows: 0 where all learn
        from the same; `actor/log_ratio_before_step` is the largest |log ratio| before the first optimizer step, when
        the policy is still the one whose log-probabilities were read: rounding, and nothing else.
    """
    ratios = list[Tensor]()

    def seen(loss: ActorLoss) -> None:
        if len(ratios) < minis[0].micro_batches:
            ratios.append(loss.log_ratio)

    loss = ActorLoss(policy, config, sharded.watch, reads_entropy=bypass is not None, bypass=bypass)
    metrics = _train(sharded, config, minis, data_ranks, loss, seen)
    metrics["actor/log_ratio_before_step"] = largest(max(floats(torch.stack(ratios))), sharded.device)
    return metrics


def update_and_read(
    sharded: ShardedModel, policy: Policy, config: ActorConfig, mini: MiniBatch, data_ranks: int
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Take the one optimizer step of an iteration on rows without `old_log_probs`, and read these with it (collective).

    Returns:
        Metrics as of `update_actor`, less the ratio before the step, which is 1 by definition; and `old_log_probs` and
        `entropys` of the rows of MINI, float32 [B, R] on the host, 0 where there is no token.
    """
    passes: list[dict[str, Tensor]] = []
    loss = ActorLoss(policy, config, sharded.watch, reads_entropy=True)
    metrics = _train(sharded, config, [mini], data_ranks, loss, lambda one: passes.append(one.read))
    fields: dict[str, Tensor] = {}
    for field, name in (("old_log_probs", "log_probs"), ("entropys", "entropys")):
        fields[field] = torch.zeros(mini.shard["response_mask"].shape)
        # Passes are in the order of the cut; those of idle ranks come last.
        for rows, found in zip(cut(row_lengths(mini.shard), MicroSize.of(config)), passes, strict=False):
            fields[field][rows, : found[name].shape[1]] = found[name].float().cpu()
    return metrics, fields


def _train(
    sharded: ShardedModel,
    config: ActorConfig,
    minis: Sequence[MiniBatch],
    data_ranks: int,
    loss: ActorLoss,
    seen: Callable[[ActorLoss], None],
) -> dict[str, float]:
    """Train on MINIS (collective): metrics. SEEN is told of each pass."""
    own = Sums(sharded.device)

    def counted(rows: Shard, normalizer: AggNormalizer) -> tuple[Tensor, dict[str, Tensor]]:
        value, found = loss(rows, normalizer)
        seen(loss)
        own.add({name: found[name] for name in ("pg_loss", "loss_tokens")})
        return value, found

    sums, results = run_updates(sharded, minis, MicroSize.of(config), data_ranks, counted)
    tokens = max(sums["loss_tokens"], 1.0)
    shares = [name for name in ("pg_loss", "entropy_loss", "loss") if name in sums]
    metrics = {f"actor/{name}": sums[name] / len(minis) for name in shares}
    metrics |= {f"actor/{name}": sums[name] / tokens for name in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")}
    metrics |= {f"rollout_corr/{name}": sums[name] / tokens for name in sums if name.startswith("rollout_")}
    if config.use_kl_loss:
        metrics |= {"actor/kl_loss": sums["kl_loss"] / len(minis), "actor/kl_coef": config.kl_loss_coef}
    metrics["actor/loss_tokens"] = sums["loss_tokens"]
    losses = shard_losses(own, len(minis), tokens, sharded.device)
    metrics["actor/shard_loss_spread"] = max(losses) - min(losses)
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
