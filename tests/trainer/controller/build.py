"""Small runs, batches and records for these tests."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from rltrain.config.schema import RunConfig
from rltrain.controller.callbacks import RunInfo
from rltrain.core.batch import Batch, Sample
from rltrain.records.run_dir import RunDir


def config(**trainer: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "actor_rollout_ref": {"rollout": {"name": "hf"}},
            "reward_model": {"rules": [{"kind": "exact"}]},
            "data": {"train_files": ["train.jsonl"], "val_files": ["val.jsonl"]},
            "trainer": trainer,
        }
    )


def run(path: Path, start_step: int = 0, total_steps: int = 10, **trainer: Any) -> RunInfo:
    directory = RunDir(path)
    directory.create()
    return RunInfo(config(**trainer), directory, total_steps, start_step)


def batch() -> Batch:
    """Three answers "a" to prompts whose truth is "a", "b", "a": rewards 1, 0, 1; lengths 3, 1, 2."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
    last = torch.tensor([2, 0, 1])
    scores = torch.zeros(3, 3)
    scores[torch.arange(3), last] = torch.tensor([1.0, 0.0, 1.0])
    samples = [
        Sample(uid=f"0-{row}", index=row, data_source="toy", prompt_text="say a", response_text="a", ground_truth=truth)
        for row, truth in enumerate("aba")
    ]
    return Batch.of(
        samples,
        {
            "responses": torch.tensor([[5, 6, 2], [2, 0, 0], [7, 2, 0]], dtype=torch.int32),
            "response_mask": mask,
            "token_level_scores": scores,
            "policy_version": torch.tensor([4, 4, 4]),
            "truncated": torch.tensor([True, False, False]),
        },
    )


def terminal() -> tuple[Console, io.StringIO]:
    """A terminal of 80 columns, and what is drawn on it."""
    text = io.StringIO()
    return Console(file=text, force_terminal=True, width=80, color_system=None, highlight=False), text


def pipe() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, highlight=False, soft_wrap=True), text
