"""The `math` rule: math-verify (Hugging Face) compares the last expression of the response with the ground truth.

It must run in the main thread: its time limit is an alarm signal. A response whose expression takes too long (towers
of powers, say) is wrong, not an error: what a model writes must not be able to end the run.
"""

from __future__ import annotations

import importlib
import logging
import signal
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

from rltrain.core.errors import UserError


class TookTooLong(BaseException):
    """Not an Exception: math-verify and sympy swallow those."""


class MathRule:
    """Scores 1 where the response's expression equals the ground truth's.

    Raises:
        UserError: math-verify is not installed.
    """

    def __init__(self, limit_s: float) -> None:
        try:
            library: Any = importlib.import_module("math_verify")
        except ImportError as error:
            raise UserError(f"the reward rule 'math' needs the package math-verify: {error}") from None
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it logs whole responses
        self._library = library
        self._limit_s = limit_s
        self._kinds = (library.LatexExtractionConfig(), library.ExprExtractionConfig())
        self._compare(self._parse("$1$"), "$1$")  # the first call loads tables: not at a sample's expense
        self._gold = lru_cache(maxsize=4096)(self._parse_gold)

    def score(self, solution: str, truth: str) -> tuple[float, dict[str, float]]:
        """The score, and `timed_out` where the response's expression took too long.

        Raises:
            ValueError: no expression is found in the ground truth.
        """
        gold = self._gold(truth)
        try:
            with time_limit(self._limit_s):
                return float(self._compare(gold, solution)), {}
        except TookTooLong:
            return 0.0, {"timed_out": 1.0}

    def _parse(self, text: str) -> Any:
        return self._library.parse(text, extraction_config=self._kinds, parsing_timeout=None)

    def _compare(self, gold: Any, solution: str) -> bool:
        return bool(self._library.verify(gold, self._parse(solution), timeout_seconds=None))

    def _parse_gold(self, truth: str) -> Any:
        text = truth if "\\boxed" in truth or "$" in truth else f"\\boxed{{{truth}}}"
        try:
            with time_limit(self._limit_s):
                gold = self._parse(text)
        except TookTooLong:
            raise ValueError(f"its ground_truth took longer than {self._limit_s:g} s to read") from None
        if not gold:
            raise ValueError("its ground_truth holds no mathematical expression")
        return gold


@contextmanager
def time_limit(seconds: float) -> Generator[None, None, None]:
    """Raises TookTooLong in what runs longer, main thread only."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: Python drops what is raised in a finalizer or while it collects garbage.
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
