"""A test of many things names each that is wrong, and fails where there is none to look at."""

from __future__ import annotations

import pytest

from tests.every import every


def is_even(number: int) -> None:
    assert number != 9, "nine"
    assert 10 % number != 1


def test_each_offender_is_named_with_its_reason() -> None:
    every([1, 2, 5])(is_even)()
    with pytest.raises(AssertionError, match=r"(?s)^number 9: nine.*number 0: ZeroDivisionError.*number 3: assert"):
        every([1, 9, 0, 3], name=lambda number: f"number {number}")(is_even)()


def test_nothing_to_look_at_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="nothing to look at"):
        every([])(is_even)()
