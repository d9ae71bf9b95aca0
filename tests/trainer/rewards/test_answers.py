"""What a user's function may answer."""

from __future__ import annotations

import math
from collections import UserDict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from rltrain.rewards.custom import BadReward, read_answer


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (True, 1.0),
        (Fraction(1, 4), 0.25),
        (numpy.float32(0.5), 0.5),
        (numpy.float64(0.5), 0.5),
        (numpy.int64(2), 2.0),
        (numpy.bool_(True), 1.0),
    ],
)
def test_numbers(answer: Any, score: float) -> None:
    read, parts = read_answer(answer)
    assert (read, parts) == (score, {})
    assert type(read) is float


def test_dicts_keep_their_other_numbers() -> None:
    answer = {"score": numpy.float32(0.5), "acc": True, "pred": "72", "steps": 3}
    assert read_answer(answer) == (0.5, {"acc": 1.0, "steps": 3.0})
    assert read_answer(UserDict(score=1)) == (1.0, {})


@pytest.mark.row("F30")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returned None, must be one number"),
        (math.nan, "returned nan, must be finite"),
        (math.inf, "returned inf, must be finite"),
        (-math.inf, "returned -inf, must be finite"),
        (numpy.float32("nan"), "returned nan, must be finite"),
        ("1.0", "returned str '1.0'"),
        (Decimal("0.5"), "returned Decimal"),
        (1j, "returned complex"),
        ((1.0, "good"), "returned tuple"),
        ([1.0, 0.0], "returned list"),
        (numpy.zeros(2), "returned ndarray"),
        ({"acc": 1.0}, "a dict without 'score', with ['acc']"),
        ({}, "a dict without 'score', with []"),
        ({"score": None}, "returned, as 'score', None"),
        ({"score": 1.0, "acc": math.nan}, "returned, as 'acc', nan"),
    ],
)
def test_anything_else_is_an_error(answer: Any, words: str) -> None:
    with pytest.raises(BadReward) as error:
        read_answer(answer)
    assert words in str(error.value)
