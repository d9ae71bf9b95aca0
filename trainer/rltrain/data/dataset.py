"""A data set in memory: every row checked, in tokens, within the prompt's limit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rltrain.config.schema import DataConfig
from rltrain.core.errors import UserError
from rltrain.data.order import permutation
from rltrain.data.readers import read_file, resolve_files
from rltrain.data.schema import CheckedRow, Row, Split, check_row
from rltrain.data.template import PromptEncoder

KEYS: dict[Split, str] = {"train": "data.train_files", "val": "data.val_files"}


@dataclass(frozen=True)
class FileMark:
    """One file of a data set, and what tells whether its rows are still the same."""

    path: str
    num_rows: int
    """Rows in the data set."""
    sha256: str
    """Over token ids, ground truths and all else that training reads."""


@dataclass(frozen=True)
class DatasetReport:
    """What became of the rows that were read."""

    split: Split
    num_read: int
    num_chosen: int
    """Left by `data.train_max_samples` or `data.val_max_samples`."""
    num_filtered: int
    """Taken out by `data.filter_overlong_prompts`."""
    num_truncated: int
    """Cut to `data.max_prompt_length`."""
    num_without_template: int
    """Plain strings used as they are."""
    longest_prompt: int
    """Tokens, before anything is cut or taken out."""

    def line(self) -> str:
        """For the console."""
        kept = self.num_chosen - self.num_filtered
        parts = [f"{self.split} data: {kept} rows", f"longest prompt {self.longest_prompt} tokens"]
        if self.num_chosen < self.num_read:
            parts.append(f"{self.num_chosen} chosen of {self.num_read}")
        if self.num_filtered:
            parts.append(f"{self.num_filtered} too long and left out")
        if self.num_truncated:
            parts.append(f"{self.num_truncated} cut to the limit")
        if self.num_without_template:
            parts.append(f"{self.num_without_template} used without a chat template")
        return ", ".join(parts)


@dataclass(frozen=True)
class Dataset:
    """Rows in the order of their files."""

    rows: tuple[Row, ...]
    report: DatasetReport
    files: tuple[FileMark, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def build_dataset(
    files: str | tuple[str, ...] | None, config: DataConfig, tokenizer: PreTrainedTokenizerBase, split: Split
) -> Dataset:
    """Read, check, choose, tokenize and measure the rows of FILES; nothing is read from them later.

    Raises:
        UserError: no file, no rows, or a row that is not as it must be.
    """
    if not files:
        raise UserError(f"{KEYS[split]} is not set; name a .jsonl or .parquet file or a saved data set")
    paths = resolve_files(files)
    checked = [row for path in paths for row in _check_file(path, config, split)]
    chosen = _choose(checked, config, split)
    fitting = _Fitting(PromptEncoder(tokenizer, config.apply_chat_template_kwargs), config, split)
    rows = tuple(row for row in (fitting.fit(row) for row in chosen) if row is not None)
    if not rows:
        raise UserError(
            f"{KEYS[split]}: all {len(chosen)} prompts are longer than data.max_prompt_length="
            f"{config.max_prompt_length} (the longest has {fitting.longest} tokens); raise it"
        )
    report = DatasetReport(
        split,
        num_read=len(checked),
        num_chosen=len(chosen),
        num_filtered=len(chosen) - len(rows),
        num_truncated=fitting.num_truncated,
        num_without_template=fitting.num_without_template,
        longest_prompt=fitting.longest,
    )
    return Dataset(rows, report, tuple(_mark(path, rows, fitting.files) for path in paths))


def _check_file(path: Path, config: DataConfig, split: Split) -> list[CheckedRow]:
    rows = [check_row(raw, config, split) for raw in read_file(path)]
    if not rows:
        raise UserError(f"{path} holds no rows; name another file ({KEYS[split]})")
    return rows


def _choose(rows: list[CheckedRow], config: DataConfig, split: Split) -> list[CheckedRow]:
    """At most `max_samples` rows in file order: drawn by `data.seed` if `data.shuffle`, else the first (as in verl)."""
    limit = {"train": config.train_max_samples, "val": config.val_max_samples}[split]
    if limit <= 0 or limit >= len(rows):
        return rows
    if not config.shuffle:
        return rows[:limit]
    drawn = permutation(len(rows), f"{split} rows of seed {config.seed}")[:limit]
    return [rows[index] for index in sorted(drawn)]


class _Fitting:
    """Encodes rows one by one and counts what happened to them."""

    def __init__(self, encoder: PromptEncoder, config: DataConfig, split: Split) -> None:
        self.encoder, self.config, self.split = encoder, config, split
        self.longest = self.num_truncated = self.num_without_template = 0
        self.files: list[Path] = []
        """The file of each row that was kept."""

    def fit(self, row: CheckedRow) -> Row | None:
        """ROW in tokens; None if it is too long and `data.filter_overlong_prompts` says to leave it out."""
        text, ids = self.encoder.encode(row.messages, row.is_plain, row.raw.place)
        limit, num_tokens = self.config.max_prompt_length, len(ids)
        self.longest = max(self.longest, num_tokens)
        if num_tokens > limit:
            if self.config.filter_overlong_prompts:
                return None
            ids = self._cut(ids, row.raw.place)
            text = self.encoder.decode(ids)
        self.num_truncated += num_tokens > limit
        self.num_without_template += not self.encoder.has_template
        self.files.append(row.raw.file)
        index = len(self.files) - 1
        return Row(
            index,
            row.messages,
            text,
            tuple(ids),
            row.data_source,
            row.ground_truth,
            row.extra_info,
            row.raw.place,
            uid=f"{self.split}-{index}",
        )

    def _cut(self, ids: list[int], place: str) -> list[int]:
        limit = self.config.max_prompt_length
        if self.config.truncation == "error":
            raise UserError(
                f"{place}: the prompt has {len(ids)} tokens, data.max_prompt_length is {limit}; raise it, leave such "
                "rows out with data.filter_overlong_prompts=true, or cut them with data.truncation=left|right|middle"
            )
        head = {"left": 0, "right": limit, "middle": limit // 2}[self.config.truncation]
        return ids[:head] + ids[len(ids) - (limit - head) :]


def _mark(path: Path, rows: Sequence[Row], files: Sequence[Path]) -> FileMark:
    digest, num_rows = hashlib.sha256(), 0
    for row, file in zip(rows, files, strict=True):
        if file == path:
            facts = [row.prompt_ids, row.ground_truth, row.data_source, row.extra_info]
            digest.update(json.dumps(facts, sort_keys=True, default=repr).encode())
            num_rows += 1
    return FileMark(str(path), num_rows, digest.hexdigest())
