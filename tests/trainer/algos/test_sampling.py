"""DAPO: dynamic sampling and the penalty for overlong responses."""

from __future__ import annotations

import pytest
import torch

from rltrain.algos.filter_groups import filter_groups
from rltrain.algos.rewards import overlong_penalty


def test_groups_with_equal_rewards_are_dropped() -> None:
    group_ids = torch.tensor([5, 9, 5, 9, -2, 9, 40])
    metric = torch.tensor([1.0, 0.1, 0.0, 0.1, 3.0, 0.1, 3.0])
    assert filter_groups(metric, group_ids) == [0, 2, 4, 6]  # the groups of one are kept
    assert filter_groups(metric[[1, 3, 5]], group_ids[[1, 3, 5]]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_does_not_make_equal_rewards_differ(dtype: torch.dtype) -> None:
    assert filter_groups(torch.full((7,), 0.1, dtype=dtype), torch.zeros(7, dtype=torch.int64)) == []


def test_overlong_penalty_by_hand() -> None:
    lengths = torch.tensor([0, 80, 81, 90, 100, 120])
    penalty = overlong_penalty(lengths, max_response_length=100, buffer_len=20, penalty_factor=2.0)
    assert penalty.tolist() == pytest.approx([0, 0, -0.1, -1.0, -2.0, -2.0])
    assert overlong_penalty(lengths.double(), 100, 20, 1.0).dtype == torch.float64


@pytest.mark.parametrize("buffer_len", [0, 101])
def test_a_buffer_that_cannot_be_is_refused(buffer_len: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 100"):
        overlong_penalty(torch.tensor([1]), 100, buffer_len, 1.0)
