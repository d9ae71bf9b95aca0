"""An engine whose weights are those of the model's files: nobody brings others."""

from __future__ import annotations

from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.workers.rollout.worker import EngineWorker


class SavedEngineWorker(EngineWorker):
    """`EngineWorker` for answering alone: as soon as it has started, it can generate."""

    def __init__(self, config: RunConfig, index: int) -> None:
        super().__init__(config, index, saved_weights=True)

    def start(self) -> dict[str, Any]:
        """See `EngineWorker.start`."""
        facts = super().start()
        self.has_weights = True
        return facts
