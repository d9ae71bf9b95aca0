"""How far a run has come: what a checkpoint holds besides the part of the workers, checked before anything starts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from rltrain.controller.algorithm import Algorithm
from rltrain.controller.prepare import Prepared
from rltrain.core.clock import Clock
from rltrain.data.loader import PromptLoader
from rltrain.data.schema import Row
from rltrain.records.checkpoints import Checkpoint, choose
from rltrain.records.run_dir import RunDir


class Position:
    """Data order, KL controller and step of the run that PREPARED describes; of its last checkpoint, if there is one.

    Raises:
        UserError: the checkpoint is damaged, or the data is not what it was when the run stopped.
    """

    def __init__(self, prepared: Prepared, directory: RunDir, clock: Clock) -> None:
        config = prepared.config
        data, trainer = config.data, config.trainer
        seed = trainer.seed if data.seed is None else data.seed
        self.loader = PromptLoader(prepared.train, data.train_batch_size, seed, data.shuffle)
        self.algorithm = Algorithm(config.algorithm, clock)
        self.total_steps = trainer.total_training_steps or trainer.total_epochs * self.loader.num_steps_per_epoch
        self.step = 0
        """The last finished one."""
        self.best: dict[str, float] | None = None
        """Step and value of the best checkpoint, as of the one that the run goes on from (it may be another run's)."""
        self.checkpoint = choose(directory.checkpoints, trainer.resume_mode, trainer.resume_from_path)
        if self.checkpoint is not None:
            self._take(self.checkpoint)
        self._state = self._now()

    def finished(self, step: int) -> None:
        """STEP is finished: this is where a resumed run goes on."""
        self.step = step
        self._state = self._now()

    def state(self) -> dict[str, Any]:
        """As of the last finished step; plain JSON values."""
        return self._state

    def prompts(self) -> Iterator[tuple[int, list[Row]]]:
        """The steps to come, each with its rows."""
        for step in range(self.step + 1, self.total_steps + 1):
            yield step, next(self.loader)

    def _take(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.controller_state()
        self.loader.load_state_dict(state["loader"])
        self.algorithm.load_state_dict(state["estimator"])
        self.step, self.best = checkpoint.step, state["best"]

    def _now(self) -> dict[str, Any]:
        return copy.deepcopy({"loader": self.loader.state_dict(), "estimator": self.algorithm.state_dict()})
