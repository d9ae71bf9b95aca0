"""One Ray, two training ranks and one vLLM engine, on which whole runs of few steps are played."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor

from rltrain.cluster.calls import gather
from rltrain.cluster.placement import plan
from rltrain.cluster.runtime import Runtime, connect
from rltrain.config import RunConfig, check, load, resolve
from rltrain.config.machine import this_machine
from rltrain.controller.callbacks import Callback, StepRecord
from rltrain.controller.context import Context
from rltrain.controller.crew import Crew
from rltrain.controller.engine_group import EngineGroup
from rltrain.controller.position import RunPosition
from rltrain.controller.prepare import Prepared, prepare
from rltrain.controller.rollout import Rollout
from rltrain.controller.session import Session
from rltrain.controller.train_group import TrainGroup
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.core.progress import Stages
from rltrain.records.run_dir import RunDir, read_steps
from rltrain.rewards.pool import RewardPool
from rltrain.toy.make import make_toy
from rltrain.workers.fsdp.rank import RankInfo
from tests.trainer.cluster.workers import spawn
from tests.trainer.end_to_end.matrix.workers import FragileEngine, ManyRuns

DEADLINE_S = 120.0
N = 4
NUM_SAMPLES = 16 * N
LITTLE = (
    "toy.num_train=256",
    "toy.num_val=8",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
    f"actor_rollout_ref.rollout.n={N}",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.logger=[console]",
)
"""toy-ppo at an eighth of its samples, for two steps of four optimizer steps."""


@dataclass
class Played(Callback):
    """What a run has left: `metrics.jsonl`, and each step's batch."""

    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Steps 1, 2 …"""
    batches: list[Batch] = field(default_factory=list[Batch])

    def on_step_end(self, record: StepRecord) -> None:
        """Keep the batch."""
        if record.batch is not None:
            self.batches.append(record.batch)

    def hashes(self, step: int) -> tuple[str, list[str]]:
        """What was sampled at STEP, and the parameters after it."""
        audit = self.steps[step - 1]["audit"]
        return audit["sampled_tokens_sha256"], audit["parameter_sha256"]


class Watched(Session):
    """A session that a test looks into."""

    def watch(self, played: Played) -> Watched:
        """Have PLAYED told of every step."""
        self._played = played
        return self

    def _callbacks(self, *args: Any) -> list[Callback]:
        *others, capsules = super()._callbacks(*args)
        return [*others, self._played, capsules]


class KeptCrew(Crew):
    """A crew whose processes live on."""

    def close(self) -> None:
        """End the process groups alone."""
        self.train_group.shutdown()


class Stage:
    """Plays runs one after the other."""

    def __init__(self, runtime: Runtime, place: Path) -> None:
        self._runtime, self._place, self._numbers = runtime, place, itertools.count()
        config = self._prepare(_config(place / "start"), place / "start").config
        placement = plan(config, runtime.nodes)
        # `become` gives each of them the port where they meet.
        infos = [RankInfo(slot.rank, len(placement.train), "127.0.0.1", 0, "cpu") for slot in placement.train]
        args = [(config, info) for info in infos]
        self._ranks = spawn(runtime, ManyRuns, placement.train, args, deadline_s=DEADLINE_S)
        engine_group = [(config, slot.rank) for slot in placement.rollout]
        self._engine_group = spawn(runtime, FragileEngine, placement.rollout, engine_group, deadline_s=DEADLINE_S)
        gather(runtime, [self._engine_group.begin("start", [()] * len(engine_group))], DEADLINE_S, "loading the engine")

    def capsules(self) -> list[Path]:
        """Of the first steps of the runs that were played."""
        return sorted(self._place.glob("run*/capsules/step_1"))

    def break_sync(self, fault: str) -> None:
        """Break the engine's weight sync, or mend it (empty)."""
        self._engine_group.all("break_sync", fault, deadline_s=DEADLINE_S)

    def break_publisher(self, stale: str) -> None:
        """Have the ranks send the tensor STALE as it was, or all as they are (empty)."""
        self._ranks.all("break_publisher", stale, deadline_s=DEADLINE_S)

    def play(self, *values: str, played: Played | None = None) -> Played:
        """The whole run of `toy-ppo` with VALUES. PLAYED: filled even if the run fails."""
        directory = RunDir(self._place / f"run{next(self._numbers)}")
        directory.create()
        prepared = self._prepare(_config(directory.path, *values), directory.path)
        clock, stages = Clock(), Stages(Console(file=io.StringIO()))
        played = Played() if played is None else played
        with RewardPool(prepared.config) as pool, pytest.MonkeyPatch.context() as patch:
            pool.check()
            patch.setattr("rltrain.controller.session.start_crew", self._crew)
            position = RunPosition(prepared, directory, clock)
            context = Context(prepared.config, directory, self._runtime, position, stages, clock)
            session = Watched(prepared, position, context, pool).watch(played)
            session.run(Console(file=io.StringIO()), 0.0)
        played.steps = [record for record in read_steps(directory.metrics) if record["step"] > 0]
        return played

    def _prepare(self, config: RunConfig, directory: Path) -> Prepared:
        """All runs have one toy."""
        directory.mkdir(exist_ok=True)
        make_toy(config, self._place / "toy")
        (directory / "toy").symlink_to(self._place / "toy")
        return prepare(config, RunDir(directory), lambda _line: None)

    def _crew(self, prepared: Prepared, runtime: Runtime, clock: Clock, _stages: Stages, total_steps: int) -> Crew:
        config = prepared.config
        _, port = runtime.rendezvous(runtime.home)
        training = self._ranks.all("become", config, port, total_steps, deadline_s=DEADLINE_S)
        train_group = TrainGroup(self._ranks, config)
        engine_group = EngineGroup(runtime, self._engine_group, train_group, config)
        facts: dict[str, Any] = {"training": training, "engines": []}
        return KeptCrew(
            train_group, engine_group, Rollout(config, train_group, engine_group, prepared.tokenizer, clock), facts
        )


@contextmanager
def opened(place: Path) -> Iterator[Stage]:
    """A stage for the time of a block."""
    (place / "logs").mkdir()
    with connect(_config(place), place / "logs") as runtime:
        yield Stage(runtime, place)


def _config(directory: Path, *values: str) -> RunConfig:
    config = resolve(load("toy-ppo", [*LITTLE, f"trainer.default_local_dir={directory}", *values]), this_machine())
    check(config)
    return config


def groups(batch: Batch, rows: Tensor | Sequence[float]) -> Any:
    """Values of ROWS by prompt: [prompts, N]; the samples of a prompt lie side by side."""
    assert [sample.uid for sample in batch.samples] == [s.uid for s in batch.samples[::N] for _ in range(N)]
    return rows.reshape(-1, N) if isinstance(rows, Tensor) else [rows[i : i + N] for i in range(0, len(rows), N)]


def scores(batch: Batch) -> Tensor:
    """Of the rows, `[B]`."""
    return batch["token_level_scores"].sum(-1)


def first_advantages(batch: Batch) -> Tensor:
    """Of the rows, `[B]`: where all tokens of a response have the same."""
    mask, advantages = batch["response_mask"], batch["advantages"]
    assert (((advantages - advantages[:, :1]) * mask) == 0).all()
    return advantages[:, 0]
