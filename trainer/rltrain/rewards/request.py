"""What goes to a scorer and what comes back. Child processes import this file: no torch, no pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class RewardRequest:
    """One response to be scored."""

    data_source: str
    solution_str: str
    """The decoded response, special tokens left out."""
    ground_truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prompt_text: str = ""
    messages: tuple[dict[str, str], ...] = ()
    """The prompt as chat messages."""
    uid: str = ""
    sample: int = 0
    """Number of the sample within its group."""
    place: str = ""
    """`file:line` of the data row, where known."""

    def words(self) -> str:
        """Names the sample in an error."""
        place = f", row {self.place}" if self.place else ""
        start = one_line(self.solution_str, SHOWN_CHARACTERS)
        return f"sample {self.uid}/{self.sample} (data_source '{self.data_source}'{place}, response \"{start}\")"


@dataclass(frozen=True)
class RewardResult:
    """What one response is worth."""

    score: float
    """Weighted sum of the parts."""
    parts: Mapping[str, float]
    """By name, before weights: each rule, `custom`, what else they report (`custom/<key>`), later the model's."""
    seconds: float
    """Wall time that the sample took in its process."""


@dataclass(frozen=True)
class Failure:
    """A sample that could not be scored, and the words that say why."""

    words: str


def one_line(text: str, limit: int) -> str:
    """TEXT with line breaks and control characters shown as escapes, cut after LIMIT characters."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[:limit] + "..."
