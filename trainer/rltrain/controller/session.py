"""One run from the start of the cluster to its end: who is built, in which order, and what is saved."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from rltrain.cluster.runtime import Runtime
from rltrain.cluster.teardown import StopSignals
from rltrain.cluster.waits import Waits
from rltrain.cluster.watchdog import StallWatchdog
from rltrain.config.schema import RunConfig
from rltrain.controller.ahead import Ahead
from rltrain.controller.bounded import Bounded
from rltrain.controller.buffer import Buffer
from rltrain.controller.callbacks import Callback, Callbacks, StepRecord
from rltrain.controller.callbacks.audit import Audit
from rltrain.controller.callbacks.capsule import Capsules
from rltrain.controller.callbacks.checkpoint import SaveCheckpoints
from rltrain.controller.callbacks.clock_file import ClockFile
from rltrain.controller.callbacks.memory import Memory
from rltrain.controller.callbacks.metrics_file import MetricsFile
from rltrain.controller.callbacks.samples import Samples
from rltrain.controller.callbacks.step_time import StepTime
from rltrain.controller.callbacks.tensorboard import TensorBoard
from rltrain.controller.callbacks.wandb import Wandb, require_wandb
from rltrain.controller.callbacks.words import RUN_VIEW
from rltrain.controller.collect import Collector
from rltrain.controller.context import Context
from rltrain.controller.crew import Crew, start_crew
from rltrain.controller.evaluate import Evaluator, Validation
from rltrain.controller.loop import Loop
from rltrain.controller.one_step_off import OneStepOff
from rltrain.controller.position import RunPosition
from rltrain.controller.prepare import Prepared, prepare
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.roles import RewardModelRole, Roles, make_roles
from rltrain.controller.warmup import warm_up
from rltrain.core.clock import Clock
from rltrain.core.progress import Stages
from rltrain.records import run_record
from rltrain.records.run_dir import RunDir, on_disk
from rltrain.rewards.pool import RewardPool


def train_session(
    config: RunConfig, directory: RunDir, runtime: Runtime, stages: Stages, console: Console, begin: float
) -> dict[str, Any]:
    """Train as CONFIG says on the cluster of RUNTIME; returns facts for the run's record.

    What the user can fix (data, rewards, checkpoint) is found before a worker is started.

    Raises:
        UserError: something that the user can fix.
        RunFailure: the run broke.
        Interrupted: a signal ended it; what was learnt is saved.
    """
    clock = Clock()
    if "wandb" in config.trainer.logger:
        require_wandb()
    prepared = prepare(config, directory, stages.say)
    position = RunPosition(prepared, directory, clock)
    if position.checkpoint is not None:
        stages.say(f"going on from {position.checkpoint.path} (step {position.step} of {position.total_steps})")
    with ExitStack() as stack:
        pool = stack.enter_context(RewardPool(prepared.config))
        pool.check()
        stack.enter_context(StopSignals(runtime.waits, runtime.end_now, stages.say))
        pool.on_poll = RewardWatch(runtime.waits)
        context = Context(prepared.config, directory, runtime, position, stages, clock)
        return Session(prepared, position, context, pool).run(console, begin)


class Session:
    """A run whose cluster is up."""

    def __init__(self, prepared: Prepared, position: RunPosition, context: Context, pool: RewardPool) -> None:
        self.config, self.prepared, self.position, self.context = prepared.config, prepared, position, context
        self.pool, self.clock, self.stages = pool, context.clock, context.stages
        self._ahead: Ahead | Buffer | None = None
        """Generates while ranks train, where the config lets answers be one step behind, or more."""

    def run(self, console: Console, begin: float) -> dict[str, Any]:
        """Start the workers, train, and end the workers in order."""
        runtime, directory = self.context.runtime, self.context.directory
        crew = start_crew(self.prepared, runtime, self.clock, self.stages, self.position.total_steps)
        with on_disk(f"{directory.record} cannot be written"):
            run_record.add(directory, facts=crew.facts)
        # Not sooner: the stages of the start have limits of their own, and beat only when they end.
        with StallWatchdog(runtime, self.config.trainer.stall_timeout_s) as watchdog:
            self.clock.listen(watchdog.beat)
            runtime.waits.watch = crew.work_files().marks
            best = self._work(crew, console)
            crew.close()
        return {"steps": self.position.step, "best": best, "wall_s": round(time.monotonic() - begin, 1)}

    def _work(self, crew: Crew, console: Console) -> dict[str, float] | None:
        """Train; returns step and value of the best checkpoint."""
        warm = {} if self.context.resume(crew.train_group) else self._warm_up(crew)
        store = self.context.store()
        saver = SaveCheckpoints(store, lambda place: self._save(crew, place), self.position.state, self.clock)
        saver.best = store.confirmed(self.position.best)
        roles = make_roles(crew.train_group, self.config, self.clock)
        reward_manager = self._reward_manager(crew)
        if self.config.algorithm.max_staleness:
            self._ahead = self._made_ahead(crew, reward_manager)
        members = self._callbacks(crew, roles, reward_manager, saver, console)
        self.context.listened(
            members, saver, lambda callbacks: self._train(crew, roles, reward_manager, callbacks, warm)
        )
        return saver.best

    def _warm_up(self, crew: Crew) -> dict[str, float]:
        demonstrations = self.prepared.demonstrations
        if demonstrations is None:
            return {}
        metrics = warm_up(self.config, crew.train_group, demonstrations, self.clock, self.stages)
        crew.train_group.end_sft()
        return metrics

    def _train(
        self, crew: Crew, roles: Roles, reward_manager: RewardManager, callbacks: Callbacks, warm: dict[str, float]
    ) -> None:
        position, waits = self.position, self.context.runtime.waits
        collector = Collector(self.config, crew.rollout, reward_manager, lambda: next(position.loader))
        kind = Loop if self._ahead is None else OneStepOff if isinstance(self._ahead, Ahead) else Bounded
        loop = kind(roles, collector, position.algorithm, callbacks, self.clock, self.config, waits.shielded)
        if isinstance(loop, OneStepOff) and isinstance(self._ahead, Ahead):
            loop.ahead = self._ahead
        if isinstance(loop, Bounded) and isinstance(self._ahead, Buffer):
            loop.buffer = self._ahead
        if position.step == 0:
            callbacks.on_step_end(StepRecord(0, warm | self.clock.taken()))
        loop.train(self.context.batches())

    def _made_ahead(self, crew: Crew, reward_manager: RewardManager) -> Ahead | Buffer:
        parts = (self.config, crew.rollout, crew.engine_group, reward_manager, self.context.runtime, self.clock)
        if self.config.algorithm.max_staleness == 1:
            ahead = Ahead(*parts)
        else:
            ahead = Buffer(*parts, self.position.step, self.position.first, self.position.total_steps)
            self.position.needed = ahead.first_batch
        if self.position.checkpoint is not None:
            ahead.restore(self.position.checkpoint.path)
        return ahead

    def _save(self, crew: Crew, place: Path) -> None:
        """Write the part of a checkpoint that is not the controller's JSON."""
        if self._ahead is not None:
            self._ahead.save(place, self.position.step)
        crew.train_group.save(place)

    def _callbacks(
        self, crew: Crew, roles: Roles, reward_manager: RewardManager, saver: SaveCheckpoints, console: Console
    ) -> list[Callback]:
        config, members = self.config, [self.context.note()]
        if self.prepared.val is not None:
            evaluator = Evaluator(config, crew.rollout, reward_manager, self.prepared.val, self.clock)
            members.append(Validation(evaluator, self.clock, self.context.runtime.waits))
        memory = Memory(self.context.runtime, crew.train_group, crew.engine_group.workers)
        self.clock.listen(memory.stage)
        members.append(memory)
        if config.trainer.audit:
            members.append(Audit(crew.train_group, roles.actor, reward_manager, self.clock, config))
        members += [
            StepTime(self.clock),
            MetricsFile(),
            ClockFile(crew.groups(), memory.gpu_busy),
            Samples(),
            *trackers(config),
        ]
        members.append(saver)
        if "console" in config.trainer.logger:
            members.append(self.context.shown(console, crew.work_files(), RUN_VIEW))
        # The last: what it asks of the engines may end the run, and the step's records are written by then.
        resumed = self.position.checkpoint.path if self.position.checkpoint else None
        members.append(Capsules(self.prepared, crew, reward_manager, self.clock, self.stages.say, resumed))
        return members

    def _reward_manager(self, crew: Crew) -> RewardManager:
        config = self.config
        role = RewardModelRole(crew.train_group, config, self.clock) if config.reward_model.enable else None
        return RewardManager(config, self.pool, role.scores if role else None, self.clock)


def trackers(config: RunConfig) -> list[Callback]:
    """What `trainer.logger` names besides the console."""
    named: dict[str, type[Callback]] = {"tensorboard": TensorBoard, "wandb": Wandb}
    return [made() for name, made in named.items() if name in config.trainer.logger]


class RewardWatch:
    """Lets signals and the watchdog reach the controller while it waits for rewards."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._done = 0

    def __call__(self, done: int) -> None:
        """DONE rewards of the running call are there."""
        if done != self._done:
            self._waits.beat("a reward")
        self._done = done
        self._waits.check()
        self._waits.meanwhile()
