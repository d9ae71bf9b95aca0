"""The `math` rule, on math-verify itself."""

from __future__ import annotations

import time

import pytest

from rltrain.rewards.math_reward import MathRule, TookTooLong, time_limit


@pytest.fixture(scope="module")
def rule() -> MathRule:
    return MathRule(limit_s=10.0)


@pytest.mark.parametrize(
    ("solution", "truth", "score"),
    [
        (r"so the sum is \boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        ("The answer is 72", "72", 1.0),
        (r"$x = 72$", "72", 1.0),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1.0),
        (r"\boxed{(x+1)^2}", r"$x^2 + 2x + 1$", 1.0),
        (r"\boxed{71}", "72", 0.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
        ("\\boxed{" + "{" * 5000, "72", 0.0),
    ],
)
def test_compares_values_not_spelling(rule: MathRule, solution: str, truth: str, score: float) -> None:
    assert rule.score(solution, truth) == (score, {})


def test_an_expression_that_takes_too_long_is_wrong_and_counted() -> None:
    started = time.monotonic()
    assert MathRule(limit_s=0.5).score(r"\boxed{9^{9^{9^{9}}}}", "5") == (0.0, {"timed_out": 1.0})
    assert time.monotonic() - started < 10


# The alarm may ring in a finalizer, where Python drops what it raises: it rings again.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("unit", ["\\[", "$ ", "1 "])
def test_what_a_model_repeats_without_end_is_cut_off(unit: str) -> None:
    """The library's own patterns read such a text once for each of its places."""
    rule = MathRule(limit_s=0.3)
    started = time.monotonic()
    assert rule.score(unit * 50_000, "72") == (0.0, {"timed_out": 1.0})
    assert time.monotonic() - started < 10


def test_a_ground_truth_without_an_expression_is_an_error(rule: MathRule) -> None:
    with pytest.raises(ValueError, match="no mathematical expression"):
        rule.score("5", "$ $")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_limit_holds_though_its_first_alarm_is_lost() -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(30)  # The alarm ends it; what is raised here is dropped.

    def lose_one_alarm() -> None:
        Slow()
        time.sleep(30)

    started = time.monotonic()
    with pytest.raises(TookTooLong), time_limit(0.2):
        lose_one_alarm()
    assert time.monotonic() - started < 15
