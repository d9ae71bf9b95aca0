"""The first value in which a run that was resumed differs from one that was never stopped, and what it speaks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcheck.facts.rehearsal import Difference, Lost

_UNREPEATABLE = ("timing_s/", "timing_per_token_ms/", "perf/", "engine/", "val/")
"""Time, speed, memory; validations, which a rehearsal does not make."""
_ORDER = (
    "prompt_length/", "audit.sampled_tokens_sha256", "response_length/", "response/", "critic/score/",
    "critic/rewards/", "critic/values/", "critic/advantages/", "critic/returns/", "actor/lr", "critic/lr",
)  # fmt: skip
"""As a step makes them; what is not here comes after these."""
_LONGEST = 60
Record = Mapping[str, Any]


def values(record: Record) -> dict[str, str]:
    """What two equal steps share, as text that keeps each bit: metrics, and the audit's facts."""
    flat = {name: value for name, value in record.items() if name != "audit"}
    flat |= {f"audit.{name}": value for name, value in dict(record.get("audit") or {}).items()}
    return {
        name: json.dumps(value, sort_keys=True) for name, value in flat.items() if not name.startswith(_UNREPEATABLE)
    }


def first_difference(
    straight: Iterable[Record], other: Iterable[Record], steps: range
) -> tuple[Difference | None, int]:
    """The first difference within STEPS, in the order in which a step makes its values; and how many were compared.

    Of a step that is there more than once the last counts, as a resumed run writes it again.
    """
    one, two = ({record["step"]: values(record) for record in records} for records in (straight, other))
    compared = 0
    for step in steps:
        if step not in two:
            return Difference(step, "step", "there", "missing"), compared
        for name in sorted(one[step].keys() | two[step].keys(), key=_place):
            compared += 1
            here, there = one[step].get(name, "missing"), two[step].get(name, "missing")
            if here != there:
                return Difference(step, name, here[:_LONGEST], there[:_LONGEST]), compared
    return None, compared


def _place(name: str) -> tuple[int, str]:
    return next((n for n, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER)), name


def lost_part(first: Difference, straight: Path, other: Path, audits: tuple[Record, Record]) -> Lost:
    """Which part of the training was not restored.

    Args:
        first: the first difference after the resume.
        straight: folder with the samples of each step, of the run that was not stopped.
        other: the same of the one that was.
        audits: records of the first step after the resume, of both.
    """
    mine, theirs = (set(_prompts(place / f"{first.step}.jsonl")) for place in (straight, other))
    if mine and theirs and mine != theirs:
        return "data position"
    if first.name in ("actor/lr", "critic/lr"):
        return "schedule"
    one, two = (dict(record.get("audit") or {}) for record in audits)
    if one.get("sampled_tokens_sha256") != two.get("sampled_tokens_sha256"):
        return "weights or random numbers"
    return "optimizer"


def _prompts(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        yield str(json.loads(line).get("input"))
