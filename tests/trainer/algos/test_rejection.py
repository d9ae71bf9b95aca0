"""Rejection of tokens and answers that engine and actor see too differently."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrain.algos.rejection import rollout_rs_kept
from rltrain.config.schema import RolloutCorrectionConfig
from rltrain.config.thresholds import CRITERIA, Bounds, criteria, weight_bounds
from tests.trainer.algos import reference
from tests.trainer.algos.ragged import mask_of, normal, seeds


def config(names: str | None, threshold: float | str | None, weights: float | str = 2.0) -> RolloutCorrectionConfig:
    return RolloutCorrectionConfig(
        rollout_rs=names, rollout_rs_threshold=threshold, rollout_is_threshold=weights
    )  # fmt: skip


def judged(name: str, log_ratios: list[float], low: float, high: float) -> list[bool]:
    """Which tokens of one answer are kept, from the definitions, a token at a time."""
    level, _, estimate = name.rpartition("_")
    formulas = {"k1": lambda x: -x, "k2": lambda x: x * x / 2, "k3": lambda x: math.exp(x) - 1 - x}
    each = [formulas[estimate](ratio) for ratio in log_ratios]
    whole = {"seq_sum": sum, "seq_mean": lambda values: sum(values) / len(values), "seq_max": max}
    values = each if level == "token" else [whole[level](each)] * len(each)
    bounds = (math.log(low), math.log(high)) if estimate == "k1" else (-math.inf, high)
    return [bounds[0] <= value <= bounds[1] for value in values]


@pytest.mark.parametrize("name", CRITERIA)
@given(seed=seeds, high=st.floats(1.01, 3.0))
@settings(max_examples=25, deadline=None)
def test_what_is_kept_is_what_the_definition_says(name: str, seed: int, high: float) -> None:
    rng = np.random.default_rng(seed)
    actor, rollout, mask = normal(rng, 6, 5), normal(rng, 6, 5), mask_of(rng, 6, 5)
    kept, metrics = rollout_rs_kept(actor, rollout, mask, config(name, high))
    assert kept is not None
    assert bool(kept[~mask].all())
    lost, lost_rows, rows = 0, 0, 0
    for row in range(6):
        places = reference.tokens(mask.numpy(), row)
        if not places:
            continue
        expected = judged(name, [float(actor[row, t] - rollout[row, t]) for t in places], 1 / high, high)
        assert kept[row, places].tolist() == expected
        lost, lost_rows, rows = lost + expected.count(False), lost_rows + (False in expected), rows + 1
    if rows:
        assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(lost / int(mask.sum()))
        assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == pytest.approx(lost_rows / rows)
        assert metrics[f"rollout_corr/rollout_rs_{name}_masked_fraction"] == pytest.approx(lost / int(mask.sum()))


def test_a_token_passes_all_criteria_or_none_counts_it() -> None:
    # log ratios actor / engine: 0, ln 4 | 0, 0 | (empty)
    rollout = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    actor = torch.tensor([[0.0, math.log(4)], [0.0, 0.0], [9.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    kept, metrics = rollout_rs_kept(actor, rollout, mask, config("token_k1,seq_max_k3", "0.2_5.0,0.5"))
    assert kept is not None
    assert kept.tolist() == [[False, False], [True, True], [True, True]]  # k3 of 4: 3 - ln 4 = 1.61
    name = "rollout_corr/rollout_rs"
    assert metrics[f"{name}_token_k1_masked_fraction"] == 0
    assert metrics[f"{name}_token_k1_min"] == pytest.approx(-math.log(4))
    assert metrics[f"{name}_seq_max_k3_max"] == pytest.approx(3 - math.log(4))
    assert metrics[f"{name}_seq_max_k3_fraction_high"] == 0.5
    assert (metrics[f"{name}_masked_fraction"], metrics[f"{name}_seq_masked_fraction"]) == (0.5, 0.5)


def test_nothing_is_rejected_without_a_criterion_or_a_token() -> None:
    cells, mask = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    assert rollout_rs_kept(cells, cells, ~mask, config(None, None)) == (None, {})
    kept, metrics = rollout_rs_kept(cells, cells, mask, config("seq_mean_k1", 2.0))
    assert kept is not None
    assert bool(kept.all())
    assert metrics == {}


def test_thresholds_are_verls() -> None:
    assert weight_bounds(config(None, None, 2)) == Bounds(None, 2.0)
    assert weight_bounds(config(None, None, "0.5_5.0")) == Bounds(0.5, 5.0)
    first, second = criteria(config("token_k1, seq_mean_k3", "4,0.01"))
    assert (first.level, first.estimate, first.bounds) == ("token", "k1", Bounds(0.25, 4.0))
    assert (second.level, second.estimate, second.bounds) == ("seq_mean", "k3", Bounds(None, 0.01))
    assert [one.bounds.high for one in criteria(config("token_k2,seq_max_k2", 0.5))] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (("token_k9", 2.0), "rollout_rs: there is no 'token_k9'; choose from token_k1"),
        (("seq_max_k1", 2.0), "rollout_rs: there is no 'seq_max_k1'"),
        ((" , ", 2.0), "rollout_rs: names nothing"),
        (("seq_mean_k1", None), "rollout_rs_threshold: seq_mean_k1 needs one, such as 0.5_2.0"),
        ((None, 2.0), "rollout_rs_threshold: nothing reads it without rollout_rs"),
        (("token_k1,token_k2,token_k3", "2,3"), "rollout_rs_threshold: 2 for 3 criteria"),
        (("token_k2", "0.1_0.2"), "token_k2 is a divergence"),
        (("token_k1", 0.52), "YAML reads 0.5_2 as 0.52"),
        (("token_k1", "2_0.5"), "2_0.5 has its lower bound last"),
        (("token_k1", "-1_2"), "'-1_2' is no positive number"),
        (("token_k1", "a"), "'a' is no positive number"),
    ],
)
def test_what_cannot_be_read_is_said(made: tuple[str | None, float | str | None], words: str) -> None:
    with pytest.raises(ValueError, match=r"^rollout_rs") as error:
        criteria(config(*made))
    assert words in str(error.value)
