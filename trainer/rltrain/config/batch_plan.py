"""The arithmetic of batches: train batch, samples, mini batches, ranks, micro batches, optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.config.schema import RunConfig


@dataclass(frozen=True)
class BatchPlan:
    """How the samples of one iteration reach the optimizer.

    Where ranks do not divide a mini batch, some get one sample more than others; where micro batches do not divide a
    rank's share, the last one is smaller.
    """

    prompts_per_step: int
    n: int
    """Samples per prompt."""
    samples_per_step: int
    data_ranks: int
    """Training ranks, all of which have rows of their own."""
    mini_batch_prompts: int
    mini_batch_samples: int
    num_mini_batches: int
    ppo_epochs: int
    optimizer_steps_per_iteration: int
    samples_per_rank_per_mini_batch: int
    """Of the ranks that get most."""
    micro_batch_size: int | None
    """Samples in one forward and backward pass; None: micro batches are filled by tokens."""
    micro_batches_per_rank: int | None
    """Per mini batch, on every rank (a rank with fewer samples may idle in its last); None: it depends on the lengths
    of the samples."""
    max_tokens_per_micro_batch: int | None
    """Where micro batches are filled by tokens."""

    @classmethod
    def of(cls, config: RunConfig) -> BatchPlan:
        """The actor's plan; CONFIG has been resolved."""
        actor = config.actor_rollout_ref.actor
        tokens = actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else None
        return cls._plan(
            config, actor.ppo_mini_batch_size, actor.ppo_epochs, actor.ppo_micro_batch_size_per_gpu, tokens
        )

    @classmethod
    def of_critic(cls, config: RunConfig) -> BatchPlan:
        """The critic's plan; CONFIG has been resolved."""
        critic = config.critic
        if critic.ppo_mini_batch_size is None or critic.ppo_epochs is None:
            raise ValueError("the config has not been resolved")
        tokens = critic.ppo_max_token_len_per_gpu if critic.use_dynamic_bsz else None
        return cls._plan(
            config, critic.ppo_mini_batch_size, critic.ppo_epochs, critic.ppo_micro_batch_size_per_gpu, tokens
        )

    @classmethod
    def _plan(cls, config: RunConfig, mini: int, epochs: int, micro: int | None, tokens: int | None) -> BatchPlan:
        if config.trainer.n_gpus_per_node is None or micro is None:
            raise ValueError("the config has not been resolved")
        prompts, n = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
        data_ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        samples, num_minis = mini * n, _ceil(prompts, mini)
        per_rank = _ceil(samples, data_ranks)
        micro_batches = _ceil(per_rank, micro)
        by_samples = tokens is None
        return cls(
            prompts_per_step=prompts,
            n=n,
            samples_per_step=prompts * n,
            data_ranks=data_ranks,
            mini_batch_prompts=mini,
            mini_batch_samples=samples,
            num_mini_batches=num_minis,
            ppo_epochs=epochs,
            optimizer_steps_per_iteration=num_minis * epochs,
            samples_per_rank_per_mini_batch=per_rank,
            micro_batch_size=micro if by_samples else None,
            micro_batches_per_rank=micro_batches if by_samples else None,
            max_tokens_per_micro_batch=tokens,
        )

    def lines(self) -> list[str]:
        """The arithmetic in words, one step a line."""
        return [
            f"train batch    {_count(self.prompts_per_step, 'prompt')} x {_count(self.n, 'sample')} each = "
            f"{_count(self.samples_per_step, 'sample')}: what one iteration generates and scores",
            f"mini batch     {_count(self.mini_batch_prompts, 'prompt')} x {self.n} = "
            f"{_count(self.mini_batch_samples, 'sample')}, over all ranks: what one optimizer step learns from; "
            f"{self.num_mini_batches} in a train batch",
            f"per rank       {_count(self.mini_batch_samples, 'sample')} / {_count(self.data_ranks, 'rank')} = "
            f"{self._dealt(self.samples_per_rank_per_mini_batch)} of each mini batch",
            self._micro_line(),
            f"optimizer      {_count(self.num_mini_batches, 'mini batch', 'mini batches')} x "
            f"{_count(self.ppo_epochs, 'epoch')} = {_count(self.optimizer_steps_per_iteration, 'step')} an iteration"
            + ("" if self.optimizer_steps_per_iteration == 1 else "; after the first, samples are off-policy"),
        ]

    def _micro_line(self) -> str:
        teach = "what one forward and backward pass holds; it sets memory, not the result"
        if self.micro_batch_size is None:
            return f"micro batch    as many samples as fit in {self.max_tokens_per_micro_batch} tokens: {teach}"
        assert self.micro_batches_per_rank is not None
        rest = self.samples_per_rank_per_mini_batch % self.micro_batch_size
        return (
            f"micro batch    {_count(self.micro_batch_size, 'sample')} on a rank: {teach}; "
            f"{_count(self.micro_batches_per_rank, 'pass', 'passes')} for each rank's share"
            + (f", the last of {self._dealt(rest)}" if rest and self.micro_batches_per_rank > 1 else "")
        )

    def _dealt(self, most: int) -> str:
        """MOST samples on some ranks; one fewer on the others where ranks do not divide a mini batch."""
        even = self.mini_batch_samples % self.data_ranks == 0
        return _count(most, "sample") if even else f"{most} or {most - 1} samples"


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
