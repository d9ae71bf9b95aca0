"""What every training on the cluster does, whatever it learns from: go on from a checkpoint, tell callbacks, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from rltrain.cluster.runtime import Runtime
from rltrain.cluster.teardown import Interrupted
from rltrain.config.schema import RunConfig
from rltrain.controller.callbacks import Callback, Callbacks, RunInfo, StepRecord
from rltrain.controller.callbacks.checkpoint import SaveCheckpoints
from rltrain.controller.callbacks.console import LiveConsole, PlainConsole
from rltrain.controller.callbacks.words import View
from rltrain.controller.position import Position
from rltrain.controller.train_group import TrainGroup
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.core.progress import Stages
from rltrain.core.work import WorkFiles
from rltrain.records.checkpoints import CheckpointStore
from rltrain.records.run_dir import RunDir


@dataclass(frozen=True)
class Context:
    """A training whose cluster is up."""

    config: RunConfig
    """Resolved; of supervised training, what training ranks know it as."""
    directory: RunDir
    runtime: Runtime
    position: Position[Any]
    stages: Stages
    clock: Clock

    def resume(self, train_group: TrainGroup) -> bool:
        """Bring the ranks to the checkpoint that the training goes on from; whether there is one.

        Raises:
            UserError: it does not fit.
        """
        checkpoint = self.position.checkpoint
        if checkpoint is None:
            return False
        try:
            with self.stages.stage(f"loading the checkpoint of step {checkpoint.step}"):
                train_group.load(checkpoint.path, checkpoint.step)
        except UserError as error:
            raise UserError(f"{error}; trainer.resume_mode=disable starts over") from None
        return True

    def store(self) -> CheckpointStore:
        """The run's checkpoints; those of later steps than it goes on from are set aside."""
        store = CheckpointStore(self.directory.checkpoints, self.config.trainer.max_actor_ckpt_to_keep)
        for place in store.set_aside_after(self.position.step):
            self.stages.say(f"note: a later checkpoint than step {self.position.step} is kept as {place}")
        return store

    def note(self) -> Callback:
        """Notes each finished step: the first of all callbacks."""
        return _StepNote(self.position)

    def shown(self, console: Console, work: WorkFiles, view: View) -> Callback:
        """What the user sees, by VIEW: a table in a terminal, lines elsewhere."""
        if not console.is_terminal:
            return PlainConsole(console, view)
        live = LiveConsole(console, work, view)
        self.clock.listen(live.stage)
        return live

    def batches(self) -> Iterator[tuple[int, list[Any]]]:
        """The steps to come, each with its rows; a signal ends them."""
        for step, rows in self.position.batches():
            self.runtime.waits.check()
            yield step, rows

    def listened(self, members: Sequence[Callback], saver: SaveCheckpoints, train: Callable[[Callbacks], None]) -> None:
        """Run TRAIN between the first and the last word to MEMBERS, callbacks."""
        outcome, callbacks = "failed", Callbacks(members)
        try:
            callbacks.on_run_start(RunInfo(self.config, self.directory, self.position.total_steps, self.position.step))
            train(callbacks)
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


class _StepNote(Callback):
    """Notes which step is finished, before anything is saved."""

    def __init__(self, position: Position[Any]) -> None:
        self._position = position

    def on_step_end(self, record: StepRecord) -> None:
        """Note the position that goes into the step's checkpoint."""
        if not record.before_training:
            self._position.finished(record.step)
