"""The controller's side of a sync: who is called in what order. It sees descriptors and checksums, never weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from rltrain.core.errors import RunFailure
from rltrain.workers.sync.checksum import Piece, combined, verify
from rltrain.workers.sync.transport import merge


class Group(Protocol):
    """Workers that are called together (`rltrain.cluster.groups.WorkerGroup`)."""

    def all(self, method: str, *args: Any, deadline_s: float, doing: str = "") -> list[Any]:
        """Call METHOD on every worker with the same arguments; results by rank."""
        ...

    def each(self, method: str, args: Sequence[Any], *, deadline_s: float, doing: str = "") -> list[Any]:
        """Call METHOD on worker i with the one argument `args[i]`; results by rank."""
        ...


class WeightSync:
    """Carries the actor's weights from the training ranks (each has a `Publisher`) into all engines.

    Args:
        trainers: workers with `connect_sync`, `publish_bucket`, `finish_publish`.
        engines: workers with `connect_sync`, `load_bucket`, `checksums`.
        deadline_s: longest wait for one call.
    """

    def __init__(self, train_group: Group, engine_group: Group, deadline_s: float) -> None:
        self._train_group = train_group
        self._engine_group = engine_group
        self._deadline_s = deadline_s

    def connect(self) -> None:
        """Let engines meet the publisher where the transport needs it; once, and after an engine was restarted."""
        addresses = self._train_group.all("connect_sync", deadline_s=self._deadline_s, doing="meeting for weight sync")
        address = next((one for one in addresses if one is not None), None)
        if address is not None:
            self._engine_group.all(
                "connect_sync", address, deadline_s=self._deadline_s, doing="meeting for weight sync"
            )

    def sync(self, version: int) -> list[dict[str, str]]:
        """Bring VERSION of the weights into every engine.

        Engines have their weights awake. Two calls per bucket, one more to end; with `trainer.verify_weight_sync` one
        more, which proves that every engine holds the actor's own parameters, whatever the publisher sent.

        Returns:
            By engine, checksums of all weights as it has read them back; empty without `trainer.verify_weight_sync`.

        Raises:
            RunFailure: an engine holds other weights than the actor.
        """
        index, is_last = 0, False
        while not is_last:
            sent = self._train_group.all(
                "publish_bucket", index, deadline_s=self._deadline_s, doing="gathering weights"
            )
            descriptor = replace(merge(sent), version=version)
            self._engine_group.all(
                "load_bucket", descriptor, deadline_s=self._deadline_s, doing="loading weights into engines"
            )
            index, is_last = index + 1, descriptor.bucket.is_last
        ended: list[dict[str, Piece]] = self._train_group.all(
            "finish_publish", deadline_s=self._deadline_s, doing="ending weight sync"
        )
        return self._verified(combined(ended), version) if any(ended) else []

    def _verified(self, actors: dict[str, str], version: int) -> list[dict[str, str]]:
        names = list(actors)
        answers: list[dict[str, str]] = self._engine_group.all(
            "checksums", names, deadline_s=self._deadline_s, doing="reading weights back from engines"
        )
        for engine, held in enumerate(answers):
            difference = verify(actors, held)
            if difference:
                raise RunFailure(f"weight sync of version {version}: engine {engine}: {difference}")
        return answers
