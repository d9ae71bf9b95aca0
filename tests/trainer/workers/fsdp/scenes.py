"""What tests do with a training rank, alone or beside another. Every function runs on all ranks at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rltrain.config.schema import RunConfig
from rltrain.rewards.model import conversation
from rltrain.workers.fsdp.rank import RankInfo
from rltrain.workers.fsdp.split import actor_minis, critic_minis, shards
from rltrain.workers.fsdp.worker import TrainWorker
from tests.trainer.workers.fsdp.models import random_batch

NUM_STEPS = 20
CONVERSATIONS = [conversation([{"role": "user", "content": "12"}], digits) for digits in ("2", "21", "4321")]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def worker(
    config: RunConfig, rank: int = 0, world_size: int = 1, port: int | None = None, device: str = "cpu"
) -> Iterator[TrainWorker]:
    """A rank that has met the others, and leaves them at the end."""
    info = RankInfo(rank, world_size, "127.0.0.1", port or free_port(), device)
    made = TrainWorker(config, info)
    try:
        made.setup(total_steps=NUM_STEPS)
        yield made
    finally:
        made.shutdown()


class Run:
    """Training steps on recorded batches, as the controller would take them."""

    def __init__(self, worker: TrainWorker, config: RunConfig, rank: int = 0, world_size: int = 1) -> None:
        self.worker = worker
        self._config = config
        self._rank, self._world_size = rank, world_size

    def experience(self, step: int) -> dict[str, Tensor]:
        """Batch STEP with what actor, critic and the reference, if there is one, say of it; all rows, on every rank."""
        batch = random_batch(16, seed=100 + step % 3)
        dealt = shards(batch, self._config, self._world_size)
        mine = dealt[self._rank][1]
        read = {**self.worker.log_probs(mine), **self.worker.values(mine)}
        if self._config.needs_reference:
            read |= self.worker.ref_log_probs(mine)
        every: list[dict[str, Tensor]] = [{}] * self._world_size
        torch.distributed.all_gather_object(every, read)
        for name in read:
            batch[name] = torch.zeros(batch["response_mask"].shape)
            for (rows, _), part in zip(dealt, every, strict=True):
                batch[name][rows] = part[name]
        return batch

    def step(self, step: int) -> dict[str, float]:
        """One step of PPO on batch STEP."""
        batch = self.experience(step)
        critic = self.worker.update_critic(critic_minis(batch, self._config, step, self._world_size)[self._rank])
        actor = self.worker.update_actor(actor_minis(batch, self._config, step, self._world_size)[self._rank])
        return {**critic, **actor}

    def steps(self, first: int, last: int) -> list[dict[str, float]]:
        """Steps FIRST to LAST, without LAST."""
        return [self.step(step) for step in range(first, last)]


def full(worker: TrainWorker) -> dict[str, Tensor]:
    """All of the actor's weights."""
    return {name: tensor.clone() for name, tensor in worker.full_weights()}


def read_all(config: RunConfig, rank: int = 0, world_size: int = 1, port: int | None = None) -> dict[str, Tensor]:
    """What all four models say of one and the same batch, on every rank; and the actor's weights."""
    batch = random_batch(6, seed=8)
    with worker(config, rank, world_size, port) as rank_worker:
        scores, _ = rank_worker.reward_scores(CONVERSATIONS)
        read = {**rank_worker.log_probs(batch), **rank_worker.ref_log_probs(batch), **rank_worker.values(batch)}
        return {**read, "scores": torch.tensor(scores), **full(rank_worker)}


def timeless(metrics: dict[str, float]) -> dict[str, float]:
    """METRICS without those that no two runs share."""
    return {name: value for name, value in metrics.items() if not name.startswith("timing_s/")}


def train(config: RunConfig, rank: int = 0, world_size: int = 1, port: int | None = None) -> list[dict[str, float]]:
    """The metrics of NUM_STEPS steps."""
    with worker(config, rank, world_size, port) as rank_worker:
        return Run(rank_worker, config, rank, world_size).steps(0, NUM_STEPS)
