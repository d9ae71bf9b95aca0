"""What may be told of an update as it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from rltrain.workers.fsdp.micro import Shard
from rltrain.workers.fsdp.optim import StepResult


class Watch:
    """Is told, and does nothing; a subclass takes what it wants."""

    def begin_mini(self, rows: Sequence[int]) -> None:
        """An optimizer step begins, on ROWS of the batch (this rank's)."""

    def begin_micro(self, group: Sequence[int]) -> None:
        """A pass begins, over the rows GROUP of this rank's share."""

    def read(self, rows: Shard, **computed: Tensor) -> None:
        """The pass was given ROWS, and COMPUTED this of each token."""

    def end_micro(self, terms: Mapping[str, Tensor]) -> None:
        """The pass gave TERMS, scalars."""

    def reduced(self) -> None:
        """The gradients are reduced, and not clipped yet (collective)."""

    def end_mini(self, result: StepResult) -> None:
        """The optimizer step is done."""


UNWATCHED = Watch()
