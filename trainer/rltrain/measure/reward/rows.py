"""Rows of data with ground truths that differ, for answers that are known to be right or wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from rltrain.config.schema import DataConfig
from rltrain.core.errors import UserError
from rltrain.data.readers import RawRow, read_file, resolve_files
from rltrain.data.schema import check_row
from rltrain.measure.reward.calls import Sample

TRUTHS = ("ground_truth", "solution", "answer", "label", "target")
"""Columns that hold the ground truth in data without verl's `reward_model`, the likeliest first."""
MOST_ROWS, MOST_READ = 6, 512


def samples_of(name: str, prompt_key: str = "prompt") -> tuple[Sample, ...]:
    """The first rows of the file or directory NAME whose ground truths differ, at most MOST_ROWS of them.

    Raises:
        UserError: there is no such file, it cannot be read, or a row has no prompt.
    """
    file = resolve_files(name)[0]
    found: dict[str, Sample] = {}
    for raw in islice(read_file(file), MOST_READ):
        sample = _sample(raw, prompt_key)
        found.setdefault(sample.truth_text or repr(sample.truth), sample)
        if len(found) == MOST_ROWS:
            break
    if not found:
        raise UserError(f"{file}: no row in it")
    return tuple(found.values())


def _sample(raw: RawRow, prompt_key: str) -> Sample:
    values = {"data_source": "", **raw.values}
    if not values["data_source"]:
        values["data_source"] = "unnamed"  # TRL's data names none
    row = check_row(RawRow(raw.file, raw.place, values), DataConfig(prompt_key=prompt_key), "train")
    truth = row.ground_truth
    if truth is None:
        truth = next((raw.values[name] for name in TRUTHS if raw.values.get(name) is not None), None)
    return Sample(
        place=raw.place,
        source=row.data_source,
        truth=truth,
        truth_text=text_of(truth),
        messages=row.messages,
        is_plain=row.is_plain,
        solution=_solution(row.extra_info) or _solution(raw.values),
        extra=row.extra_info,
        columns=raw.values,
    )


def text_of(truth: Any) -> str:
    """TRUTH as an answer would state it, the first of several; "" where it is no text or number."""
    if isinstance(truth, list) and truth:
        truth = truth[0]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(truth, bool) or not isinstance(truth, str | int | float):
        return ""
    text = str(truth).strip()
    try:
        inner: Any = json.loads(text)
    except ValueError:
        return text
    return "" if isinstance(inner, dict | list) else text


def _solution(values: Mapping[str, Any]) -> str:
    """A worked solution, longer than a bare answer."""
    texts = (values.get(name) for name in ("answer", "solution", "response"))
    return next((text for text in texts if isinstance(text, str) and len(text.split()) > 3), "")
