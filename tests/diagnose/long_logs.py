"""Logs by the thousand lines, and an index with a needle, for the tests of reading."""

from __future__ import annotations

import random

from rlcheck.diagnose.condense import WHOLE, Growing
from rlcheck.diagnose.model import CondensedLog
from rlcheck.diagnose.signatures import Index, Known
from rlcheck.playbook import Signature

NEEDLE = "the frobnicator of rank 7 is jammed"
INDEX = Index(
    playbooks=(
        Known(
            id="jammed", signatures=(Signature(pattern=r"frobnicator of rank \d+ is jammed", literal="frobnicator"),)
        ),
        Known(id="tiny", signatures=(Signature(pattern="xq[12]z", literal="xq"),)),
        Known(id="usual", signatures=(Signature(pattern=r"step \d+ of [a-z]+ failed", literal="step"),)),
    )
)


def condensed(data: bytes, index: Index = INDEX) -> CondensedLog:
    growing = Growing(index)
    for start in range(0, len(data), 1 << 20):
        growing.feed(data[start : start + (1 << 20)])
    return growing.state("log")


def texts(log: CondensedLog) -> list[str]:
    return [line.text for line in log.lines]


def filler(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [f"step {number} loss {rng.random():.9f} reward {rng.random():.9f}" for number in range(1, count + 1)]


LONG = filler(80_000)
assert len("\n".join(LONG)) > WHOLE
