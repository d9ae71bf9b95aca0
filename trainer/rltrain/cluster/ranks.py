"""The processes of one kind: where they are, and what their nodes can say of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rltrain.cluster.placement import Node, Slot
from rltrain.core.spent import Answered, Span

_MOST_NOTES = 1024
"""More are forgotten, the oldest first, where nobody takes them."""


class AsksNodes(Protocol):
    """What reaches the nodes of a cluster (`rltrain.cluster.runtime.Runtime`)."""

    def ask_node(self, node: Node, method: str, *args: Any) -> Any:
        """Call a method of the `NodeEyes` of NODE; None when the node does not answer."""
        ...


class Ranks:
    """Processes of one kind, by rank."""

    def __init__(self, nodes: AsksNodes, slots: Sequence[Slot], logs: Path) -> None:
        self.kind = slots[0].kind
        self.slots = tuple(slots)
        self.logs = [logs / f"{slot.name}.log" for slot in slots]
        self.pids = [0] * len(slots)
        self.gpus: list[tuple[str, ...]] = [()] * len(slots)
        """Of each rank, as CUDA_VISIBLE_DEVICES names them."""
        self.actors: list[Any] = [None] * len(slots)
        self._nodes = nodes
        self._spans: dict[str, dict[int, Span]] = {}
        self._notes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_MOST_NOTES)

    def account(self, method: str, rank: int, answered: Answered) -> None:
        """RANK has answered METHOD."""
        self._spans.setdefault(method, {}).setdefault(rank, Span()).add(answered.span)
        self._notes.extend((rank, note) for note in answered.notes)

    def take_spans(self) -> dict[str, dict[int, Span]]:
        """Where the time of calls went since last asked, by method and rank."""
        taken, self._spans = self._spans, {}
        return taken

    def take_notes(self) -> list[tuple[int, dict[str, Any]]]:
        """What workers have noted since last asked, with their ranks."""
        taken = list(self._notes)
        self._notes.clear()
        return taken

    def ask_node(self, rank: int, method: str, *args: Any) -> Any:
        """Ask the `NodeEyes` of RANK's node; None when that node does not answer."""
        return self._nodes.ask_node(self.slots[rank].node, method, *args)

    def name(self, rank: int) -> str:
        """Name of the process: "train-0"."""
        return self.slots[rank].name

    def title(self, rank: int) -> str:
        """Kind, rank, process and node, for messages."""
        return f"{self.kind} rank {rank} (process {self.pids[rank]} on node {self.slots[rank].node.name})"

    def stacks(self, rank: int) -> str:
        """Where the threads of RANK's process are, and of what it started."""
        return self.ask_node(rank, "stacks", self.pids[rank], self.logs[rank]) or "its node does not answer"

    def hindrances(self) -> list[str]:
        """In words: processes of the group that cannot run at all, and why."""
        words = [(rank, self.ask_node(rank, "hindrance", self.pids[rank])) for rank in range(len(self.slots))]
        return [f"{self.title(rank)} {why}" for rank, why in words if why is not None]
