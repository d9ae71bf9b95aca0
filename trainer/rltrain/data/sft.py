"""A data set to learn from as it is: every row checked, in tokens, with labels, within the limit of its length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from rltrain.config.schema import DataConfig, RunConfig
from rltrain.config.schema.sft import SftDataConfig
from rltrain.core.errors import UserError
from rltrain.data.dataset import FileMark
from rltrain.data.demonstrations import IGNORED, DemonstrationEncoder, Encoded
from rltrain.data.order import permutation
from rltrain.data.readers import RawRow, read_file, resolve_files
from rltrain.data.schema import check_conversation, check_row

Overlong = Literal["error", "left", "right", "leave out"]


@dataclass(frozen=True)
class SftSettings:
    """How rows become tokens."""

    max_length: int
    """Tokens of a row."""
    length_key: str
    """What sets it, for messages."""
    overlong: Overlong
    """What is done with a longer one: refused, cut at an end, left out."""
    messages_key: str = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    template_kwargs: tuple[tuple[str, Any], ...] = ()
    max_samples: int = -1
    """-1: all."""
    seed: int | None = None
    """Of the choice of so many; None: the first ones."""

    @classmethod
    def of(cls, data: SftDataConfig, max_samples: int) -> SftSettings:
        """Those of `rltrain sft`."""
        return cls(
            max_length=data.max_length,
            length_key="data.max_length",
            overlong="leave out" if data.filter_overlong_rows else data.truncation,
            messages_key=data.messages_key,
            prompt_key=data.prompt_key,
            response_key=data.response_key,
            template_kwargs=tuple(data.apply_chat_template_kwargs.items()),
            max_samples=max_samples,
            seed=data.seed if data.shuffle else None,
        )

    @classmethod
    def of_warmup(cls, config: RunConfig) -> SftSettings:
        """Those of a run's warm-up: rows may be as long as its samples."""
        data = config.data
        cut: dict[str, Overlong] = {"left": "left", "right": "right"}
        return cls(
            max_length=data.max_prompt_length + data.max_response_length,
            length_key="data.max_prompt_length + data.max_response_length",
            overlong="leave out" if data.filter_overlong_prompts else cut.get(data.truncation, "error"),
            prompt_key=data.prompt_key,
            template_kwargs=tuple(data.apply_chat_template_kwargs.items()),
        )


@dataclass(frozen=True)
class Demonstration:
    """One row in tokens."""

    place: str
    """`FILE:LINE` or `FILE:row N`."""
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    """Beside their own tokens: the token, or `IGNORED`."""

    @property
    def num_learnt(self) -> int:
        """Tokens that count in the loss; the first of a row follows nothing, so it never does."""
        return sum(label != IGNORED for label in self.labels[1:])


@dataclass(frozen=True)
class SftReport:
    """What became of the rows that were read."""

    split: str
    num_read: int
    num_chosen: int
    num_left_out: int
    """Too long, or with nothing to learn left after they were cut."""
    num_cut: int
    num_tokens: int
    num_learnt: int
    longest: int
    """Tokens, before anything is cut."""

    def line(self) -> str:
        """For the console."""
        kept = self.num_chosen - self.num_left_out
        parts = [f"{self.split} data: {kept} rows of {self.num_tokens} tokens, {self.num_learnt} of them learnt"]
        parts.append(f"longest {self.longest} tokens")
        if self.num_chosen < self.num_read:
            parts.append(f"{self.num_chosen} chosen of {self.num_read}")
        if self.num_left_out:
            parts.append(f"{self.num_left_out} left out (too long, or nothing to learn in what fits)")
        if self.num_cut:
            parts.append(f"{self.num_cut} cut to the limit")
        return ", ".join(parts)


@dataclass(frozen=True)
class SftDataset:
    """Rows in the order of their files."""

    rows: tuple[Demonstration, ...]
    report: SftReport
    files: tuple[FileMark, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Demonstration:
        return self.rows[index]

    def __iter__(self) -> Iterator[Demonstration]:
        return iter(self.rows)


def build_sft(
    files: str | tuple[str, ...] | None, key: str, settings: SftSettings, tokenizer: PreTrainedTokenizerBase
) -> SftDataset:
    """Read, check, choose and tokenize the rows of FILES; nothing is read from them later.

    Args:
        files: to read.
        key: of the config, that names them.
        settings: how.
        tokenizer: of the model, with its chat template.

    Raises:
        UserError: no file, no rows, or a row that is not as it must be.
    """
    if not files:
        raise UserError(f"{key} is not set; name a .jsonl or .parquet file or a saved data set")
    paths = resolve_files(files)
    read = [raw for path in paths for raw in _rows(path, key)]
    fitting = _Fitting(settings, tokenizer)
    chosen = _choose(read, key, settings)
    kept = [(raw.file, row) for raw in chosen if (row := fitting.fit(raw)) is not None]
    rows = tuple(row for _, row in kept)
    if not rows:
        raise UserError(
            f"{key}: none of {len(chosen)} rows can be learnt from within {settings.length_key}={settings.max_length} "
            f"(the longest has {fitting.longest} tokens); raise it"
        )
    report = SftReport(
        split=key.removeprefix("data.").removesuffix("_files").removesuffix(".files"),
        num_read=len(read),
        num_chosen=len(chosen),
        num_left_out=len(chosen) - len(rows),
        num_cut=fitting.num_cut,
        num_tokens=sum(len(row.input_ids) for row in rows),
        num_learnt=sum(row.num_learnt for row in rows),
        longest=fitting.longest,
    )
    return SftDataset(rows, report, tuple(_mark(path, kept) for path in paths))


def _rows(path: Path, key: str) -> list[RawRow]:
    rows = list(read_file(path))
    if not rows:
        raise UserError(f"{path} holds no rows; name another file ({key})")
    return rows


def _choose(rows: list[RawRow], key: str, settings: SftSettings) -> list[RawRow]:
    """At most `max_samples` rows in file order: drawn by the seed, or the first."""
    limit = settings.max_samples
    if limit <= 0 or limit >= len(rows):
        return rows
    if settings.seed is None:
        return rows[:limit]
    drawn = permutation(len(rows), f"{key} rows of seed {settings.seed}")[:limit]
    return [rows[index] for index in sorted(drawn)]


class _Fitting:
    """Encodes rows one by one and counts what happened to them."""

    def __init__(self, settings: SftSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        self._settings = settings
        self._encoder = DemonstrationEncoder(tokenizer, dict(settings.template_kwargs))
        self._plain = DataConfig(prompt_key=settings.prompt_key)
        self.longest = self.num_cut = 0

    def fit(self, raw: RawRow) -> Demonstration | None:
        """RAW in tokens; None if it is left out."""
        ids, labels = self._encoded(raw)
        limit, overlong = self._settings.max_length, self._settings.overlong
        self.longest = max(self.longest, len(ids))
        if len(ids) > limit:
            if overlong == "error":
                key = self._settings.length_key
                raise UserError(f"{raw.place}: the row has {len(ids)} tokens, {key} is {limit}; {self._way_out()}")
            if overlong == "leave out":
                return None
            ids, labels = (ids[:limit], labels[:limit]) if overlong == "right" else (ids[-limit:], labels[-limit:])
            self.num_cut += 1
        found = Demonstration(raw.place, tuple(ids), tuple(labels))
        return found if found.num_learnt else None

    def _way_out(self) -> str:
        if self._settings.length_key != "data.max_length":
            return "raise one of them, or leave such rows out with data.filter_overlong_prompts=true"
        return (
            "raise it, leave such rows out with data.filter_overlong_rows=true, or cut them with "
            "data.truncation=left|right"
        )

    def _encoded(self, raw: RawRow) -> Encoded:
        settings = self._settings
        if settings.messages_key in raw.values:
            return self._encoder.conversation(check_conversation(raw, settings.messages_key), raw.place)
        if settings.prompt_key not in raw.values and not {"question", "answer"} <= set(raw.values):
            raise UserError(
                f"{raw.place}: neither {settings.messages_key} (a conversation) nor {settings.prompt_key} and "
                f"{settings.response_key}; the row has {', '.join(sorted(raw.values)) or 'nothing'}; the columns are "
                "named by data.messages_key, data.prompt_key and data.response_key"
            )
        return self._encoder.answer(check_row(raw, self._plain, "sft", settings.response_key))


def _mark(path: Path, rows: Sequence[tuple[Path, Demonstration]]) -> FileMark:
    digest, num_rows = hashlib.sha256(), 0
    for file, row in rows:
        if file == path:
            digest.update(json.dumps([row.input_ids, row.labels]).encode())
            num_rows += 1
    return FileMark(str(path), num_rows, digest.hexdigest())
