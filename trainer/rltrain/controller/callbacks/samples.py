"""Samples on disk: what the model was asked, what it answered, what that was worth."""

from __future__ import annotations

import json
from pathlib import Path

from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.core.batch import Batch
from rltrain.core.tensors import floats, ints
from rltrain.records.run_dir import on_disk


class Samples(Callback):
    """Writes the first samples of every N-th step to `samples/step_K.jsonl`."""

    def __init__(self) -> None:
        self._directory = Path()
        self._frequency = -1
        self._number = 0

    def on_run_start(self, run: RunInfo) -> None:
        """Note where and how often."""
        trainer = run.config.trainer
        self._directory = Path(trainer.rollout_data_dir) if trainer.rollout_data_dir else run.directory.samples
        self._frequency, self._number = trainer.log_samples_freq, trainer.num_log_samples

    def on_step_end(self, record: StepRecord) -> None:
        """Write the samples of this step, if it is its turn."""
        batch = record.batch
        if batch is None or self._frequency <= 0 or (record.step - 1) % self._frequency:
            return
        with on_disk(f"the samples of step {record.step} cannot be written to {self._directory}"):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write(record.step, batch)

    def _write(self, step: int, batch: Batch) -> None:
        scores = floats(batch["token_level_scores"].sum(-1))
        lengths = ints(batch["response_mask"].sum(-1))
        versions = ints(batch["policy_version"])
        with (self._directory / f"step_{step}.jsonl").open("w", encoding="utf-8") as file:
            for row, sample in enumerate(batch.samples[: self._number]):
                entry = {
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
                file.write(json.dumps(entry, ensure_ascii=False, default=str) + "\n")
