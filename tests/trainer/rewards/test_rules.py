"""Each rule on answers whose worth is known."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrain.core.errors import UserError
from rltrain.rewards.rules import RULES, digits, text_of
from rltrain.rewards.spec import RuleSpec, spec_of
from tests.trainer.rewards.support import run_config


def worth(kind: str, solution: str, truth: str, pattern: str = "", method: str = "strict") -> float:
    return RULES[kind](solution, truth, RuleSpec(kind, kind, pattern=pattern, method=method))


@pytest.mark.parametrize(
    ("solution", "truth", "score"),
    [(" 42\n", "42", 1.0), ("42", " 42 ", 1.0), ("4 2", "42", 0.0), ("", "42", 0.0), ("", "", 1.0), ("A", "a", 0.0)],
)
def test_exact(solution: str, truth: str, score: float) -> None:
    assert worth("exact", solution, truth) == score


@pytest.mark.parametrize(
    ("solution", "truth", "score"),
    [
        ("4321", "4321", 1.0),
        ("4301", "4321", 0.75),
        ("43", "4321", 0.5),
        ("43214321", "4321", 0.5),
        ("", "4321", 0.0),
        (" 4321 ", "4321", 1.0),
        ("1234", "4321", 0.0),
    ],
)
def test_digits(solution: str, truth: str, score: float) -> None:
    assert worth("digits", solution, truth) == score


@given(st.text("0123456789", max_size=8), st.text("0123456789", min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_digits_is_one_only_for_the_answer_itself(solution: str, truth: str) -> None:
    score = digits(solution, truth, RuleSpec("digits", "digits"))
    assert 0.0 <= score <= 1.0
    assert (score == 1.0) == (solution == truth)
    assert score == digits(truth, solution, RuleSpec("digits", "digits")) if solution else score == 0.0


def test_digits_needs_an_answer() -> None:
    with pytest.raises(ValueError, match="empty"):
        worth("digits", "1", "  ")


@pytest.mark.parametrize(
    ("solution", "truth", "strict", "flexible"),
    [
        ("6 * 12 = 72\n#### 72", "72", 1.0, 1.0),
        ("#### 1,234", "1234", 1.0, 1.0),
        ("#### 1234", "Half of it.\n#### 1,234", 1.0, 1.0),
        ("#### -5", "-5", 1.0, 1.0),
        ("#### 7\n#### 72", "72", 1.0, 1.0),
        ("#### 72\n#### 7", "72", 0.0, 0.0),
        ("The answer is 72.", "72", 0.0, 1.0),
        ("The answer is $72, I think.", "72", 0.0, 1.0),
        ("####72", "72", 0.0, 1.0),
        ("#### $72", "72", 0.0, 1.0),
        ("#### 72 and 3 more", "72", 1.0, 0.0),
        ("no number ... ,", "72", 0.0, 0.0),
        ("", "72", 0.0, 0.0),
    ],
)
def test_gsm8k(solution: str, truth: str, strict: float, flexible: float) -> None:
    assert worth("gsm8k", solution, truth) == strict
    assert worth("gsm8k", solution, truth, method="flexible") == flexible


@given(st.text("07.,-a", max_size=14))
@settings(max_examples=300, deadline=None)
def test_the_last_number_is_the_last_that_holds_a_digit(solution: str) -> None:
    numbers = re.findall(r"-?[0-9.,]*[0-9][0-9.,]*", solution)
    for truth in {"0", "7", "-7", *(number.rstrip(".,").replace(",", "") for number in numbers)}:
        right = bool(numbers) and numbers[-1].rstrip(".,").replace(",", "") == truth
        assert worth("gsm8k", solution, truth, method="flexible") == right


@pytest.mark.parametrize("kind", ["exact", "digits", "gsm8k"])
@pytest.mark.parametrize("unit", [".", ",", "-", "1,", "-.", "#### -", "#### .", " "])
def test_what_a_model_repeats_without_end_is_scored_at_once(kind: str, unit: str) -> None:
    solution = unit * (100_000 // len(unit))
    started = time.process_time()
    for method in ("strict", "flexible"):
        assert worth(kind, solution, "72", method=method) == 0.0
    assert time.process_time() - started < 2


THINK = r"<think>.*</think>\s*<answer>.*</answer>"


def test_format_is_about_the_whole_response() -> None:
    assert worth("format", "<think>a\nb</think>\n<answer>3</answer>\n", "", THINK) == 1.0
    assert worth("format", "So: <think>a</think><answer>3</answer>", "", THINK) == 0.0
    assert worth("format", "<think>a</think><answer>3</answer> bye", "", THINK) == 0.0


def test_regex_finds_or_compares_its_group() -> None:
    assert worth("regex", "well, yes.", "no", "yes") == 1.0
    assert worth("regex", "well, no.", "no", "yes") == 0.0
    pattern = r"<answer>(.*?)</answer>"
    assert worth("regex", "<answer>1</answer> no, <answer> 3 </answer>", "3", pattern) == 1.0
    assert worth("regex", "<answer>3</answer> no, <answer>1</answer>", "3", pattern) == 0.0
    assert worth("regex", "3", "3", pattern) == 0.0


def test_ground_truth_is_text_or_a_number() -> None:
    assert text_of("x") == "x"
    assert text_of(72) == "72"
    assert text_of(0.5) == "0.5"
    for wrong in (None, True, ["72"], {"answer": "72"}):
        with pytest.raises(ValueError, match=f"ground_truth is {type(wrong).__name__}"):
            text_of(wrong)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([], "nothing gives a reward"),
        ([{"kind": "regex"}], "'regex' needs `pattern`"),
        ([{"kind": "format", "pattern": "("}], r"'\(' is no regular expression"),
        ([{"kind": "exact", "pattern": "a"}], "'exact' takes no `pattern`"),
        ([{"kind": "exact"}, {"kind": "exact"}], "more than one part named 'exact'"),
        ([{"kind": "exact", "name": "custom"}], "more than one part named 'custom'"),
        ([{"kind": "exact", "name": "overlong"}], "more than one part named 'overlong'"),
    ],
)
def test_a_config_that_cannot_be_is_refused(rules: list[dict[str, str]], words: str) -> None:
    with pytest.raises(UserError, match=words):
        spec_of(run_config(*rules))
