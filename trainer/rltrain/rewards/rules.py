"""Rules that score a response against its ground truth: 0 to 1, pure text functions.

A rule takes the response, the ground truth as text and its own settings. What the model wrote can only make a rule
give 0; a ground truth that the rule cannot use is the data's fault and raises ValueError. A user's pattern that tries
forever on some response is the pattern's fault: `reward_model.timeout_s` ends it, and the run names the sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from rltrain.rewards.spec import RuleSpec

Rule = Callable[[str, str, RuleSpec], float]

# The final answer of a GSM8K solution is behind four hashes (Cobbe et al. 2021, arXiv:2110.14168, section 2).
GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
# A number, or full stops and commas alone: asking for a digit here would read a long run of these once for each.
NUMBER = re.compile(r"-?[0-9.,]+")


def exact(solution: str, truth: str, _rule: RuleSpec) -> float:
    """1 where the response is the ground truth, white space around both aside."""
    return float(solution.strip() == truth.strip())


def digits(solution: str, truth: str, _rule: RuleSpec) -> float:
    """Share of positions whose character is right; positions that only one of the two has are wrong.

    Raises:
        ValueError: the ground truth is empty.
    """
    said, want = solution.strip(), truth.strip()
    if not want:
        raise ValueError("its ground_truth is empty")
    right = sum(a == b for a, b in zip(said, want, strict=False))
    return right / max(len(said), len(want))


def gsm8k(solution: str, truth: str, rule: RuleSpec) -> float:
    """1 where the response's final number is that of the ground truth (which may be a whole GSM8K solution).

    `strict`: the last number behind `#### `, as the data set's own answers are written; `flexible`: the last number
    anywhere. Thousands separators are dropped; otherwise numbers are compared as text.
    """
    want = _hashed(truth) or _plain(truth.strip())
    said = _hashed(solution) if rule.method == "strict" else _last_number(solution)
    return float(said is not None and said == want)


def matches_format(solution: str, _truth: str, rule: RuleSpec) -> float:
    """1 where the pattern matches the whole response, white space around it aside (`.` matches line breaks)."""
    return float(_compiled(rule.pattern).fullmatch(solution.strip()) is not None)


def regex(solution: str, truth: str, rule: RuleSpec) -> float:
    """1 where the pattern is found; where it has a group, the last match's first group must be the ground truth."""
    pattern = _compiled(rule.pattern)
    if not pattern.groups:
        return float(pattern.search(solution) is not None)
    found = list(pattern.finditer(solution))
    return float(bool(found) and (found[-1].group(1) or "").strip() == truth.strip())


RULES: Mapping[str, Rule] = {
    "exact": exact,
    "digits": digits,
    "gsm8k": gsm8k,
    "format": matches_format,
    "regex": regex,
}


def text_of(ground_truth: object) -> str:
    """A ground truth as text.

    Raises:
        ValueError: it is neither text nor a number.
    """
    if isinstance(ground_truth, str):
        return ground_truth
    if isinstance(ground_truth, int | float) and not isinstance(ground_truth, bool):
        return str(ground_truth)
    raise ValueError(f"its ground_truth is {type(ground_truth).__name__}, must be text or a number")


def needs_truth(rule: RuleSpec) -> bool:
    """Whether RULE looks at the ground truth."""
    return not (rule.kind == "format" or (rule.kind == "regex" and not _compiled(rule.pattern).groups))


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


def _plain(number: str) -> str:
    return number.replace(",", "").replace("$", "")


def _hashed(text: str) -> str | None:
    found: list[str] = GSM8K_ANSWER.findall(text)
    return _plain(found[-1]) if found else None


def _last_number(text: str) -> str | None:
    found: list[str] = NUMBER.findall(text)
    number = next((run for run in reversed(found) if run.strip("-.,")), None)
    # A full stop or comma that ends a sentence is no part of the number.
    return None if number is None else _plain(number.rstrip(".,"))
