"""What is asked of the process that calls a reward function, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["serial", "threads", "pickle"]
Kind = Literal["score", "none", "empty", "raised", "late"]


@dataclass(frozen=True)
class Sample:
    """One row of data. `columns`: the row as the file has it, for functions that take columns by name."""

    place: str
    source: str
    truth: Any
    truth_text: str
    """The ground truth as an answer would state it; "" where it is no text, number or list of them."""
    messages: tuple[dict[str, str], ...]
    is_plain: bool
    solution: str = ""
    """The row's own solution, where it has one."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def question(self) -> str:
        """What the user says last."""
        return self.messages[-1]["content"] if self.messages else ""


@dataclass(frozen=True)
class Call:
    """The answer SOLUTION to the prompt of SAMPLE. `text`: the answer in words."""

    text: str
    solution: str
    sample: Sample


@dataclass(frozen=True)
class Job:
    """A file, a function in it ("" for the one that is meant), and calls to make."""

    path: str
    name: str
    arguments: Mapping[str, Any]
    mode: Mode
    calls: tuple[Call, ...] = ()
    num_threads: int = 1


@dataclass(frozen=True)
class Said:
    """What came of one call. `none`: TRL's word that the function does not score this sample; `empty`: no number."""

    kind: Kind
    score: float = 0.0
    words: str = ""
    seconds: float = 0.0
