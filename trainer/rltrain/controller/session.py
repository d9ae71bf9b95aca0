"""One run from the start of the cluster to its end: who is built, in which order, and what is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from rltrain.cluster.runtime import Runtime
from rltrain.cluster.teardown import Interrupted, StopSignals
from rltrain.cluster.waits import Waits
from rltrain.cluster.watchdog import StallWatchdog
from rltrain.config.schema import RunConfig
from rltrain.controller.callbacks import Callback, Callbacks, RunInfo, StepRecord
from rltrain.controller.callbacks.audit import Audit
from rltrain.controller.callbacks.capsule import Capsules
from rltrain.controller.callbacks.checkpoint import SaveCheckpoints
from rltrain.controller.callbacks.console import LiveConsole, PlainConsole
from rltrain.controller.callbacks.memory import Memory
from rltrain.controller.callbacks.metrics_file import MetricsFile
from rltrain.controller.callbacks.samples import Samples
from rltrain.controller.callbacks.step_time import StepTime
from rltrain.controller.callbacks.tensorboard import TensorBoard
from rltrain.controller.callbacks.wandb import Wandb, require_wandb
from rltrain.controller.collect import Collector
from rltrain.controller.crew import Crew, start_crew
from rltrain.controller.evaluate import Evaluator, Validation
from rltrain.controller.loop import Loop
from rltrain.controller.position import Position
from rltrain.controller.prepare import Prepared, prepare
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.roles import RewardModelRole, Roles, make_roles
from rltrain.controller.warmup import warm_up
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.core.progress import Stages
from rltrain.data.schema import Row
from rltrain.records import run_record
from rltrain.records.checkpoints import CheckpointStore
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
    position = Position(prepared, directory, clock)
    if position.checkpoint is not None:
        stages.say(f"going on from {position.checkpoint.path} (step {position.step} of {position.total_steps})")
    with ExitStack() as stack:
        pool = stack.enter_context(RewardPool(prepared.config))
        pool.check()
        stack.enter_context(StopSignals(runtime.waits, runtime.end_now, stages.say))
        pool.on_poll = RewardWatch(runtime.waits)
        session = Session(prepared, position, directory, pool, runtime, stages, clock)
        return session.run(console, begin)


class Session:
    """A run whose cluster is up."""

    def __init__(
        self,
        prepared: Prepared,
        position: Position,
        directory: RunDir,
        pool: RewardPool,
        runtime: Runtime,
        stages: Stages,
        clock: Clock,
    ) -> None:
        self.config, self.prepared, self.position, self.directory = prepared.config, prepared, position, directory
        self.pool, self.runtime, self.stages, self.clock = pool, runtime, stages, clock

    def run(self, console: Console, begin: float) -> dict[str, Any]:
        """Start the workers, train, and end the workers in order."""
        crew = start_crew(self.prepared, self.runtime, self.clock, self.stages, self.position.total_steps)
        with on_disk(f"{self.directory.record} cannot be written"):
            run_record.add(self.directory, facts=crew.facts)
        # Not sooner: the stages of the start have limits of their own, and beat only when they end.
        with StallWatchdog(self.runtime, self.config.trainer.stall_timeout_s) as watchdog:
            self.clock.listen(watchdog.beat)
            self.runtime.waits.watch = crew.work_files().marks
            best = self._work(crew, console)
            crew.close()
        return {"steps": self.position.step, "best": best, "wall_s": round(time.monotonic() - begin, 1)}

    def _work(self, crew: Crew, console: Console) -> dict[str, float] | None:
        """Train; returns step and value of the best checkpoint."""
        position, trainer = self.position, self.config.trainer
        warm = self._resume_or_warm_up(crew)
        store = CheckpointStore(self.directory.checkpoints, trainer.max_actor_ckpt_to_keep)
        for place in store.set_aside_after(position.step):
            self.stages.say(f"note: a later checkpoint than step {position.step} is kept as {place}")
        saver = SaveCheckpoints(store, crew.train_group.save, position.state, self.clock)
        saver.best = store.confirmed(position.best)
        roles = make_roles(crew.train_group, self.config, self.clock)
        reward_manager = self._reward_manager(crew)
        callbacks = Callbacks(self._callbacks(crew, roles, reward_manager, saver, console))
        self._listened(callbacks, saver, lambda: self._train(crew, roles, reward_manager, callbacks, warm))
        return saver.best

    def _resume_or_warm_up(self, crew: Crew) -> dict[str, float]:
        checkpoint = self.position.checkpoint
        if checkpoint is not None:
            try:
                with self.stages.stage(f"loading the checkpoint of step {checkpoint.step}"):
                    crew.train_group.load(checkpoint.path, checkpoint.step)
            except UserError as error:
                raise UserError(f"{error}; trainer.resume_mode=disable starts over") from None
            return {}
        if not self.config.sft_warmup.steps:
            return {}
        metrics = warm_up(self.config, crew.train_group, self.prepared.demonstrations, self.clock, self.stages)
        crew.train_group.end_sft()
        return metrics

    def _listened(self, callbacks: Callbacks, saver: SaveCheckpoints, train: Callable[[], None]) -> None:
        """Run TRAIN between the first and the last word to CALLBACKS."""
        outcome = "failed"
        try:
            callbacks.on_run_start(RunInfo(self.config, self.directory, self.position.total_steps, self.position.step))
            train()
            outcome = "finished"
        except Interrupted:
            outcome = "interrupted"
            self._save_after_interrupt(saver)
            raise
        finally:
            try:
                callbacks.on_run_end(outcome)
            except OSError as error:  # a full disk; what came before it is what the user must know
                self.stages.say(f"the run's files could not be closed: {error}")

    def _train(
        self, crew: Crew, roles: Roles, reward_manager: RewardManager, callbacks: Callbacks, warm: dict[str, float]
    ) -> None:
        position, waits = self.position, self.runtime.waits
        collector = Collector(self.config, crew.rollout, reward_manager, lambda: next(position.loader))
        loop = Loop(roles, collector, position.algorithm, callbacks, self.clock, self.config, waits.shielded)
        if position.step == 0:
            callbacks.on_step_end(StepRecord(0, warm | self.clock.taken()))
        loop.train(self._prompts())

    def _prompts(self) -> Iterator[tuple[int, list[Row]]]:
        for step, rows in self.position.prompts():
            self.runtime.waits.check()
            yield step, rows

    def _callbacks(
        self, crew: Crew, roles: Roles, reward_manager: RewardManager, saver: SaveCheckpoints, console: Console
    ) -> list[Callback]:
        config, members = self.config, list[Callback]()
        members.append(_StepNote(self.position))
        if self.prepared.val is not None:
            evaluator = Evaluator(config, crew.rollout, reward_manager, self.prepared.val, self.clock)
            members.append(Validation(evaluator, self.clock, self.runtime.waits))
        memory = Memory(self.runtime, crew.train_group, crew.engine_group.workers)
        self.clock.listen(memory.stage)
        members.append(memory)
        if config.trainer.audit:
            members.append(Audit(crew.train_group, roles.actor, reward_manager, self.clock, config))
        members += [StepTime(self.clock), MetricsFile(), Samples()]
        if "tensorboard" in config.trainer.logger:
            members.append(TensorBoard())
        if "wandb" in config.trainer.logger:
            members.append(Wandb())
        members.append(saver)
        if "console" in config.trainer.logger:
            members.append(self._shown(crew, console))
        # The last: what it asks of the engines may end the run, and the step's records are written by then.
        resumed = self.position.checkpoint.path if self.position.checkpoint else None
        members.append(Capsules(self.prepared, crew, reward_manager, self.clock, self.stages.say, resumed))
        return members

    def _shown(self, crew: Crew, console: Console) -> Callback:
        """What the user sees: a table in a terminal, lines elsewhere."""
        if not console.is_terminal:
            return PlainConsole(console)
        live = LiveConsole(console, crew.work_files())
        self.clock.listen(live.stage)
        return live

    def _reward_manager(self, crew: Crew) -> RewardManager:
        config = self.config
        role = RewardModelRole(crew.train_group, config, self.clock) if config.reward_model.enable else None
        return RewardManager(config, self.pool, role.scores if role else None, self.clock)

    def _save_after_interrupt(self, saver: SaveCheckpoints) -> None:
        """Save the last finished step, unless it is saved already; no second signal is waited for in between."""
        step = self.position.step
        if step in (0, saver.saved_step) or (self.position.checkpoint and self.position.checkpoint.step == step):
            return
        if self.config.trainer.save_freq < 0:
            self.stages.say(f"step {step} is not saved: trainer.save_freq=-1")
            return
        self.stages.say(f"saving step {step}")
        with self.runtime.waits.shielded():
            saver.save(step)


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


class _StepNote(Callback):
    """Notes which step is finished, before anything is saved."""

    def __init__(self, position: Position) -> None:
        self._position = position

    def on_step_end(self, record: StepRecord) -> None:
        """Note the position that goes into the step's checkpoint."""
        if not record.before_training:
            self._position.finished(record.step)
