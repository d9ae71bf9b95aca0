"""TensorBoard event files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Callback):
    """Writes every metric as a scalar under `tensorboard/` in the run directory."""

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None

    def on_run_start(self, run: RunInfo) -> None:
        """Open the event file; a resumed run hides the events after its checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        purge = run.start_step + 1 if run.start_step else None
        self._writer = SummaryWriter(str(run.directory.tensorboard), purge_step=purge)

    def on_step_end(self, record: StepRecord) -> None:
        """Write the step's scalars."""
        assert self._writer is not None
        for name, value in record.metrics.items():
            self._writer.add_scalar(name, value, record.step)  # pyright: ignore[reportUnknownMemberType]

    def on_run_end(self, outcome: str) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
