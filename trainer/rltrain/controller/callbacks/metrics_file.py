"""`metrics.jsonl`: one JSON object a step."""

from __future__ import annotations

import json
import math
import os
from io import TextIOWrapper
from typing import Any

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.core.errors import RunFailure
from rltrain.records.run_dir import cut_after


class MetricsFile(Callback):
    """Writes each step as one line, and has it on the disk before the step's checkpoint is made."""

    def __init__(self) -> None:
        self._file: TextIOWrapper | None = None

    def on_run_start(self, run: RunInfo) -> None:
        """Open the file; a resumed run drops what was written after its checkpoint."""
        path = run.directory.metrics
        if run.start_step:
            cut_after(path, run.start_step)
        self._file = path.open("a" if run.start_step else "w", encoding="utf-8")

    def on_step_end(self, record: StepRecord) -> None:
        """Write the step's line.

        Raises:
            RunFailure: the disk does not take it.
        """
        assert self._file is not None
        try:
            self._file.write(json.dumps(line(record)) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunFailure(f"{self._file.name} cannot be written: {error.strerror}") from None

    def on_run_end(self, outcome: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def line(record: StepRecord) -> dict[str, Any]:
    """The JSON object of RECORD: JSON knows no NaN, so such values are null and named in `nonfinite`."""
    values: dict[str, Any] = {"step": record.step}
    nonfinite = sorted(name for name, value in record.metrics.items() if not math.isfinite(value))
    for name, value in sorted(record.metrics.items()):
        values[name] = None if name in nonfinite else value
    if nonfinite:
        values["nonfinite"] = nonfinite
    if record.audit:
        values["audit"] = record.audit
    return values
