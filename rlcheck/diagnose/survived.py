"""What a run has survived: failures after which it went on, and texts in its log that others wrote.

A run prints the answers of its model and the output of its tools. These hold tracebacks and words of errors that are
not the run's own; and a reward worker that fails once and is tried again has not ended anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlcheck.diagnose.failures import Failure
from rlcheck.diagnose.hits import Hit
from rlcheck.diagnose.lines import Message

_STEP = re.compile(
    r"\bstep[:=] ?\d+ +- |\{'(?:loss|eval_loss)': |^step \d+\b.{0,40}\breward|\bGlobal step \d+: \{"
    r"|\btrainer:train:\d+ - \{'policy_loss'"
)
_STEP_HINTS = ("step", "{'", "trainer:train:")
"""One of these is in whatever `_STEP` finds."""
_DONE = re.compile(
    r"\{'train_runtime': |^Final validation metrics"
    r"|^(?:\w+: )?Training (?:is )?(?:finished|complete|completed|done)\b"
)
_SAMPLE = re.compile(r"\[(?:prompt|response|output|completion)\] ")
_SAMPLE_ENDS = re.compile(r"\[(?:score|ground_truth|gts|reward|data_source)\]")
_MOST_SAMPLE = 400
"""Lines that a printed sample may have; without an end within so many it is taken for something else."""
_RECORD = re.compile(
    r"\s*\{.{0,400}\"(?:prompt|prompts|messages|input|question)\": ?.{1,4000}"
    r"\"(?:response|responses|completion|output|answer)\": ?"
)


def is_step(message: Message) -> bool:
    """Whether this is a line that a trainer prints after each step."""
    return any(hint in message.text for hint in _STEP_HINTS) and _STEP.search(message.text) is not None


class Course:
    """Which failures the run has left behind it, and whether it has left all of them."""

    def __init__(self, logs: Sequence[Sequence[Message]], found: Sequence[Failure], hits: Sequence[Hit]) -> None:
        """See how far each log reports progress, and what comes after that."""
        self._steps = [[m.at for m in log if is_step(m) or _DONE.search(m.text)] for log in logs]
        self.went_on = all(self.survived(failure.message) for failure in found) and all(
            self.survived(hit.message) or is_step(hit.message) for hit in hits if hit.signature.status == "fail"
        )

    def survived(self, message: Message, steps: int = 1) -> bool:
        """Whether the run made so many steps after this line; the numbers of a step stay with it."""
        later = self._steps[message.log][-steps:]
        return len(later) == steps and message.at < later[0] and not is_step(message)

    def survived_all(self, hits: Sequence[Hit], steps: int = 1) -> bool:
        """Whether the run made so many steps after each of these hits."""
        return all(self.survived(hit.message, steps) for hit in hits)


def own_words(log: Sequence[Message]) -> list[Message]:
    """The log with the lines left empty that quote a model: samples between their marks, records of a rollout."""
    quoted = {message.at for message in log if _RECORD.match(message.text)} | _in_samples(log)
    if not quoted:
        return list(log)
    return [_emptied(message) if message.at in quoted else message for message in log]


def _in_samples(log: Sequence[Message]) -> set[int]:
    quoted: set[int] = set()
    begins = -1
    for message in log:
        if begins < 0:
            begins = message.at if _SAMPLE.match(message.text) else -1
        elif _SAMPLE_ENDS.match(message.text):
            quoted.update(range(begins, message.at))
            begins = -1
        elif message.at - begins > _MOST_SAMPLE:
            begins = -1
    return quoted


def _emptied(message: Message) -> Message:
    return Message(log=message.log, at=message.at, number=message.number, text="", whole="")
