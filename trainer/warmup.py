"""The supervised warm-up before RL: a few steps on demonstrations, printed as what it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.callbacks import Metrics
from trainer.clock import Clock
from trainer.cluster.waits import Say
from trainer.config.schema import RunConfig
from trainer.trainers import Encoded, Trainers


def warm_up(config: RunConfig, trainers: Trainers, rows: Sequence[Encoded], clock: Clock, say: Say) -> Metrics:
    """Train the actor on demonstrations for `sft_warmup.steps` steps; the metrics of the last one."""
    settings = config.sft_warmup
    metrics: Metrics = {}
    generator = torch.Generator().manual_seed(config.trainer.seed)
    say(f"supervised warm-up: {settings.steps} steps of {settings.batch_size} demonstrations")
    with clock.stage("sft_warmup"):
        for _ in range(settings.steps):
            drawn = torch.randint(len(rows), (settings.batch_size,), generator=generator).tolist()
            metrics = trainers.sft_step([rows[row] for row in drawn])
    say(f"supervised warm-up done: loss {metrics['sft/loss']:.3f} in the last step")
    return metrics
