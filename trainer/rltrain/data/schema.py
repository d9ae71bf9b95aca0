"""What a row must have, and the two shapes that are understood.

verl's: `prompt` (a list of `{role, content}`, or a string), `data_source`, `reward_model: {style, ground_truth}` (or a
column `ground_truth`), `extra_info`; for demonstrations `prompt` and `response`, or a whole conversation in `messages`.

GSM8K's own (https://huggingface.co/datasets/openai/gsm8k): `question` and `answer` with `#### NUMBER` at its end, when
the prompt column is missing. It becomes what verl's preparation of GSM8K makes of it: one user message (the question
and the request to answer after ####), data source `openai/gsm8k`, the number without commas as ground truth.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast

from rltrain.config.schema import DataConfig
from rltrain.core.errors import UserError
from rltrain.data.readers import RawRow, read_file

Split = Literal["train", "val", "sft"]
Message = dict[str, str]

ROLES = ("system", "user", "assistant", "tool")
GSM8K = "openai/gsm8k"
GSM8K_REQUEST = 'Let\'s think step by step and output the final answer after "####".'
GSM8K_ANSWER = re.compile(r"####\s*\$?(-?[0-9.,]*[0-9])")


@dataclass(frozen=True)
class CheckedRow:
    """A row that has what it must have; not yet tokens."""

    raw: RawRow
    messages: tuple[Message, ...]
    is_plain: bool
    """The prompt was a string."""
    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any]
    response: str | None


@dataclass(frozen=True)
class Row:
    """One prompt, ready for the rollout."""

    index: int
    """Position in the data set, counted from 0."""
    messages: tuple[Message, ...]
    prompt_text: str
    """As the model sees it, template included."""
    prompt_ids: tuple[int, ...]
    data_source: str
    ground_truth: Any
    """None: the row has none."""
    extra_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    place: str = ""
    """`FILE:LINE` or `FILE:row N`."""
    uid: str = ""
    """Names the prompt in this run: the loader makes it unique over epochs."""


def check_row(raw: RawRow, config: DataConfig, split: Split, response_key: str = "response") -> CheckedRow:
    """Hold RAW against the schema. RESPONSE_KEY: column of the answer, in rows of demonstrations.

    Raises:
        UserError: `PLACE:FIELD: expected …, found …`.
    """
    values = raw.values
    if config.prompt_key not in values and _is_text(values.get("question")) and _is_text(values.get("answer")):
        return _gsm8k(raw, split)
    prompt = _take(raw, config.prompt_key, "a list of chat messages or a string (data.prompt_key names the column)")
    return CheckedRow(
        raw,
        _messages(raw, config.prompt_key, prompt),
        is_plain=isinstance(prompt, str),
        data_source=_data_source(raw, config.reward_fn_key, split),
        ground_truth=_ground_truth(raw),
        extra_info=_extra_info(raw),
        response=_text(raw, response_key, _take(raw, response_key, "a string")) if split == "sft" else None,
    )


def check_conversation(raw: RawRow, key: str) -> tuple[Message, ...]:
    """The messages in column KEY of RAW, at least one of which is the assistant's answer to others.

    Raises:
        UserError: `PLACE:FIELD: expected …, found …`.
    """
    expected = "a list of chat messages"
    found = _take(raw, key, expected)
    if not _is_list(found):
        raise _wrong(raw, key, expected, found)
    messages = tuple(_message(raw, f"{key}[{i}]", message) for i, message in enumerate(found))
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise UserError(
            f"{raw.place}:{key}: no message is the assistant's, so that nothing can be learnt; drop the row"
        )
    if roles[0] == "assistant":
        raise UserError(f"{raw.place}:{key}: the first message is the assistant's; begin with what it answers")
    return messages


def wrong_rows(config: DataConfig) -> Iterator[str]:
    """What is wrong with the first row of each file that is here: a column that is not there is missing in all."""
    splits: tuple[tuple[Split, Any], ...] = (("train", config.train_files), ("val", config.val_files))
    for split, files in splits:
        for name in (files,) if isinstance(files, str) else files or ():
            path = Path(os.path.expandvars(name)).expanduser()
            try:
                first = next(read_file(path), None) if path.exists() else None
                if first is not None:
                    check_row(first, config, split)
            except UserError as error:
                yield str(error)


def _gsm8k(raw: RawRow, split: Split) -> CheckedRow:
    question, answer = (_text(raw, key, raw.values[key]) for key in ("question", "answer"))
    found = GSM8K_ANSWER.findall(answer)
    if not found:
        raise _wrong(raw, "answer", "text with '#### NUMBER'", answer)
    return CheckedRow(
        raw,
        ({"role": "user", "content": f"{question} {GSM8K_REQUEST}"},),
        is_plain=False,
        data_source=GSM8K,
        ground_truth=found[-1].replace(",", ""),
        extra_info={"question": question, "answer": answer},
        response=answer if split == "sft" else None,
    )


def _take(raw: RawRow, key: str, expected: str) -> Any:
    if key not in raw.values:
        has = ", ".join(sorted(raw.values)) or "nothing"
        raise UserError(f"{raw.place}:{key}: missing; expected {expected}; the row has {has}")
    if raw.values[key] is None:
        raise _wrong(raw, key, expected, None)
    return raw.values[key]


def _messages(raw: RawRow, key: str, prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return ({"role": "user", "content": _text(raw, key, prompt)},)
    if not _is_list(prompt):
        raise _wrong(raw, key, "a list of chat messages or a string", prompt)
    if not prompt:
        raise UserError(f"{raw.place}:{key}: the prompt is empty; give it a message or drop the row")
    messages = tuple(_message(raw, f"{key}[{i}]", message) for i, message in enumerate(prompt))
    if messages[-1]["role"] == "assistant":
        raise UserError(
            f"{raw.place}:{key}: the last message is the assistant's, so that nothing is left to answer; "
            "end the prompt with the user's message"
        )
    return messages


def _message(raw: RawRow, where: str, message: Any) -> Message:
    if not _is_mapping(message):
        raise _wrong(raw, where, "an object with role and content", message)
    # A Parquet file gives every message all keys of the column, null where it has none.
    present = {name: value for name, value in message.items() if value is not None}
    for name in ("role", "content"):
        if name not in present:
            raise UserError(f"{raw.place}:{where}.{name}: missing; expected a string")
    for name, value in present.items():
        _string(raw, f"{where}.{name}", value)
    if present["role"] not in ROLES:
        raise _wrong(raw, f"{where}.role", f"one of {', '.join(ROLES)}", present["role"])
    if present["role"] != "system":
        _text(raw, f"{where}.content", present["content"])
    return cast(Message, present)


def _data_source(raw: RawRow, key: str, split: Split) -> str:
    if split == "sft" and key not in raw.values:
        return ""
    return _text(raw, key, _take(raw, key, "a string that names the source (data.reward_fn_key names the column)"))


def _ground_truth(raw: RawRow) -> Any:
    """`reward_model.ground_truth`, or the column `ground_truth`; None where the row has neither."""
    reward_model, key = raw.values.get("reward_model"), "ground_truth"
    source, where = raw.values, key
    if reward_model is not None:
        if not _is_mapping(reward_model):
            raise _wrong(raw, "reward_model", "an object with style and ground_truth", reward_model)
        source, where = reward_model, f"reward_model.{key}"
    if key not in source:
        return None
    truth = source[key]
    if truth is None:
        raise _wrong(raw, where, "the answer", None)
    _usable(raw, where, truth)
    return truth


def _extra_info(raw: RawRow) -> Mapping[str, Any]:
    extra = raw.values.get("extra_info")
    if extra is None:
        return {}
    if not _is_mapping(extra):
        raise _wrong(raw, "extra_info", "an object", extra)
    _usable(raw, "extra_info", extra)
    return extra


def _text(raw: RawRow, where: str, value: Any) -> str:
    """VALUE, a string with something in it."""
    text = _string(raw, where, value)
    if not text.strip():
        raise UserError(f"{raw.place}:{where}: empty; write its text or drop the row")
    return text


def _string(raw: RawRow, where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(raw, where, "a string", value)
    _usable(raw, where, value)
    return value


def _usable(raw: RawRow, where: str, value: Any) -> None:
    """Refuse what breaks later: NUL and half surrogate pairs in strings, numbers that are not finite."""
    if isinstance(value, str):
        if "\0" in value:
            raise UserError(f"{raw.place}:{where}: holds a NUL character (at {value.index(chr(0))}); remove it")
        if any("\ud800" <= mark <= "\udfff" for mark in value):
            raise UserError(f"{raw.place}:{where}: holds half a surrogate pair, which is no character; remove it")
    elif isinstance(value, float) and not math.isfinite(value):
        raise _wrong(raw, where, "a finite number", value)
    elif _is_mapping(value):
        for name, part in value.items():
            _usable(raw, f"{where}.{name}", part)
    elif _is_list(value):
        for number, part in enumerate(value):
            _usable(raw, f"{where}[{number}]", part)


def _wrong(raw: RawRow, where: str, expected: str, value: Any) -> UserError:
    found = "null" if value is None else f"{type(value).__name__} {value!r:.80}"
    return UserError(f"{raw.place}:{where}: expected {expected}, found {found}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
