"""What one step did on this rank, kept for a step capsule (`rlcheck.facts.capsule`)."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlcheck.facts.capsule import MicroRecord
from rltrain.workers.fsdp.micro import Shard
from rltrain.workers.fsdp.optim import StepResult
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.watch import Watch
from rltrain.workers.fsdp.weights import gather, named_weights

MOMENTS = ("exp_avg", "exp_avg_sq")
READING_BYTES = 16 << 20
"""Of what an update read and computed for each token, one rank keeps at most this."""


@dataclass
class MiniCapture:
    """One optimizer step as this rank saw it."""

    rows: tuple[int, ...]
    optimizer_steps: int
    adam_steps: int | None
    micro_batches: list[MicroRecord] = field(default_factory=list[MicroRecord])
    result: StepResult | None = None


@dataclass
class Captured:
    """What crosses to the controller. `weights`: on rank 0 alone. `readings`: for each token of this rank's rows of the
    first mini batches, `I/NAME` [rows, R]; `rows_of`: the rows of the batch that they are of, by mini batch."""

    minis: list[MiniCapture]
    weights: dict[str, Tensor]
    readings: dict[str, Tensor]
    rows_of: list[list[int]]


class Capture(Watch):
    """Watches the updates of one step of one role.

    Args:
        sharded: whose.
        rank: of this process.
        elements: numbers kept of each tensor, from its start; None: all.
    """

    def __init__(self, sharded: ShardedModel, rank: int, elements: int | None) -> None:
        self._sharded, self._rank, self._elements = sharded, rank, elements
        self._minis: list[MiniCapture] = []
        self._readings: list[list[tuple[list[int], dict[str, Tensor]]]] = []
        self._room = READING_BYTES
        self._rows: list[int] = []
        self._weights: dict[str, Tensor] = {}
        self._put_states("before")

    def begin_mini(self, rows: Sequence[int]) -> None:
        """See `Watch`."""
        self._minis.append(MiniCapture(tuple(rows), self._sharded.trainer().num_steps, self._adam_steps()))
        self._readings.append([])

    def begin_micro(self, group: Sequence[int]) -> None:
        """See `Watch`."""
        self._rows = [self._minis[-1].rows[row] for row in group]

    def read(self, rows: Shard, **computed: Tensor) -> None:
        """See `Watch`."""
        if not self._rows or self._room <= 0:
            return
        width = rows["response_mask"].shape[1]
        kept = {"mask": rows["response_mask"], "responses": rows["input_ids"][:, -width:].int()}
        kept |= {name: rows[name] for name in ("old_log_probs", "advantages", "values", "returns") if name in rows}
        found = {name: value.detach().to("cpu", copy=True) for name, value in (kept | computed).items()}
        self._room -= sum(value.nbytes for value in found.values())
        self._readings[-1].append((self._rows, found))

    def end_micro(self, terms: Mapping[str, Tensor]) -> None:
        """See `Watch`."""
        values = {name: finite(float(value)) for name, value in terms.items()}
        self._minis[-1].micro_batches.append(MicroRecord(rank=self._rank, rows=tuple(self._rows), terms=values))

    def reduced(self) -> None:
        """See `Watch`."""
        if len(self._minis) > 1:
            return
        for name, tensor in named_weights(self._sharded.model):
            if tensor.grad is not None:
                self._put(f"gradient/{name}", tensor.grad)

    def end_mini(self, result: StepResult) -> None:
        """See `Watch`."""
        self._minis[-1].result = result

    def taken(self) -> Captured:
        """Everything, with the states after the step (collective)."""
        self._put_states("after")
        readings: dict[str, Tensor] = {}
        for number, passes in enumerate(self._readings):
            readings |= {f"{number}/{name}": value for name, value in _stacked(passes).items()}
        rows_of = [[row for rows, _ in passes for row in rows] for passes in self._readings]
        return Captured(self._minis, self._weights, readings, rows_of)

    def _put_states(self, when: str) -> None:
        for name, tensor in named_weights(self._sharded.model):
            self._put(f"{when}/{name}", tensor)
            state = self._sharded.trainer().optimizer.state.get(tensor, {})
            for moment in MOMENTS:
                if moment in state:
                    self._put(f"{moment}.{when}/{name}", state[moment])

    def _put(self, key: str, tensor: Tensor) -> None:
        kept = first_numbers(gather(tensor.detach(), None, self._sharded.device), self._elements)
        if self._rank == 0:
            self._weights[key] = kept

    def _adam_steps(self) -> int | None:
        states: Iterator[dict[str, Tensor]] = iter(self._sharded.trainer().optimizer.state.values())
        first = next(states, None)
        return None if not first else int(first["step"])


def finite(value: float) -> float | None:
    """VALUE, or None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def first_numbers(tensor: Tensor, elements: int | None) -> Tensor:
    """A copy of TENSOR on the host, or of its first ELEMENTS numbers in one row."""
    if elements is not None and tensor.numel() > elements:
        tensor = tensor.flatten()[:elements]
    return tensor.to("cpu", copy=True).contiguous()


def _stacked(passes: Sequence[tuple[Sequence[int], Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Readings of PASSES below each other, padded on the right to the widest."""
    if not passes:
        return {}
    width = max(found["mask"].shape[1] for _, found in passes)

    def padded(value: Tensor) -> Tensor:
        return torch.nn.functional.pad(value, (0, width - value.shape[1]))

    return {name: torch.cat([padded(found[name]) for _, found in passes]) for name in passes[0][1]}
