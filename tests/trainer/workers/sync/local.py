"""Workers called one after the other in this process: what the cluster does across processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rltrain.config.schema import RunConfig
from rltrain.workers.sync import Publisher
from rltrain.workers.sync.checksum import Piece, piece
from tests.trainer.workers.rollout.tiny import named_weights


class LocalGroup:
    def __init__(self, *workers: Any) -> None:
        self.workers = workers
        self.calls: list[str] = []

    def all(self, method: str, *args: Any, deadline_s: float, doing: str = "") -> list[Any]:
        self.calls.append(method)
        return [getattr(worker, method)(*args) for worker in self.workers]

    def each(self, method: str, args: Sequence[Any], *, deadline_s: float, doing: str = "") -> list[Any]:
        self.calls.append(method)
        return [getattr(worker, method)(one) for worker, one in zip(self.workers, args, strict=True)]


class Rank:
    """A training rank with the methods of weight sync; its model is not sharded."""

    def __init__(self, config: RunConfig, model: torch.nn.Module, prefix: str = "rltrain-test-", rank: int = 0) -> None:
        self.config, self.model = config, model
        manifest = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named_weights(model)]
        device = str(next(model.parameters()).device)
        self.publisher = Publisher(config, rank, device, "127.0.0.1", prefix, manifest, lambda: named_weights(model))

    def connect_sync(self) -> Any:
        return self.publisher.connect()

    def publish_bucket(self, index: int) -> Any:
        return self.publisher.publish_bucket(index)

    def finish_publish(self) -> dict[str, Piece]:
        self.publisher.finish_publish()
        wanted = self.config.trainer.verify_weight_sync
        return {name: piece(tensor) for name, tensor in named_weights(self.model)} if wanted else {}
