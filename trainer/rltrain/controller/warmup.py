"""The supervised warm-up before RL: a few steps on demonstrations, printed as what it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rltrain.config.schema import RunConfig
from rltrain.controller.train_group import Encoded, TrainGroup
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.core.progress import Stages
from rltrain.core.tensors import ints


def warm_up(
    config: RunConfig, train_group: TrainGroup, rows: Sequence[Encoded], clock: Clock, stages: Stages
) -> Metrics:
    """Train the actor on demonstrations for `sft_warmup.steps` steps; the metrics of the last one."""
    settings = config.sft_warmup
    metrics: Metrics = {}
    generator = torch.Generator().manual_seed(config.trainer.seed)
    words = f"supervised warm-up, {settings.steps} steps of {settings.batch_size} demonstrations"
    with clock.stage("sft_warmup"), stages.stage(words, settings.steps) as done:
        for step in range(1, settings.steps + 1):
            drawn = ints(torch.randint(len(rows), (settings.batch_size,), generator=generator))
            metrics = train_group.sft_step([rows[row] for row in drawn])
            done(step)
    stages.say(f"supervised warm-up done: loss {metrics['sft/loss']:.3f} in the last step")
    return metrics
