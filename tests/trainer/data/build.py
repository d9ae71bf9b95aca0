"""Rows, files and a tokenizer for the tests of the data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rltrain.config.schema import DataConfig
from rltrain.data.readers import RawRow, read_file, resolve_files
from rltrain.data.schema import CheckedRow, check_row
from rltrain.toy.tokenizer import build_tokenizer


def tokenizer(template: bool = True) -> PreTrainedTokenizerBase:
    made: Any = build_tokenizer(None)
    if not template:
        made.chat_template = None
    return made


def row(content: str = "reverse 1234", truth: Any = "4321", **more: Any) -> dict[str, Any]:
    return {
        "data_source": "toy/reverse",
        "prompt": [{"role": "user", "content": content}],
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train"},
        **more,
    }


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def numbered(path: Path, count: int) -> Path:
    return jsonl(path, *(row(f"copy {i:04d}", f"{i:04d}") for i in range(count)))


def read_rows(files: str | tuple[str, ...]) -> Iterator[RawRow]:
    for path in resolve_files(files):
        yield from read_file(path)


def checked(path: Path, split: Any = "train", **config: Any) -> list[CheckedRow]:
    return [check_row(raw, DataConfig(**config), split) for raw in read_rows(str(path))]
