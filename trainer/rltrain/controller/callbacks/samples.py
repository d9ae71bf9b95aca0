"""Samples on disk: what the model was asked, what it answered, what that was worth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.core.batch import Batch
from rltrain.core.tensors import floats, ints
from rltrain.records.run_dir import on_disk

_VERLS = {"prompt": "input", "response": "output", "ground_truth": "gts", "reward": "score"}
"""verl's names of columns (`_dump_generations` of its trainer/ppo/v1/trainer_base.py)."""


class Samples(Callback):
    """Writes the first samples of every N-th step to `samples/step_K.jsonl`.

    And where `trainer.rollout_data_dir` is set, every sample of every step to `K.jsonl` there, under verl's names.
    """

    def __init__(self) -> None:
        self._directory = Path()
        self._all: Path | None = None
        self._frequency = -1
        self._number = 0

    def on_run_start(self, run: RunInfo) -> None:
        """Note where and how often."""
        trainer = run.config.trainer
        self._directory = run.directory.samples
        self._all = Path(trainer.rollout_data_dir) if trainer.rollout_data_dir else None
        self._frequency, self._number = trainer.log_samples_freq, trainer.num_log_samples

    def on_step_end(self, record: StepRecord) -> None:
        """Write the samples of this step, if it is its turn."""
        if record.batch is None:
            return
        if self._frequency > 0 and (record.step - 1) % self._frequency == 0:
            few = record.batch.select(range(min(self._number, len(record.batch))))
            _write(record.step, self._directory, f"step_{record.step}.jsonl", _rows(record.step, few))
        if self._all is not None:
            rows = _rows(record.step, record.batch)
            named = ({_VERLS.get(name, name): value for name, value in row.items()} for row in rows)
            _write(record.step, self._all, f"{record.step}.jsonl", named)


def _rows(step: int, batch: Batch) -> Iterator[dict[str, Any]]:
    scores = floats(batch["token_level_scores"].sum(-1))
    lengths, versions = ints(batch["response_mask"].sum(-1)), ints(batch["policy_version"])
    for row, sample in enumerate(batch.samples):
        yield {
            "step": step,
            "uid": sample.uid,
            "data_source": sample.data_source,
            "prompt": sample.prompt_text,
            "response": sample.response_text,
            "ground_truth": sample.ground_truth,
            "reward": scores[row],
            "reward_parts": sample.reward_parts,
            "response_length": lengths[row],
            "policy_version": versions[row],
        }


def _write(step: int, directory: Path, name: str, rows: Iterable[dict[str, Any]]) -> None:
    with on_disk(f"the samples of step {step} cannot be written to {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / name).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
