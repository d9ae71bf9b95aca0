"""The score goes on the last response token, and into statistics by source."""

from __future__ import annotations

import pytest
import torch

from rltrain.core.batch import Batch, Sample
from rltrain.core.errors import RunFailure, UserError
from rltrain.rewards.combine import combine
from rltrain.rewards.request import RewardResult


def sample(index: int, source: str = "toy") -> Sample:
    return Sample(uid=f"0-{index}", index=index, data_source=source)


def mask(*lengths: int, width: int = 4) -> torch.Tensor:
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def result(score: float, **parts: float) -> RewardResult:
    return RewardResult(score, parts, 0.0)


def test_the_score_is_on_the_last_token() -> None:
    samples = [sample(0), sample(1), sample(2)]
    scores, _ = combine([result(0.5), result(-2.0), result(1.0)], samples, mask(1, 4, 3))
    expected = torch.tensor([[0.5, 0, 0, 0], [0, 0, 0, -2.0], [0, 0, 1.0, 0]])
    assert torch.equal(scores, expected)
    Batch.of(samples, {"response_mask": mask(1, 4, 3), "token_level_scores": scores})  # fits the table of fields


def test_a_masked_token_in_the_middle_does_not_matter() -> None:
    gap = torch.tensor([[True, False, True, False]])
    assert combine([result(3.0)], [sample(0)], gap)[0].tolist() == [[0, 0, 3.0, 0]]


@pytest.mark.row("F33")
def test_statistics_by_source() -> None:
    samples = [sample(0, "a/b"), sample(1, "a/b"), sample(2, "c"), sample(3, "")]
    results = [
        result(1.0, exact=1.0, custom=0.5),
        result(0.0, exact=0.0),
        result(-1.0, exact=-1.0),
        result(2.0),
    ]
    _, metrics = combine(results, samples, mask(1, 1, 1, 1))
    assert metrics == {
        "reward/a/b/mean": 0.5,
        "reward/a/b/count": 2.0,
        "reward/a/b/zero_share": 0.5,
        "reward/a/b/exact/mean": 0.5,
        "reward/a/b/exact/count": 2.0,
        "reward/a/b/custom/mean": 0.5,
        "reward/a/b/custom/count": 1.0,
        "reward/c/mean": -1.0,
        "reward/c/count": 1.0,
        "reward/c/zero_share": 0.0,
        "reward/c/exact/mean": -1.0,
        "reward/c/exact/count": 1.0,
        "reward/unnamed/mean": 2.0,
        "reward/unnamed/count": 1.0,
        "reward/unnamed/zero_share": 0.0,
    }


@pytest.mark.row("F20")
@pytest.mark.parametrize("width", [0, 4])
def test_a_response_without_tokens_is_an_error(width: int) -> None:
    with pytest.raises(RunFailure, match=r"have no token, the first is sample 0-1$" if width else "have no token"):
        combine([result(1.0)] * 2, [sample(0), sample(1)], mask(1, 0, width=width))


def test_a_score_that_is_not_finite_names_sample_and_part() -> None:
    with pytest.raises(UserError, match=r"reward 'model' of sample 0-1/0 \(data_source 'toy'\) is nan"):
        combine([result(1.0), result(1.0, model=float("nan"))], [sample(0), sample(1)], mask(1, 1))
    with pytest.raises(UserError, match="reward 'score' of sample 0-0/0"):
        combine([result(float("inf"))], [sample(0)], mask(1))


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="2 samples, 1 rewards, 2 rows"):
        combine([result(1.0)], [sample(0), sample(1)], mask(1, 1))


def test_an_empty_batch_has_no_scores() -> None:
    scores, metrics = combine([], [], torch.zeros(0, 4, dtype=torch.bool))
    assert scores.shape == (0, 4)
    assert metrics == {}
