"""Prompts and answers that a run wrote down: rltrain's `samples/step_N.jsonl`, verl's `rollout_data_dir/N.jsonl`.

Source of verl's rows: `_dump_generations` of verl/trainer/ppo/ray_trainer.py (input, output, gts, score, step, and
whatever else the reward function returned).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from rlcheck.facts.run import SampleRow
from rlcheck.measure.run.jsonl import each_line, parsed
from rlcheck.measure.run.series import CurveError, as_step

MOST_FILES = 64
MOST_ROWS = 64
_LONGEST = 2000
_FILE = re.compile(r"(?:step_)?(\d+)\.jsonl(?:\.gz)?")
_TAKEN = frozenset(("input", "output", "gts", "score", "step", "uid", "reward", "response_length", "policy_version"))


def read_samples(directory: Path) -> tuple[SampleRow, ...]:
    """Rows of up to `MOST_FILES` steps of DIRECTORY, first and last among them, `MOST_ROWS` of each, by step.

    Lines that are no sample are left out, files that cannot be read too.
    """
    try:
        numbered = [(int(match[1]), file) for file in directory.iterdir() if (match := _FILE.fullmatch(file.name))]
    except OSError:
        return ()
    numbered.sort()
    rows: list[SampleRow] = []
    for step, file in _spread(numbered):
        try:
            for line in islice(each_line(file), MOST_ROWS):
                record = parsed(line)
                row = _row(record, step) if record is not None else None
                if row is not None:
                    rows.append(row)
        except (OSError, EOFError, CurveError):
            continue
    return tuple(rows)


def _spread(files: list[tuple[int, Path]]) -> list[tuple[int, Path]]:
    """Up to `MOST_FILES` of FILES, evenly, with both ends."""
    if len(files) <= MOST_FILES:
        return files
    return [files[place * (len(files) - 1) // (MOST_FILES - 1)] for place in range(MOST_FILES)]


def _row(record: Mapping[str, Any], step: int) -> SampleRow | None:
    response = record.get("response", record.get("output"))
    if not isinstance(response, str):
        return None
    length, version = as_step(record.get("response_length")), as_step(record.get("policy_version"))
    own = as_step(record.get("step"))
    return SampleRow(
        step=step if own is None else own,
        uid=_text(record.get("uid")),
        source=_text(record.get("data_source")),
        prompt=_cut(_text(record.get("prompt", record.get("input")))),
        response=_cut(response),
        ground_truth=_cut(_text(record.get("ground_truth", record.get("gts")))),
        reward=_float(record.get("reward", record.get("score"))) or 0.0,
        parts=_parts(record),
        length=-1 if length is None else length,
        policy_version=-1 if version is None else version,
    )


def _parts(record: Mapping[str, Any]) -> dict[str, float]:
    """The parts of the reward: as rltrain names them, or verl's further numbers of the reward function."""
    parts = record.get("reward_parts")
    further = {name: value for name, value in record.items() if name not in _TAKEN}
    found = cast("dict[str, Any]", parts) if isinstance(parts, dict) else further
    numbers = {name: _float(value) for name, value in found.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def _float(value: object) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < float("inf") else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _cut(text: str) -> str:
    """TEXT without its middle if it is long: an answer's end says most."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]} […] {text[-_LONGEST // 2 :]}"
