"""The training loop: collect experience, weigh it, learn from it. Everything else listens to `callbacks`.

One step of PPO (Schulman et al. 2017, arXiv:1707.06347) on a language model, in the manner of HybridFlow (Sheng et
al. 2024, arXiv:2409.19256): this one controller program calls groups of workers; no worker calls another.

    prompts -> rollout -> reward -> old and reference log-probs, values -> advantages -> critic, actor

Timing, metrics on disk, validation, checkpoints and samples are callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from rltrain.config.schema import RunConfig
from rltrain.controller.algorithm import Algorithm
from rltrain.controller.callbacks import Callbacks, StepRecord
from rltrain.controller.collect import Collector
from rltrain.controller.roles import Roles
from rltrain.controller.step_metrics import measure
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.data.schema import Row


class Loop:
    """PPO and its relatives over numbered batches of prompts.

    Args:
        roles: the worker groups that hold actor, reference and critic.
        collector: turns prompts into scored samples.
        estimator: turns scores into token rewards and advantages.
        callbacks: told of every finished step.
        clock: where stages are timed.
        config: of the run.
        unbroken: a block that no signal may end half-way.
    """

    def __init__(
        self,
        roles: Roles,
        collector: Collector,
        algorithm: Algorithm,
        callbacks: Callbacks,
        clock: Clock,
        config: RunConfig,
        unbroken: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._roles, self._collector, self._algorithm = roles, collector, algorithm
        self._callbacks, self._clock, self._config, self._unbroken = callbacks, clock, config, unbroken

    def train(self, prompts: Iterable[tuple[int, list[Row]]]) -> None:
        """Take one step for each of PROMPTS: (step, rows of the data set); steps count from 1.

        Raises:
            RunFailure: a worker died, or an engine did not answer.
            UserError: a reward or the data cannot be used.
            Interrupted: a signal came; the step in hand is dropped, unless it had begun to learn: then it is finished.
        """
        for step, rows in prompts:
            self._callbacks.on_step_begin(step)
            self._clock.announce("step")
            batch, metrics = self._collector.collect(step, rows)
            self.improve(step, batch, metrics)

    def improve(self, step: int, batch: Batch, metrics: Metrics) -> None:
        """Weigh and learn from the scored samples BATCH; METRICS: of how they came about."""
        batch, found = self.weigh(step, batch)
        metrics |= found
        with self._unbroken():
            metrics |= self.learn(step, batch)
            batch, found = self._roles.actor.after_update(batch)
            metrics |= found | measure(step, batch, self._config) | self._clock.taken()
            self._callbacks.on_step_end(StepRecord(step, metrics, batch))

    def weigh(self, step: int, batch: Batch) -> tuple[Batch, Metrics]:
        """Scored samples with everything that learning needs."""
        roles = self._roles
        batch = roles.actor.before_update(step, batch)
        if roles.reference is not None:
            batch = roles.reference.log_probs(batch)
        if roles.critic is not None:
            batch = roles.critic.values(batch)
        return self._algorithm.advantages(batch)

    def learn(self, step: int, batch: Batch) -> Metrics:
        """Update the critic, and from step `trainer.critic_warmup` on the actor (as verl counts)."""
        metrics: Metrics = {"training/global_step": float(step)}
        if self._roles.critic is not None:
            metrics |= self._roles.critic.update(step, batch)
        if step >= self._roles.critic_warmup:
            metrics |= self._roles.actor.update(step, batch)
        return metrics
