"""How far a run has come: what a checkpoint holds besides the part of the workers, checked before anything starts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from rltrain.config.schema.run import AnyTrainerConfig
from rltrain.controller.algorithm import Algorithm
from rltrain.controller.prepare import Prepared
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.data.loader import Loader, PromptLoader
from rltrain.data.schema import Row
from rltrain.records.checkpoints import Checkpoint, choose
from rltrain.records.run_dir import RunDir

R = TypeVar("R")


class Stateful(Protocol):
    """What a checkpoint holds a part of; plain JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is now."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from STATE."""
        ...


class Position(Generic[R]):
    """Data order and step of a run, and of its last checkpoint, if there is one.

    Args:
        loader: of the rows to learn from.
        trainer: of the run's config.
        directory: of the run.
        parts: what else on the controller a checkpoint holds, by name.

    Raises:
        UserError: the checkpoint is damaged, or the data is not what it was when the run stopped.
    """

    def __init__(
        self,
        loader: Loader[R],
        trainer: AnyTrainerConfig,
        directory: RunDir,
        parts: Mapping[str, Stateful] | None = None,
    ) -> None:
        self.loader = loader
        self._parts: dict[str, Stateful] = {"loader": loader, **(parts or {})}
        self.total_steps = trainer.total_training_steps or trainer.total_epochs * loader.num_steps_per_epoch
        self.step = 0
        """The last finished one."""
        self.best: dict[str, float] | None = None
        """Step and value of the best checkpoint, as of the one that the run goes on from (it may be another run's)."""
        self.needed: Callable[[int], int] = lambda step: step + 1
        """The batch of rows from which a run draws that goes on after a step: an earlier one, if rows of it wait."""
        self.first = 1
        """The batch that `batches` begins with."""
        self.checkpoint = choose(
            directory.checkpoints, trainer.resume_mode, trainer.resume_from_path, trainer.verify_checkpoint
        )
        if self.checkpoint is not None:
            self._take(self.checkpoint)
        self._state = self._now()
        self._taken: dict[int, dict[str, Any]] = {}
        """The loader's state before each step to come whose rows were taken."""

    def finished(self, step: int) -> None:
        """STEP is finished: this is where a resumed run goes on, with the rows of the next, taken or not."""
        self.step = step
        self._state = self._now()
        first = self.needed(step)
        self._taken = {batch: state for batch, state in self._taken.items() if batch >= first}
        if first in self._taken:
            self._state["loader"] = self._taken[first]
        if first != step + 1:
            self._state["first"] = first

    def state(self) -> dict[str, Any]:
        """As of the last finished step; plain JSON values."""
        return self._state

    def batches(self) -> Iterator[tuple[int, list[R]]]:
        """The batches to come, each with its rows, by the step that it is the turn of."""
        for batch in range(self.first, self.total_steps + 1):
            self._taken[batch] = copy.deepcopy(self.loader.state_dict())
            yield batch, next(self.loader)

    def _take(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.controller_state()
        if missing := [name for name in self._parts if name not in state]:
            raise UserError(f"checkpoint {checkpoint.path} holds no {missing[0]}: it is of another kind of training")
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self.step, self.best = checkpoint.step, state["best"]
        self.first = state.get("first", self.step + 1)

    def _now(self) -> dict[str, Any]:
        return copy.deepcopy({name: part.state_dict() for name, part in self._parts.items()})


class RunPosition(Position[Row]):
    """The position of the run that PREPARED describes, with that of its KL controller."""

    def __init__(self, prepared: Prepared, directory: RunDir, clock: Clock) -> None:
        config = prepared.config
        data, trainer = config.data, config.trainer
        seed = trainer.seed if data.seed is None else data.seed
        self.algorithm = Algorithm(config.algorithm, clock)
        loader = PromptLoader(prepared.train, data.train_batch_size, seed, data.shuffle)
        super().__init__(loader, trainer, directory, {"estimator": self.algorithm})
        if self.first != self.step + 1 and config.algorithm.max_staleness < 2 and self.checkpoint is not None:
            raise UserError(
                f"checkpoint {self.checkpoint.path} holds answers of earlier batches that were not learnt from: go on "
                "with the algorithm.max_staleness that it was made with, or from a later checkpoint"
            )
