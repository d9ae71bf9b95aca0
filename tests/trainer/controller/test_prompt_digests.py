"""Prompts as the engine read them, against those that training reads."""

from __future__ import annotations

import pytest
import torch

from rltrain.controller.prompt_digests import compared, of_engine
from rltrain.core.batch import Batch, Sample
from rltrain.core.trajectory import IntArray, int_array

PROMPTS = ((5, 6), (7, 8, 9))


def read_by_engine(*prompts: tuple[int, ...]) -> list[IntArray]:
    return [int_array(prompt) for prompt in prompts]


def batch(*prompts: tuple[int, ...]) -> Batch:
    """What training reads: left-padded prompts and one response token."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) + [1] for p in prompts], dtype=torch.int32)
    mask = torch.tensor([[False] * (width - len(p)) + [True] * (len(p) + 1) for p in prompts])
    samples = [Sample(str(row), row) for row in range(len(prompts))]
    fields = {"input_ids": ids, "attention_mask": mask, "response_mask": mask[:, -1:]}
    return Batch.of(samples, fields | of_engine(read_by_engine(*PROMPTS)))


@pytest.mark.parametrize(
    ("read", "mismatch", "longer"),
    [
        (PROMPTS, 0.0, 0.0),
        (((5, 6), (7, 8, 10)), 0.5, 0.0),
        (((2, 5, 6), (2, 7, 8, 9)), 1.0, 1.0),
        (((5, 6), (8, 9)), 0.5, -0.5),
    ],
)
def test_what_training_reads(read: tuple[tuple[int, ...], ...], mismatch: float, longer: float) -> None:
    found = compared(batch(*read))
    assert found == {"training/rollout_prompt_mismatch": mismatch, "training/rollout_prompt_length_diff": longer}


def test_an_engine_that_does_not_say_what_it_read() -> None:
    assert of_engine(read_by_engine((1,), ())) == {}
    silent = batch(*PROMPTS)
    assert compared(silent.only(silent.names - {"rollout_prompt_digests"})) == {}
