"""The workers of a run, with what only a measurement asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from rltrain.core.errors import RunFailure
from rltrain.measure.drift.reread import Reading, reread
from rltrain.measure.drift.trace import trace
from rltrain.workers.fsdp import weights
from rltrain.workers.fsdp.build import reshard
from rltrain.workers.fsdp.micro import MicroSize, Shard
from rltrain.workers.fsdp.worker import TrainWorker
from rltrain.workers.rollout.protocol import Diagnoses
from rltrain.workers.rollout.worker import EngineWorker


class DriftTrainWorker(TrainWorker):
    """A training rank that reads otherwise, traces, and changes its weights for a while. Calls are collective."""

    def reread_log_probs(self, asked: tuple[Shard, Reading]) -> dict[str, Tensor]:
        """Log-probabilities of a shard's response tokens, read otherwise (`reread.reread`)."""
        actor, (shard, reading) = self._models["actor"], asked
        return reread(actor, self._policy(actor), MicroSize.of_log_probs(self._config), shard, reading)

    def trace(self, token_ids: Sequence[int], file: str, given: str | None = None) -> None:
        """Write what each of the actor's operations gives on TOKEN_IDS to FILE, on rank 0 (`trace.trace`)."""
        actor, is_first = self._models["actor"], self._info.rank == 0
        out, others = (Path(name) if is_first and name is not None else None for name in (file, given))
        trace(actor, self._policy(actor), token_ids, out, others)

    def scale_weights(self, factor: float) -> None:
        """Multiply the actor's weights by FACTOR; a power of two can be taken back. Not collective."""
        model = self._models["actor"].model
        reshard(model)  # a pass that failed has left parameters gathered
        weights.scale(model, factor)


class DriftEngineWorker(EngineWorker):
    """An engine that can be listened to."""

    def trace(self, prompt_ids: Sequence[int], num_tokens: int, file: str) -> list[int]:
        """Write what each operation of the first engine gives on one greedy completion to FILE; its tokens.

        Raises:
            RunFailure: no weights were loaded, or the sequence is too long.
            UserError: the engine cannot be listened to.
        """
        if self._index:
            return []
        if not self.has_weights:
            raise RunFailure(f"engine {self._index} has no weights yet: sync before tracing")
        return self._able(Diagnoses).trace(prompt_ids, num_tokens, file)
