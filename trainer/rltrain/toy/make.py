"""Everything that a toy run needs, in one directory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rltrain.config.schema import RunConfig, ToyConfig
from rltrain.core.errors import UserError
from rltrain.toy.model import save_random_model
from rltrain.toy.rows import make_rows
from rltrain.toy.tasks import TASKS
from rltrain.toy.tokenizer import build_tokenizer, hold_loaded_equal

RECORD = "toy.json"
FORMAT = 2


class ToyPaths:
    """What was made."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = directory / "model"
        """Model and tokenizer, in Hugging Face layout; not there where `toy.model` names no architecture."""
        self.train_file = directory / "train.jsonl"
        """Training prompts."""
        self.val_file = directory / "val.jsonl"
        """Held-out prompts."""
        self.sft_file = directory / "sft.jsonl"
        """Demonstrations to learn from as they are."""
        self.sft_val_file = directory / "sft_val.jsonl"
        """Right answers to the held-out prompts."""


def make_toy(config: RunConfig, directory: Path) -> ToyPaths:
    """Write tokenizer and random model (where `toy.model` has sizes) and data of `config.toy` to DIRECTORY, all drawn
    from `trainer.seed`.

    What is there already from the same settings stays as it is; what is there from others is replaced. The directory
    appears whole or not at all.

    Raises:
        UserError: no `toy` section, settings that cannot be met, a directory that is not a toy's or cannot be written.
    """
    if config.toy is None:
        raise UserError(
            "the config has no toy section; set actor_rollout_ref.model.path and data.train_files, or add it"
        )
    paths, record = ToyPaths(directory), _record(config.toy, config.trainer.seed)
    if _is_whole(paths, record):
        return paths
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            _write(ToyPaths(fresh), config.toy, config.trainer.seed, record)
            _put(fresh, directory, record)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise UserError(f"the toy cannot be written to {directory}: {error.strerror or error}") from None
    return paths


def is_made(config: RunConfig, directory: Path) -> bool:
    """Whether DIRECTORY holds the toy of CONFIG, whole."""
    return config.toy is not None and _is_whole(ToyPaths(directory), _record(config.toy, config.trainer.seed))


def _record(toy: ToyConfig, seed: int) -> dict[str, Any]:
    """What the files depend on, as JSON has it."""
    return json.loads(json.dumps({"format": FORMAT, "seed": seed, "toy": toy.model_dump(mode="json")}))


def _read_record(directory: Path) -> dict[str, Any] | None:
    try:
        return json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _is_whole(paths: ToyPaths, record: dict[str, Any]) -> bool:
    parts = [paths.train_file, paths.val_file, paths.sft_file, paths.sft_val_file]
    parts += [paths.model] if record["toy"]["model"] else []
    return _read_record(paths.directory) == record and all(part.exists() for part in parts)


def _write(paths: ToyPaths, toy: ToyConfig, seed: int, record: dict[str, Any]) -> None:
    paths.directory.chmod(0o755)
    files = (paths.train_file, paths.val_file, paths.sft_file, paths.sft_val_file)
    for file, rows in zip(files, make_rows(toy, seed), strict=True):
        _write_lines(file, rows)
    if toy.model:
        _write_model(paths.model, toy, seed)
    _write_lines(paths.directory / RECORD, [record])


def _write_model(directory: Path, toy: ToyConfig, seed: int) -> None:
    symbols = TASKS[toy.task].symbols
    tokenizer = build_tokenizer(toy.vocab_size, symbols)
    tokenizer.save_pretrained(str(directory))  # pyright: ignore[reportUnknownMemberType]
    save_random_model(directory, toy, tokenizer, seed)
    hold_loaded_equal(directory, tokenizer, str(toy.model["model_type"]), symbols)


def _write_lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
        out.flush()
        os.fsync(out.fileno())


def _put(fresh: Path, directory: Path, record: dict[str, Any]) -> None:
    """Rename FRESH to DIRECTORY; a toy that is there goes, unless another process has just put the same one."""
    if directory.is_dir() and any(directory.iterdir()):
        if _is_whole(ToyPaths(directory), record):
            return
        if _read_record(directory) is None:
            raise UserError(f"{directory} exists and holds no toy; name another run directory or empty it")
        old = fresh.with_name(f"{fresh.name}.old")
        directory.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    fresh.rename(directory)
