"""Ground truths: there, and something that the configured reward can use."""

from __future__ import annotations

import json
import re
from typing import Any

_NUMBER = re.compile(r"-?[0-9.]*[0-9][0-9.]*")
_PLAIN_MATH = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?|-?[0-9]+/[0-9]+|[a-zA-Z]")
_HASHED = re.compile(r"#### (-?[0-9.,]+)")
NOT_GIVEN = object()
FAULTY = object()
_MAX_PARSED = 2000
"""Expressions that each worker gives to math-verify, which takes milliseconds for one."""


class Truths:
    """`rules`: each with kind, name, data_sources (None: all) and needs (whether it looks at the truth)."""

    def __init__(self, options: dict) -> None:
        self._rules: list = options["rules"]
        self._dispatch: dict = options["dispatch"]
        self._prefixes: dict = options["prefixes"]
        self._scores_all: bool = options["scores_all"]
        self._verl: bool = options["framework"] == "verl"
        self._has_config: bool = options["has_config"]
        self._by_source: dict = {}
        self._source_key = self._key = ""
        self._parse: Any = None
        self._num_parsed = 0

    def take_keys(self, source_key: str, truth_key: str) -> None:
        """The columns of source and ground truth; the latter "" where the frameworks' own places count."""
        self._source_key, self._key = source_key, truth_key

    def covers(self, source: str) -> bool:
        """Whether the configured reward scores rows of SOURCE."""
        return self._scores_all or bool(self._kinds(source))

    def _kinds(self, source: str) -> list:
        found = self._by_source.get(source)
        if found is None:
            if self._verl:
                kind = self._dispatch.get(source) or next(
                    (kind for prefix, kind in self._prefixes.items() if source.startswith(prefix)), None
                )
                found = [(kind, kind)] if kind else []
            else:
                mine = [rule for rule in self._rules
                        if rule["data_sources"] is None or source in rule["data_sources"]]  # fmt: skip
                found = [(rule["kind"] if rule["needs"] else "", rule["name"]) for rule in mine]
            if len(self._by_source) < 10000:
                self._by_source[source] = found
        return found

    def of(self, values: dict, prompt: Any, part: Any) -> Any:
        """The row's ground truth (None: it has none), after saying what is wrong with it."""
        if prompt is not None and prompt.source:  # GSM8K's own form
            field, truth = "answer", prompt.truth
            if not truth:
                part.note("truth_unusable", field, "no '#### NUMBER' in the answer")
                return None
        else:
            field, truth = self._find(values, part)
        if truth is FAULTY:
            return None
        source = prompt.source if prompt is not None and prompt.source else values.get(self._source_key)
        kinds = self._kinds(source) if isinstance(source, str) else []
        if truth is NOT_GIVEN or truth is None:
            if self._is_needed(truth, kinds):
                part.note("truth_missing", field, "null" if truth is None else "")
            return None
        for kind, name in kinds if not (self._scores_all and self._verl) else ():
            fault = self._fault(kind, truth)
            if fault:
                part.note(fault[0], field, f"{name}: {fault[1]}")
                break
        return truth

    def _is_needed(self, truth: Any, kinds: list) -> bool:
        if self._verl:  # its reward managers read the key in any case
            return truth is NOT_GIVEN or not self._scores_all
        if self._has_config:  # rltrain refuses a null that is written, whatever the reward
            return truth is None or any(kind for kind, _ in kinds)
        return self._key != ""

    def _find(self, values: dict, part: Any) -> tuple:
        model = values.get("reward_model")
        if isinstance(model, dict):
            return "reward_model.ground_truth", model.get("ground_truth", NOT_GIVEN)
        if model is not None and self._has_config:
            part.note("truth_form", "reward_model", f"{type(model).__name__} in place of an object")
            return "reward_model", FAULTY
        if self._verl:
            return "reward_model.ground_truth", NOT_GIVEN
        if "ground_truth" in values:
            return "ground_truth", values["ground_truth"]
        if self._key:
            return self._key, values.get(self._key, NOT_GIVEN)
        return "ground_truth", NOT_GIVEN

    def _fault(self, kind: str, truth: Any) -> tuple | None:
        if kind in ("", None):
            return None
        if kind in ("code", "search"):
            return _structured(kind, truth)
        if self._verl:
            return None if kind == "any" else _verl_text(kind, truth)
        if isinstance(truth, bool) or not isinstance(truth, (str, int, float)):
            return "truth_unusable", f"{type(truth).__name__}, must be text or a number"
        text = str(truth)
        if kind == "digits" and not text.strip():
            return "truth_unusable", "empty"
        if kind == "math":
            return self._math(text)
        if not text.strip():
            return "truth_never", "empty: an empty response would be right"
        if kind == "gsm8k":
            hashed = _HASHED.findall(text)
            want = (hashed[-1] if hashed else text.strip()).replace(",", "").replace("$", "")
            return None if _NUMBER.fullmatch(want) else ("truth_never", f"no number: {want[:30]}")
        return None

    def _math(self, text: str) -> tuple | None:
        """math-verify's own reading, where the answer is not a plain number; a limited number of them."""
        if _PLAIN_MATH.fullmatch(text.strip()):
            return None
        if not text.strip():
            return "truth_unusable", "holds no mathematical expression"
        if self._parse is None:
            self._parse = _math_verify()
        if self._parse is False or self._num_parsed >= _MAX_PARSED:
            return None
        self._num_parsed += 1
        written = text if "\\boxed" in text or "$" in text else f"\\boxed{{{text}}}"
        try:
            return None if self._parse(written) else ("truth_unusable", "holds no mathematical expression")
        except Exception:  # sympy raises what it likes on odd input; the reward treats that as unreadable, too
            return "truth_unusable", "cannot be read as mathematics"


def _verl_text(kind: str, truth: Any) -> tuple | None:
    """verl compares texts: another type is never equal, or has no method that is called on it."""
    if not isinstance(truth, str):
        fault = "truth_unusable" if kind == "math_dapo" else "truth_never"
        return fault, f"{type(truth).__name__}, is compared with text"
    if not truth.strip():
        return "truth_never", "empty"
    if kind == "gsm8k" and not re.fullmatch(r"-?[0-9.]+", truth):
        return "truth_never", f"{truth[:30]!r} is compared with digits, signs and full stops alone"
    return None


def _structured(kind: str, truth: Any) -> tuple | None:
    if kind == "search":
        good = isinstance(truth, dict) and "target" in truth
        return None if good else ("truth_unusable", "no object with `target`")
    cases = truth
    if isinstance(truth, str):
        try:
            cases = json.loads(truth)
        except ValueError:
            return "truth_never", "no JSON with `inputs` and `outputs`"
    if isinstance(cases, dict) and ({"inputs", "outputs"} <= set(cases) or "assert_case" in cases):
        return None
    return "truth_never", "no object with `inputs` and `outputs`"


def _math_verify() -> Any:
    try:
        import math_verify
    except ImportError:
        return False
    kinds = (math_verify.LatexExtractionConfig(), math_verify.ExprExtractionConfig())
    return lambda text: math_verify.parse(text, extraction_config=kinds, parsing_timeout=3)
