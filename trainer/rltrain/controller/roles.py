"""The roles of the loop, as the controller sees them: whole batches in, whole batches out.

Each deals the rows to the training ranks, calls the same method on all of them at once, and puts the parts together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from rltrain.algos.off_policy import off_policy_metrics
from rltrain.config.schema import RunConfig
from rltrain.controller.audited import Place, choose, places
from rltrain.controller.on_policy import update_reads
from rltrain.controller.reward_manager import request
from rltrain.controller.train_group import STALL_REPORT_S, TrainGroup
from rltrain.core.batch import Batch, Sample
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.rewards.model import conversation
from rltrain.workers.fsdp.micro import MicroSize, MiniBatch, cut, row_lengths
from rltrain.workers.fsdp.rank import derive_seed
from rltrain.workers.fsdp.split import actor_minis, critic_minis, shards

FORWARD_FIELDS = ("input_ids", "attention_mask", "response_mask")
"""What a pass without update reads."""


class Role:
    """What actor, reference and critic share: the training ranks, and how rows get there and back."""

    def __init__(self, train_group: TrainGroup, config: RunConfig, clock: Clock) -> None:
        self._train_group, self._config, self._clock = train_group, config, clock
        self._ranks, self._data_ranks = train_group.workers, train_group.data_ranks
        self._deadline_s = config.trainer.stall_timeout_s + STALL_REPORT_S

    def _each(self, method: str, args: Sequence[Any], doing: str) -> list[Any]:
        return self._ranks.each(method, args, deadline_s=self._deadline_s, doing=doing)

    def _forward(self, method: str, batch: Batch, doing: str) -> dict[str, Tensor]:
        """Call METHOD with each rank's rows of BATCH, and bring the rows of the answers back into order."""
        parts = shards(batch.only(FORWARD_FIELDS).bare(), self._config, self._data_ranks)
        answers: Sequence[Mapping[str, Tensor]] = self._each(method, [shard for _, shard in parts], doing)
        order = torch.argsort(torch.tensor([row for rows, _ in parts for row in rows]))
        names = answers[0].keys()
        return {name: torch.cat([answer[name] for answer in answers])[order] for name in names}


class Actor(Role):
    """The policy that learns."""

    recomputed: Mapping[str, object] = MappingProxyType({})
    """For the audit: how far log-probabilities of some of this step's rows moved when each was read alone."""
    _alone: Sequence[tuple[Place, Tensor]] = ()
    """Of a step whose update reads old log-probabilities: rows that were read alone before it, [1, R] each."""
    _late: Mapping[str, Tensor] | None = None
    """What that update has read."""

    def before_update(self, step: int, batch: Batch) -> Batch:
        """BATCH with what `log_probs` gives, unless the update of STEP gives it (`on_policy`)."""
        self.recomputed, self._alone, self._late = {}, (), None
        if not update_reads(self._config, step):
            return self.log_probs(batch)
        if self._config.trainer.audit:
            with self._clock.stage("old_log_prob"):
                self._alone = self._read_alone(step, batch)
        return batch

    def after_update(self, batch: Batch) -> tuple[Batch, Metrics]:
        """BATCH with what the update has read in the place of `log_probs`, and the metrics that were left for it."""
        if self._late is None:
            return batch, {}
        batch = batch.with_fields(self._late)
        old, mask = batch["old_log_probs"], batch["response_mask"]
        if self._alone:
            pairs = [(alone[0], old[at.row], mask[at.row]) for at, alone in self._alone]
            gaps = torch.cat([(alone - read)[real].abs() for alone, read, real in pairs])
            where = [asdict(at) for at, _ in self._alone]
            worst = float(gaps.max()) if len(gaps) else 0.0
            self.recomputed = {"max_abs_diff": worst, "num_tokens": float(len(gaps)), "rows": where}
        if "rollout_log_probs" not in batch.names:
            return batch, {}
        return batch, off_policy_metrics(old, batch["rollout_log_probs"], batch.engine_mask)

    def log_probs(self, batch: Batch) -> Batch:
        """BATCH with `old_log_probs` and `entropys` under the weights that generated it."""
        if self._config.algorithm.rollout_correction.bypass_mode:
            return batch.with_fields({"old_log_probs": batch["rollout_log_probs"]})
        with self._clock.stage("old_log_prob"):
            batch = batch.with_fields(self._forward("log_probs", batch, "the actor's log-probabilities"))
            if self._config.trainer.audit:
                self.recomputed = self._recompute(batch)
            return batch

    def _recompute(self, batch: Batch) -> dict[str, object]:
        """One row for each rank again, alone in its micro batch: shows a fault in packing that no curve shows."""
        rows, config = batch.only((*FORWARD_FIELDS, "old_log_probs")).bare(), self._config
        read = places(
            row_lengths(rows),
            self._data_ranks,
            MicroSize.of_log_probs(config),
            config.trainer.balance_batch,
        )
        chosen = choose(read, derive_seed(config.trainer.seed, "audit", batch.samples[0].uid))
        # Copies: what is sent of a view is the whole tensor behind it.
        parts = [{name: field[one.row : one.row + 1].clone() for name, field in rows.items()} for one in chosen]
        answers: list[dict[str, float]] = self._each("recompute_log_probs", parts, "recomputing one micro batch")
        tokens = sum(answer["num_tokens"] for answer in answers)
        where = [asdict(one) for one in chosen]
        return {"max_abs_diff": answers[0]["max_abs_diff"], "num_tokens": tokens, "rows": where}

    def _read_alone(self, step: int, batch: Batch) -> list[tuple[Place, Tensor]]:
        """One row for each rank, read alone before the update reads it among others."""
        rows, config = batch.only(FORWARD_FIELDS).bare(), self._config
        minis = [
            rank[0]
            for rank in actor_minis({**rows, "advantages": rows["response_mask"]}, config, step, self._data_ranks)
        ]
        size = MicroSize.of(config.actor_rollout_ref.actor)
        read = [
            [
                Place(mini.rows[one], rank, number, position)
                for number, group in enumerate(cut(row_lengths(mini.shard), size))
                for position, one in enumerate(group)
            ]
            for rank, mini in enumerate(minis)
        ]
        chosen = choose(read, derive_seed(config.trainer.seed, "audit", batch.samples[0].uid))
        parts = [{name: field[one.row : one.row + 1].clone() for name, field in rows.items()} for one in chosen]
        answers: list[Tensor] = self._each("log_probs_alone", parts, "reading rows alone")
        return list(zip(chosen, answers, strict=True))

    def update(self, step: int, batch: Batch) -> Metrics:
        """Learn from BATCH; metrics of all ranks together."""
        with self._clock.stage("update_actor"):
            minis = actor_minis(learnt_from(batch, self._config).bare(), self._config, step, self._data_ranks)
            if "old_log_probs" not in batch.names:
                assert update_reads(self._config, step), "nobody has read the old log-probabilities"
                return self._update_reading(step, batch, minis)
            metrics: Metrics = self._each("update_actor", minis, "the actor's update")[0]
            if self._config.algorithm.rollout_correction.bypass_mode:  # no pass before the update has read it
                metrics["actor/entropy"] = metrics["actor/entropy_loss"]
                del metrics["actor/log_ratio_before_step"]  # of two programs, not of one policy before its step
            self._train_group.policy_version = step
            return metrics

    def _update_reading(self, step: int, batch: Batch, minis: Sequence[Sequence[MiniBatch]]) -> Metrics:
        """The one update of an iteration, which also reads old log-probabilities and entropies: they go to `_late`."""
        answers: list[tuple[Metrics, dict[str, Tensor]]] = self._each(
            "update_and_read_actor", minis, "the actor's update"
        )
        late = {name: torch.zeros(batch["response_mask"].shape) for name in answers[0][1]}
        for [mini], (_, found) in zip(minis, answers, strict=True):
            for name, values in found.items():
                late[name][list(mini.rows)] = values
        self._late = late
        self._train_group.policy_version = step
        return answers[0][0]


def learnt_from(batch: Batch, config: RunConfig) -> Batch:
    """BATCH with the `response_mask` of the loss: without what `rollout_rs` rejects and, if CONFIG says so, without
    answers that were cut."""
    masked, rejected = config.algorithm.mask_truncated_completions, "rollout_rs_kept" in batch.names
    if not masked and not rejected:
        return batch
    mask = batch["response_mask"]
    mask = mask & ~batch["truncated"][:, None] if masked else mask
    return batch.with_fields({"response_mask": mask & batch["rollout_rs_kept"] if rejected else mask})


class Reference(Role):
    """The frozen policy that KL is measured against."""

    def log_probs(self, batch: Batch) -> Batch:
        """BATCH with `ref_log_probs`."""
        with self._clock.stage("ref"):
            return batch.with_fields(self._forward("ref_log_probs", batch, "the reference's log-probabilities"))


class Critic(Role):
    """The value model."""

    def values(self, batch: Batch) -> Batch:
        """BATCH with `values`."""
        with self._clock.stage("values"):
            return batch.with_fields(self._forward("values", batch, "the critic's values"))

    def update(self, step: int, batch: Batch) -> Metrics:
        """Learn from BATCH; metrics of all ranks together."""
        with self._clock.stage("update_critic"):
            minis = critic_minis(learnt_from(batch, self._config).bare(), self._config, step, self._data_ranks)
            return self._each("update_critic", minis, "the critic's update")[0]


@dataclass(frozen=True)
class Roles:
    """Who takes part in a run."""

    actor: Actor
    reference: Reference | None
    critic: Critic | None
    critic_warmup: int
    """The first step in which the actor learns."""


def make_roles(train_group: TrainGroup, config: RunConfig, clock: Clock) -> Roles:
    """The roles that CONFIG needs, all on the same training ranks."""
    return Roles(
        actor=Actor(train_group, config, clock),
        reference=Reference(train_group, config, clock) if config.needs_reference else None,
        critic=Critic(train_group, config, clock) if config.critic.enable else None,
        critic_warmup=config.trainer.critic_warmup,
    )


class RewardModelRole(Role):
    """The reward model, called with texts."""

    def scores(self, samples: Sequence[Sample]) -> tuple[list[float], int]:
        """Its score of each of SAMPLES, neighbours together on one rank, and how many were cut to fit."""
        count = self._data_ranks
        size = -(-len(samples) // count)
        parts = [samples[start : start + size] for start in range(0, size * count, size)]
        texts = [[conversation(s.messages, s.response_text, request(s).words()) for s in part] for part in parts]
        answers: list[tuple[list[float], int]] = self._each("reward_scores", texts, "the reward model's scores")
        return [score for scores, _ in answers for score in scores], sum(truncated for _, truncated in answers)
