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
from rltrain.workers.fsdp import attention
from rltrain.workers.fsdp.micro import Shard
from rltrain.workers.fsdp.optim import StepResult
from rltrain.workers.fsdp.outputs import Outputs
from rltrain.workers.fsdp.parts import Parts, parts
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.watch import UNWATCHED, Watch
from rltrain.workers.fsdp.weights import named_weights

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
    """What one rank hands to the controller.

    `states`: by name, `MOMENT.when/NAME`, in the order in which they were taken. `readings`: for each token of this
    rank's rows, `I/NAME` [rows, R] of mini batch I; `rows_of`: the rows of the batch that they are of, by mini batch.
    `left_out`: passes whose readings had no room. `not_finite`: tensors whose gradient here was not finite when a step
    was last skipped. `outputs`: checksums of what modules gave in the first pass of the step (`outputs.Outputs`).
    """

    states: list[Parts]
    minis: list[MiniCapture] = field(default_factory=list[MiniCapture])
    readings: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    rows_of: list[list[int]] = field(default_factory=list[list[int]])
    left_out: int = 0
    not_finite: tuple[str, ...] = ()
    outputs: dict[str, str] = field(default_factory=dict[str, str])


@dataclass
class _Pass:
    """A micro batch: its rows, its terms, and what this rank has sent when it was over, where they were computed."""

    rows: tuple[int, ...]
    terms: dict[str, Tensor]
    sent: Tensor | None


class Capture(Watch):
    """Watches the updates of one step of one role.

    What is computed on a GPU stays there until the step is over: a pass that waited for its numbers would be longer.

    Args:
        sharded: whose.
        rank: of this process.
        elements: numbers kept of each tensor, from its start; None: all.
    """

    def __init__(self, sharded: ShardedModel, rank: int, elements: int | None) -> None:
        self._sharded, self._rank, self._elements = sharded, rank, elements
        self._minis: list[MiniCapture] = []
        self._readings: list[list[tuple[list[int], dict[str, Tensor]]]] = []
        self._room, self._left_out = READING_BYTES, 0
        self._rows: list[int] = []
        self._passes: list[_Pass] = []
        self._sent = number(self._sent_now())
        self._states = [states(sharded, "before", elements)]
        self._outputs = Outputs(sharded.model, every=elements is None)
        attention.repeatable(True)

    def begin_mini(self, rows: Sequence[int]) -> None:
        """See `Watch`."""
        self._minis.append(MiniCapture(tuple(rows), self._sharded.trainer().num_steps, self._adam_steps()))
        self._readings.append([])

    def begin_micro(self, group: Sequence[int]) -> None:
        """See `Watch`."""
        self._rows = [self._minis[-1].rows[row] for row in group]

    def read(self, rows: Shard, **computed: Tensor) -> None:
        """See `Watch`."""
        if not self._rows:
            return
        if self._room <= 0:
            self._left_out += 1
            return
        width = rows["response_mask"].shape[1]
        kept = {"mask": rows["response_mask"], "responses": rows["input_ids"][:, -width:].int()}
        kept |= {name: rows[name] for name in ("old_log_probs", "advantages", "values", "returns") if name in rows}
        found = {name: value.detach().clone() for name, value in (kept | computed).items()}
        self._room -= sum(value.nbytes for value in found.values())
        self._readings[-1].append((self._rows, found))

    def end_micro(self, terms: Mapping[str, Tensor]) -> None:
        """See `Watch`."""
        now = {name: value.detach() for name, value in terms.items()}
        self._passes.append(_Pass(tuple(self._rows), now, self._sent_now()))

    def reduced(self) -> None:
        """See `Watch`."""
        if len(self._minis) > 1:
            return
        named = named_weights(self._sharded.model)
        gradients = {f"gradient/{name}": tensor.grad for name, tensor in named if tensor.grad is not None}
        self._states.append(parts(gradients, self._elements))

    def end_mini(self, result: StepResult) -> None:
        """See `Watch`."""
        self._minis[-1].result = result
        for one in self._passes:
            values = {name: finite(float(value)) for name, value in one.terms.items()}
            before, self._sent = self._sent, number(one.sent)
            norm = None if self._sent is None else finite(max(self._sent - (before or 0.0), 0.0) ** 0.5)
            record = MicroRecord(rank=self._rank, rows=one.rows, terms=values, grad_norm=norm)
            self._minis[-1].micro_batches.append(record)
        self._passes.clear()

    def taken(self, rows: Sequence[int] | None) -> Captured:
        """Everything, with the states after the step; of what updates read ROWS of the batch alone, None: all."""
        wanted = None if rows is None else set(rows)
        self._outputs.close()
        attention.repeatable(False)
        readings: dict[str, Tensor] = {}
        rows_of: list[list[int]] = []
        for number, passes in enumerate(self._readings):
            here = [_only(one, wanted) for one in passes]
            readings |= {f"{number}/{name}": value for name, value in _stacked(here).items()}
            rows_of.append([row for kept, _ in here for row in kept])
        self._states.append(states(self._sharded, "after", self._elements))
        bad = () if all(mini.result and mini.result.applied for mini in self._minis) else not_finite(self._sharded)
        return Captured(self._states, self._minis, readings, rows_of, self._left_out, bad, self._outputs.found)

    def _sent_now(self) -> Tensor | None:
        comm = self._sharded.gradient_comm
        return None if comm is None else comm.sent()

    def _adam_steps(self) -> int | None:
        states: Iterator[dict[str, Tensor]] = iter(self._sharded.trainer().optimizer.state.values())
        first = next(states, None)
        return None if not first else int(first["step"])


def ended(sharded: ShardedModel, elements: int | None, rows: Sequence[int] | None) -> Captured:
    """What the `Capture` of SHARDED has kept, which ends with this; without one, what an update has left.

    ELEMENTS and ROWS are as for `Capture` and `Capture.taken`.
    """
    watch, sharded.watch = sharded.watch, UNWATCHED
    if isinstance(watch, Capture):
        return watch.taken(rows)
    return Captured([states(sharded, "after", elements)], not_finite=not_finite(sharded))


def number(value: Tensor | None) -> float | None:
    """VALUE, which may be on a GPU."""
    return None if value is None else float(value)


def finite(value: float) -> float | None:
    """VALUE, or None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def states(sharded: ShardedModel, when: str, elements: int | None) -> Parts:
    """Weights and moments as they are now, of each tensor this rank's share of the first ELEMENTS numbers."""
    found: dict[str, Tensor] = {}
    for name, tensor in named_weights(sharded.model):
        found[f"{when}/{name}"] = tensor
        state = sharded.trainer().optimizer.state.get(tensor, {})
        found |= {f"{moment}.{when}/{name}": state[moment] for moment in MOMENTS if moment in state}
    return parts(found, elements)


def not_finite(sharded: ShardedModel) -> tuple[str, ...]:
    """Names of the tensors whose gradient on this rank was not finite when a step was last skipped."""
    names = [name for name, _ in sharded.model.named_parameters()]
    return tuple(names[number] for number in sharded.trainer().not_finite)


def _only(one: tuple[list[int], dict[str, Tensor]], wanted: set[int] | None) -> tuple[list[int], dict[str, Tensor]]:
    """Readings of a pass, of WANTED rows of the batch."""
    rows, found = one
    if wanted is None:
        return one
    at = [place for place, row in enumerate(rows) if row in wanted]
    return [rows[place] for place in at], {name: value[at] for name, value in found.items()}


def _stacked(passes: Sequence[tuple[Sequence[int], Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Readings of PASSES below each other, padded on the right to the widest."""
    if not passes:
        return {}
    width = max(found["mask"].shape[1] for _, found in passes)

    def padded(value: Tensor) -> Tensor:
        return torch.nn.functional.pad(value, (0, width - value.shape[1]))

    return {name: torch.cat([padded(found[name]) for _, found in passes]).cpu() for name in passes[0][1]}
