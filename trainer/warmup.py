"""The supervised warm-up before RL: a few steps on demonstrations, printed as what it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainer.callbacks import Metrics
from trainer.clock import Clock
from trainer.config.schema import RunConfig
from trainer.progress import Stages
from trainer.tensors import ints
from trainer.trainers import Encoded, Trainers


def warm_up(config: RunConfig, trainers: Trainers, rows: Sequence[Encoded], clock: Clock, stages: Stages) -> Metrics:
    """Train the actor on demonstrations for `sft_warmup.steps` steps; the metrics of the last one."""
    settings = config.sft_warmup
    metrics: Metrics = {}
    generator = torch.Generator().manual_seed(config.trainer.seed)
    words = f"supervised warm-up, {settings.steps} steps of {settings.batch_size} demonstrations"
    with clock.stage("sft_warmup"), stages.stage(words, settings.steps) as done:
        for step in range(1, settings.steps + 1):
            drawn = ints(torch.randint(len(rows), (settings.batch_size,), generator=generator))
            metrics = trainers.sft_step([rows[row] for row in drawn])
            done(step)
    stages.say(f"supervised warm-up done: loss {metrics['sft/loss']:.3f} in the last step")
    return metrics
