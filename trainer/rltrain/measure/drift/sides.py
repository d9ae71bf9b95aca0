"""Both sides of a run, up: the crew that the run would have, and what can be asked of it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rltrain.cluster.runtime import Runtime, connect
from rltrain.config.schema import RunConfig
from rltrain.controller.assemble import answered
from rltrain.controller.crew import Crew, start_crew
from rltrain.controller.engine_group import EngineGroup, OnFinished
from rltrain.controller.prepare import Inputs, tokenizer_of
from rltrain.controller.roles import FORWARD_FIELDS, Actor
from rltrain.controller.rollout import Rollout
from rltrain.controller.train_group import STALL_REPORT_S
from rltrain.core.batch import Batch, Sample
from rltrain.core.clock import Clock
from rltrain.core.errors import RunFailure, UserError
from rltrain.measure.drift.report import STARTING, Report, StartStages
from rltrain.measure.drift.reread import Reading
from rltrain.measure.drift.workers import DriftEngineWorker, DriftTrainWorker
from rltrain.workers.fsdp.split import shards
from rltrain.workers.rollout.protocol import Completion, Request, Sampling

_LOG_LINES = 60
_numbers = itertools.count()


@dataclass(frozen=True)
class Answers:
    """What the engine sampled, as training gets it."""

    batch: Batch
    """With `rollout_log_probs`."""
    completions: tuple[Completion, ...]
    sampling: Sampling

    def rows(self, numbers: Sequence[int]) -> Answers:
        """Those of some rows."""
        completions = tuple(self.completions[number] for number in numbers)
        return Answers(self.batch.select(numbers), completions, self.sampling)


class Listener:
    """The engines, and all that they answered."""

    def __init__(self, engine_group: EngineGroup) -> None:
        self._engine_group = engine_group
        self.completions: list[Completion] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine_group, name)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finished: OnFinished | None = None
    ) -> list[Completion]:
        """See `EngineGroup.generate`."""
        found = self._engine_group.generate(requests, sampling, on_finished)
        self.completions += found
        return found


class Sides:
    """A crew that is up, with its tokenizer."""

    def __init__(self, config: RunConfig, crew: Crew, tokenizer: PreTrainedTokenizerBase, clock: Clock) -> None:
        self.config, self.crew, self.tokenizer = config, crew, tokenizer
        self._listener = Listener(crew.engine_group)
        self.rollout = Rollout(config, crew.train_group, cast("EngineGroup", self._listener), tokenizer, clock)
        self._actor = Actor(crew.train_group, config, clock)
        self._rounds = 0

    def sample(self, samples: Sequence[Sample], sampling: Sampling) -> Answers:
        """An answer to each of SAMPLES, inside `hybrid.rollout_phase()`."""
        self._rounds += 1
        self._listener.completions.clear()
        batch = self.rollout.generate(samples, sampling, self._rounds)
        return Answers(batch, tuple(self._listener.completions), sampling)

    def read(self, answers: Answers) -> Tensor:
        """Log-probabilities of the answers `[B, R]`, as a run's actor reads them before it learns."""
        return self._actor.log_probs(answers.batch)["old_log_probs"]

    def reread(self, batch: Batch, reading: Reading) -> list[Tensor]:
        """Log-probabilities of BATCH's answers `[B, R]`, read otherwise: for each temperature of READING, or one."""
        group = self.crew.train_group.workers
        parts = shards(batch.only(FORWARD_FIELDS).bare(), self.config, len(group.slots))
        answers: list[dict[str, Tensor]] = group.each(
            "reread_log_probs",
            [(shard, reading) for _, shard in parts],
            deadline_s=self.config.trainer.stall_timeout_s + STALL_REPORT_S,
            doing="log-probabilities, read otherwise",
        )
        order = torch.argsort(torch.tensor([row for rows, _ in parts for row in rows]))
        names = sorted(answers[0], key=lambda name: int(name.rpartition("_")[2]))
        return [torch.cat([answer[name] for answer in answers])[order] for name in names]


@contextmanager
def opened(config: RunConfig, directory: Path, report: Report) -> Generator[Sides]:
    """Start Ray, training ranks and engines of CONFIG as a run does; all has ended when the block is left.

    Args:
        config: resolved, with its toy made.
        directory: where logs go, one directory for each session.
        report: told of the stages.

    Raises:
        UserError: something that the user can fix.
        RunFailure: a process failed; the last lines of all logs were printed to standard error.
    """
    tokenizer = tokenizer_of(config)
    logs = directory / f"logs-{next(_numbers)}"
    logs.mkdir(parents=True)
    stages, clock = StartStages(report), Clock()
    try:
        with ExitStack() as stack:
            with report.stage(f"{STARTING} Ray"):
                runtime: Runtime = stack.enter_context(connect(config, logs, stages.say, stages.still))
            crew = start_crew(Inputs(config, tokenizer), runtime, clock, stages, 1, DriftTrainWorker, DriftEngineWorker)
            yield Sides(config, crew, tokenizer, clock)
            crew.close()
    except (RunFailure, UserError):
        print_logs(logs)
        raise


def renewed(answers: Answers, prompts: Sequence[tuple[int, ...]], tokenizer: PreTrainedTokenizerBase) -> Answers:
    """The same answers, token for token as the engine gave them, to other PROMPTS."""
    pairs = zip(answers.batch.samples, prompts, strict=True)
    batch = answered([replace(sample, prompt_ids=ids) for sample, ids in pairs], answers.completions, tokenizer)
    return replace(answers, batch=batch)


def print_logs(logs: Path) -> None:
    """Print the last lines of all LOGS to standard error."""
    for log in sorted(logs.glob("*.log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]:
            sys.stderr.write(f"{line}\n")
