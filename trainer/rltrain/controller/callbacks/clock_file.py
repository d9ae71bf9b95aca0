"""`clock.jsonl`: where the time of each step went, by call and rank, and how requests flowed through the engines."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import Any

from rltrain.cluster.groups import WorkerGroup
from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.core.spent import Span
from rltrain.records.run_dir import cut_after

_LOG = logging.getLogger(__name__)


class ClockFile(Callback):
    """Writes a line a step. It is no part of a run's results: a disk that does not take it ends nothing."""

    def __init__(
        self, groups: Mapping[str, WorkerGroup], gpu_busy: Callable[[], dict[str, dict[str, float]]] = dict
    ) -> None:
        """Write what GROUPS spend, and by node and GPU the shares that GPU_BUSY gives."""
        self._groups, self._gpu_busy = groups, gpu_busy
        self._file: TextIOWrapper | None = None

    def on_run_start(self, run: RunInfo) -> None:
        """Open the file; what was measured while models were loaded is left out."""
        path = run.directory.clock
        try:
            if run.start_step:
                cut_after(path, run.start_step)
            self._file = path.open("a" if run.start_step else "w", encoding="utf-8")
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", path, error.strerror)
        for group in self._groups.values():
            group.take_spans()
            group.take_notes()
        self._gpu_busy()

    def on_step_end(self, record: StepRecord) -> None:
        """Write the step's line."""
        line: dict[str, Any] = {"step": record.step}
        for name, group in self._groups.items():
            spans, notes = group.take_spans(), group.take_notes()
            line[name] = {method: _columns(by_rank) for method, by_rank in sorted(spans.items())}
            if notes:
                line["rounds"] = [{"engine": rank, **note} for rank, note in notes]
        if busy := self._gpu_busy():
            line["gpu_busy"] = {
                node: {gpu: round(share, 3) for gpu, share in shares.items()} for node, shares in busy.items()
            }
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self._file.name, error.strerror)
            self._file = None

    def on_run_end(self, outcome: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _columns(by_rank: Mapping[int, Span]) -> dict[str, list[float]]:
    """Spans of one method, in order of rank: a list for each of their numbers."""
    spans = [by_rank[rank] for rank in sorted(by_rank)]
    return {
        "ranks": sorted(by_rank),
        "calls": [one.calls for one in spans],
        **{
            name: [round(getattr(one, name), 6) for one in spans]
            for name in ("wall_s", "together_s", "cpu_s", "queued_s", "longest_s")
        },
    }
