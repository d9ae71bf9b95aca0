"""The supervised warm-up before RL: a few steps of the same training as `rltrain sft`, printed as what it is."""

from __future__ import annotations

from rltrain.config.schema import RunConfig
from rltrain.controller.train_group import TrainGroup
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.core.progress import Stages
from rltrain.data.loader import Loader
from rltrain.data.sft import SftDataset


def warm_up(config: RunConfig, train_group: TrainGroup, rows: SftDataset, clock: Clock, stages: Stages) -> Metrics:
    """Train the actor on demonstrations for `sft_warmup.steps` steps; the metrics of the last one."""
    settings = config.sft_warmup
    metrics: Metrics = {}
    batches = Loader(rows, min(settings.batch_size, len(rows)), config.trainer.seed, shuffle=True)
    words = f"supervised warm-up, {settings.steps} steps of {batches.batch_size} demonstrations"
    with clock.stage("sft_warmup"), stages.stage(words, settings.steps) as done:
        for step in range(1, settings.steps + 1):
            metrics = train_group.sft_step(next(batches))
            done(step)
    stages.say(f"supervised warm-up done: loss {metrics['sft/loss']:.3f} in the last step")
    return metrics
