"""Numbers about groups, by hand and against sampling."""

from __future__ import annotations

import pytest
import torch

from rltrain.algos.group_metrics import credit_metrics, duplicate_metrics, reward_metrics


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_groups_whose_answers_earn_the_same() -> None:
    scores = torch.tensor([1.0, 0.5, 1.0, 0.5, 0.2, 0.3])
    assert reward_metrics(scores, ids(7, 3, 7, 3, 5, 5)) == {"train/zero_advantage_groups": pytest.approx(2 / 3)}
    # A group of one has nothing to be equal to.
    assert reward_metrics(scores, ids(7, 3, 7, 3, 5, 6)) == {"train/zero_advantage_groups": 1.0}
    assert reward_metrics(scores, ids(1, 2, 3, 4, 5, 6)) == {}


def test_equal_answers_are_counted_within_their_group_and_without_padding() -> None:
    responses = torch.tensor([[1, 2, 0], [1, 2, 9], [1, 2, 3], [1, 2, 3], [4, 4, 4], [4, 4, 4]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]).bool()
    # Groups a a a b c c: pairs 3 + 0 + 1; equal are the first two (the third token is padding) and the last two.
    found = duplicate_metrics(responses, mask, ids(0, 0, 0, 1, 2, 2), None)
    assert found == {"response/duplicate_ratio": pytest.approx(2 / 4)}
    assert duplicate_metrics(responses, mask, ids(0, 1, 2, 3, 4, 5), None) == {}


def test_the_expected_share_is_what_sampling_gives() -> None:
    generator = torch.Generator().manual_seed(5)
    probs = torch.tensor([0.6, 0.3, 0.1])
    responses = torch.multinomial(probs, 4000 * 2, replacement=True, generator=generator).view(4000, 2)
    mask, groups = torch.ones(4000, 2, dtype=torch.bool), torch.arange(4000) // 4
    found = duplicate_metrics(responses, mask, groups, (probs.log()[responses], mask))
    by_theory = float(probs.square().sum()) ** 2
    assert found["response/duplicate_ratio_expected"] == pytest.approx(by_theory, rel=0.05)
    assert found["response/duplicate_ratio"] == pytest.approx(by_theory, rel=0.1)
    # One stream for all samples of a prompt.
    shared = responses[torch.arange(4000) // 4 * 4]
    found = duplicate_metrics(shared, mask, groups, (probs.log()[shared], mask))
    assert found["response/duplicate_ratio"] == 1
    assert found["response/duplicate_ratio_expected"] < 0.3


@pytest.mark.parametrize("groups", [ids(0, 0, 0, 1, 1, 1), ids(0, 1, 2, 3, 4, 5)], ids=["groups", "alone"])
def test_credit_is_that_of_the_own_score(groups: torch.Tensor) -> None:
    scores, mask = torch.tensor([0.0, 1.0, 0.5, 2.0, 0.3, 0.1]), torch.tensor([[1, 1], [1, 0], [1, 1]] * 2).bool()
    fair = scores[:, None].expand(-1, 2).clone()
    fair[1, 1] = 99.0  # padding
    name = "critic/score_advantage_corr"
    assert credit_metrics(scores, fair, mask, groups) == {name: pytest.approx(1.0)}
    assert credit_metrics(scores, -fair, mask, groups) == {name: pytest.approx(-1.0)}
    assert credit_metrics(scores, fair.roll(1, 0), mask.roll(1, 0), groups)[name] < 0.3
    assert credit_metrics(scores * 0, fair, mask, groups) == {}
