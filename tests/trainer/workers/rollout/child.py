"""One child process that holds one engine at a time: vLLM takes seconds to import, and changes much in its process."""

from __future__ import annotations

from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.workers.rollout.worker import EngineWorker
from rltrain.workers.sync.transport import Descriptor
from tests.trainer.workers.rollout.hosted import Hosted


class Child(Hosted):
    """`make` replaces its engine; everything else is called on the engine's worker."""

    def __init__(self) -> None:
        super().__init__("rltrain.measure.drift.workers:DriftEngineWorker")

    def make(self, config: RunConfig) -> dict[str, Any]:
        """Stop the engine that is there, and start one for CONFIG; its facts."""
        if not self.is_alive:
            self.start()
        self.build(config, 0)
        return self.call("start")

    def has_weights(self) -> bool:
        """Whether the engine holds published weights, whole."""
        return self.call("has_weights")

    def load_without_reset(self, descriptor: Descriptor) -> None:
        """Load a bucket, but leave the prefix cache as it is."""
        self.apply(_load_without_reset, descriptor)

    def __getattr__(self, method: str) -> Any:
        return lambda *args: self.call(method, *args)


def _load_without_reset(worker: EngineWorker, descriptor: Descriptor) -> None:
    worker._engine.load_bucket(descriptor)


def note_progress(worker: Any) -> None:
    """From then on, keep what is noted."""
    worker.noted = []
    worker._note_progress = lambda done, total: worker.noted.append((done, total))


def noted_progress(worker: Any) -> list[tuple[int, int]]:
    """What was noted."""
    return worker.noted
