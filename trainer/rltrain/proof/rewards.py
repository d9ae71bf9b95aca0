"""Rewards by the config's rules: pure functions of an answer's text and its ground truth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rule = Mapping[str, Any]
Score = Callable[[str, str], float]
MODEL = "model"
"""The part that a reward model gave: its weights are not in a capsule, it is taken as recorded."""


def digits(text: str, truth: str) -> float:
    """The share of the places of the longer of the two at which both have the same character."""
    said, want = text.strip(), truth.strip()
    return sum(said[i : i + 1] == want[i] for i in range(len(want))) / max(len(said), len(want))


def gsm8k_number(text: str, flexible: bool) -> str | None:
    """Cobbe et al. 2021, arXiv:2110.14168: the last number behind `#### `, or anywhere; without `,` and `$`."""
    if not flexible:
        found = re.findall(r"#### (-?[\d.,]+)", text, re.ASCII)
        return re.sub(r"[,$]", "", found[-1]) if found else None
    found = [each for each in re.findall(r"-?[\d.,]+", text, re.ASCII) if re.search(r"\d", each)]
    return re.sub(r"[,$]", "", found[-1].rstrip(".,")) if found else None


def gsm8k(text: str, truth: str, flexible: bool) -> float:
    """Whether the answer's number is the ground truth's, as text."""
    want = gsm8k_number(truth, False) or re.sub(r"[,$]", "", truth.strip())
    return float(gsm8k_number(text, flexible) == want)


def pattern(text: str, truth: str, expression: str, whole: bool) -> float:
    """`format`: the EXPRESSION matches the WHOLE answer; `regex`: it is found, its last first group is the truth."""
    compiled = re.compile(expression, re.DOTALL)
    if whole:
        return float(compiled.fullmatch(text.strip()) is not None)
    found = [*compiled.finditer(text)]
    return float(bool(found) and (not compiled.groups or (found[-1].group(1) or "").strip() == truth.strip()))


def maths(text: str, truth: str, limit_s: int = 5) -> float:
    """math-verify on LaTeX and plain expressions; the ground truth is boxed unless it says itself what it is."""
    import math_verify  # pyright: ignore[reportMissingTypeStubs]  (heavy: loaded where a rule needs it)

    library: Any = math_verify
    kinds = (library.LatexExtractionConfig(), library.ExprExtractionConfig())
    gold = truth if "\\boxed" in truth or "$" in truth else "\\boxed{" + truth + "}"
    read = [library.parse(each, extraction_config=kinds, parsing_timeout=limit_s) for each in (gold, text)]
    return float(bool(library.verify(*read, timeout_seconds=limit_s)))


def score_of(rule: Rule) -> Score:
    """The function of one of `reward_model.rules`."""
    kind, expression = rule["kind"], rule.get("pattern") or ""
    table: dict[str, Score] = {
        "exact": lambda text, truth: float(text.strip() == truth.strip()),
        "digits": digits,
        "gsm8k": lambda text, truth: gsm8k(text, truth, rule.get("method") == "flexible"),
        "format": lambda text, truth: pattern(text, truth, expression, True),
        "regex": lambda text, truth: pattern(text, truth, expression, False),
        "math": maths,
    }
    return table[kind]


def parts(text: str, truth: object, source: str, rules: Sequence[Rule]) -> dict[str, tuple[float, float]]:
    """Name to (value, weight) for each of RULES that scores answers of SOURCE."""
    found: dict[str, tuple[float, float]] = {}
    for rule in rules:
        sources = rule.get("data_sources")
        if sources is None or source in sources:
            value = score_of(rule)(text, "" if truth is None else str(truth))
            found[rule.get("name") or rule["kind"]] = (value, float(rule.get("weight", 1.0)))
    return found
