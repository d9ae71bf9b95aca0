"""Supervised training on its own: batches of rows, one optimizer step each; all else listens to callbacks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from rltrain.cluster.placement import nodes_as_asked, plan_ranks
from rltrain.cluster.runtime import connect
from rltrain.cluster.teardown import StopSignals
from rltrain.cluster.waits import Say
from rltrain.cluster.watchdog import StallWatchdog
from rltrain.config.machine import this_machine
from rltrain.config.paths import IN_CHECKPOINT
from rltrain.config.resolve import replaced
from rltrain.config.schema import RunConfig
from rltrain.config.schema.sft import SftConfig
from rltrain.config.sft import as_run
from rltrain.controller.apart import Learning, start_ranks
from rltrain.controller.callbacks import Callback, Callbacks, RunInfo, StepRecord
from rltrain.controller.callbacks.checkpoint import SaveCheckpoints
from rltrain.controller.callbacks.clock_file import ClockFile
from rltrain.controller.callbacks.memory import Memory
from rltrain.controller.callbacks.metrics_file import MetricsFile
from rltrain.controller.callbacks.step_time import StepTime
from rltrain.controller.callbacks.wandb import require_wandb
from rltrain.controller.callbacks.words import SFT_VIEW
from rltrain.controller.context import Context
from rltrain.controller.position import Position
from rltrain.controller.prepare import tokenizer_of
from rltrain.controller.session import trackers
from rltrain.controller.train_group import TrainGroup
from rltrain.core.clock import Clock
from rltrain.core.metrics import Metrics
from rltrain.core.progress import Stages
from rltrain.data.loader import Loader
from rltrain.data.sft import Demonstration, SftDataset, SftSettings, build_sft
from rltrain.records import run_record
from rltrain.records.run_dir import RunDir, on_disk
from rltrain.toy.make import make_toy
from rltrain.workers.imports import imports_of

VAL_LOSS = "val/loss"


@dataclass(frozen=True)
class PreparedSft:
    """Inputs of a supervised training, read and checked."""

    config: SftConfig
    """With the paths of what was made on the spot."""
    run: RunConfig
    """What training ranks know it as."""
    tokenizer: PreTrainedTokenizerBase
    train: SftDataset
    val: SftDataset | None


def prepare_sft(config: SftConfig, directory: RunDir, say: Say) -> PreparedSft:
    """Make and read what the training of CONFIG works on.

    Raises:
        UserError: the data, the model's directory or the tokenizer cannot be used.
    """
    if config.toy is not None:
        config = _with_toy(config, directory)
    run, data = as_run(config), config.data
    tokenizer = tokenizer_of(run)
    train = build_sft(data.train_files, "data.train_files", SftSettings.of(data, data.train_max_samples), tokenizer)
    say(train.report.line())
    val = None
    if data.val_files:
        val = build_sft(data.val_files, "data.val_files", SftSettings.of(data, data.val_max_samples), tokenizer)
        say(val.report.line())
    return PreparedSft(config, run, tokenizer, train, val)


def _with_toy(config: SftConfig, directory: RunDir) -> SftConfig:
    """CONFIG with what `toy` makes in the places that were left open."""
    paths, data = make_toy(as_run(config), directory.toy), config.data
    return replaced(
        config,
        data=replaced(
            data,
            train_files=data.train_files or (str(paths.sft_file),),
            val_files=data.val_files or (str(paths.sft_val_file),),
        ),
        model=replaced(config.model, path=config.model.path or str(paths.model)),
    )


def sft_session(config: SftConfig, directory: RunDir, console: Console, begin: float) -> dict[str, Any]:
    """Train as CONFIG says; returns facts for the run's record.

    What the user can fix (data, checkpoint) is found before the cluster is started.

    Raises:
        UserError: something that the user can fix.
        RunFailure: the run broke.
        Interrupted: a signal ended it; what was learnt is saved.
    """
    stages, clock = Stages(console), Clock()
    if "wandb" in config.trainer.logger:
        require_wandb()
    prepared = prepare_sft(config, directory, stages.say)
    data, run = prepared.config.data, prepared.run
    seed = run.trainer.seed if data.seed is None else data.seed
    position = Position(Loader(prepared.train, data.train_batch_size, seed, data.shuffle), run.trainer, directory)
    stages.say(position.loader.line())
    if position.checkpoint is not None:
        stages.say(f"going on from {position.checkpoint.path} (step {position.step} of {position.total_steps})")
    with ExitStack() as stack:
        with stages.stage("starting Ray"):
            placed = plan_ranks(run, nodes_as_asked(run, this_machine().num_cpus))
            imports = imports_of(run, placed.train)
            runtime = stack.enter_context(connect(run, directory.logs, stages.say, stages.still, imports))
        stack.enter_context(StopSignals(runtime.waits, runtime.end_now, stages.say))
        context = Context(run, directory, runtime, position, stages, clock)
        return SftSession(prepared, context).run(console, begin)


class SftSession:
    """A supervised training whose cluster is up."""

    def __init__(self, prepared: PreparedSft, context: Context) -> None:
        self.prepared, self.context = prepared, context

    def run(self, console: Console, begin: float) -> dict[str, Any]:
        """Start the ranks, train, and end them in order."""
        context, run = self.context, self.prepared.run
        learning = start_ranks(run, context.runtime, context.stages, context.position.total_steps)
        with on_disk(f"{context.directory.record} cannot be written"):
            run_record.add(context.directory, facts=learning.facts)
        with StallWatchdog(context.runtime, run.trainer.stall_timeout_s) as watchdog:
            context.clock.listen(watchdog.beat)
            context.runtime.waits.watch = learning.work_files().marks
            best = self._work(learning, console)
            learning.close()
        return {"steps": context.position.step, "best": best, "wall_s": round(time.monotonic() - begin, 1)}

    def _work(self, learning: Learning, console: Console) -> dict[str, float] | None:
        context = self.context
        context.resume(learning.train_group)
        store = context.store()
        write = CheckpointWriter(learning.train_group, "hf_model" in self.prepared.config.checkpoint.save_contents)
        saver = SaveCheckpoints(store, write, context.position.state, context.clock, best_by=VAL_LOSS)
        saver.best = store.confirmed(context.position.best)
        members = self._callbacks(learning, saver, console)
        context.listened(members, saver, lambda callbacks: self._train(learning.train_group, callbacks))
        return saver.best

    def _train(self, train_group: TrainGroup, callbacks: Callbacks) -> None:
        """One step for each batch; a signal drops the step in hand, unless it has begun to learn."""
        context = self.context
        if context.position.step == 0:
            callbacks.on_step_end(StepRecord(0, context.clock.taken()))
        for step, rows in context.batches():
            callbacks.on_step_begin(step)
            context.clock.announce("step")
            with context.runtime.waits.shielded():
                with context.clock.stage("update"):
                    metrics = train_group.sft_step(rows)
                callbacks.on_step_end(StepRecord(step, self._metrics(step, rows, metrics) | context.clock.taken()))

    def _metrics(self, step: int, rows: Sequence[Demonstration], found: Metrics) -> Metrics:
        """Of the step, under the names of verl's SFT trainer where it has them."""
        num_tokens = float(sum(len(row.input_ids) for row in rows))
        return {
            **{name.replace("sft/", "train/", 1): value for name, value in found.items()},
            "train/global_tokens": num_tokens,
            "train/epoch": step / self.context.position.loader.num_steps_per_epoch,
            "training/global_step": float(step),
            "perf/total_num_tokens": num_tokens,
        }

    def _callbacks(self, learning: Learning, saver: SaveCheckpoints, console: Console) -> list[Callback]:
        context, run = self.context, self.prepared.run
        members = [context.note()]
        if self.prepared.val is not None:
            members.append(HeldOut(learning.train_group, self.prepared.val, context.clock))
        memory = Memory(context.runtime, learning.train_group, None)
        context.clock.listen(memory.stage)
        clock = ClockFile({"train": learning.train_group.workers}, memory.gpu_busy)
        members += [memory, StepTime(context.clock), MetricsFile(), clock, *trackers(run), saver]
        if "console" in run.trainer.logger:
            members.append(context.shown(console, learning.work_files(), SFT_VIEW))
        return members


@dataclass(frozen=True)
class CheckpointWriter:
    """What the ranks put into a checkpoint: their state and, if wanted, the model in Hugging Face layout."""

    train_group: TrainGroup
    with_model: bool

    def __call__(self, directory: Path) -> dict[str, str]:
        """Fill DIRECTORY; SHA-256 of the files of the state, by path from there."""
        digests = self.train_group.save(directory)
        if self.with_model:
            self.train_group.export(directory / IN_CHECKPOINT)
        return digests


class HeldOut(Callback):
    """The loss on rows that are not learnt from: before training, every `trainer.test_freq` steps, after the last."""

    def __init__(self, train_group: TrainGroup, rows: SftDataset, clock: Clock) -> None:
        self._train_group, self._rows, self._clock = train_group, list(rows), clock
        self._frequency, self._before, self._last_step = -1, True, 0

    def on_run_start(self, run: RunInfo) -> None:
        """Note how often."""
        trainer = run.config.trainer
        self._frequency, self._before, self._last_step = trainer.test_freq, trainer.val_before_train, run.total_steps

    def on_step_end(self, record: StepRecord) -> None:
        """Add `val/loss`, nats a learnt token, and `val/loss_tokens`, if it is the step's turn."""
        due = self._frequency > 0 and (record.step % self._frequency == 0 or record.step == self._last_step)
        if self._before if record.before_training else due:
            with self._clock.apart("testing"):
                found = self._train_group.sft_loss(self._rows)
            record.metrics.update({f"val/{name}": value for name, value in found.items()} | self._clock.taken())
