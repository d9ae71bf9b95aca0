"""From options and a config to what is read and against what it is held."""

from __future__ import annotations

import contextlib
import glob
import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.base import Fact, value_or
from rlcheck.facts.config import ConfigFacts, ModelFacts, TokenizerFacts
from rlcheck.facts.data import Asked
from rlcheck.measure.config.fields import key_of
from rlcheck.measure.data.rewards import Reward, reward_of

PROMPT_KEYS = ("prompt", "messages", "context_messages", "conversations", "question", "problem", "query", "instruction",
               "input", "text")  # fmt: skip
"""Tried in this order where no config names the column."""
SOURCE_KEYS = ("data_source", "datasource", "source", "dataset")
TRUTH_KEYS = ("ground_truth", "answer", "solution", "target", "label")
_SUFFIXES = {".jsonl": "lines", ".ndjson": "lines", ".json": "lines", ".parquet": "parquet", ".arrow": "arrow"}
_KEYS = ("data.prompt_key", "data.source_key", "data.max_prompt_length", "data.train_batch_size",
         "data.filter_overlong_prompts", "reward.function_path", "actor.model.custom_chat_template")  # fmt: skip
_PEEK_BYTES = 1 << 20
_PEEK_LINES = 50


@dataclass(frozen=True)
class Source:
    """A file or directory to read. `format` as in `DataFile`."""

    path: str
    split: str
    format: str


@dataclass(frozen=True)
class Wanted:
    """What the command line says."""

    files: tuple[str, ...] = ()
    val_files: tuple[str, ...] = ()
    tokenizer: str = ""
    prompt_key: str = ""
    first: int = 5


@dataclass(frozen=True)
class Plan:
    """What is read, against what, and the options of the workers."""

    sources: tuple[Source, ...]
    asked: Asked
    options: dict[str, Any]
    tokenizer: str


class PlanError(UserError):
    """One line for the user."""


def make_plan(wanted: Wanted, run: ConfigFacts | None, seed: int = 0) -> Plan:
    """What to do for WANTED and the config RUN.

    Raises:
        PlanError: no file, one that does not exist, or a tokenizer that is not there.
    """
    sources = tuple(_sources(wanted, run))
    reward = reward_of(run)
    asked = _asked(wanted, run, reward)
    tokenizer = _tokenizer(wanted, run)
    model = run.spec.actor.model if run is not None else None
    options: dict[str, Any] = {
        "first": wanted.first,
        "framework": asked.framework,
        "has_config": run is not None,
        "rules": list(reward.rules),
        "dispatch": reward.dispatch or {},
        "prefixes": reward.prefixes or {},
        "scores_all": reward.scores_all,
        "tokenizer": tokenizer,
        "trust_remote_code": model is not None and model.trust_remote_code,
        "chat_template": _template(model.custom_chat_template) if model is not None else "",
        "template_kwargs": dict(run.spec.data.template_kwargs) if run is not None else {},
        "max_prompt_length": asked.max_prompt_length,
        "seed": seed,
    }
    return Plan(sources, asked, options, tokenizer)


def _template(given: str | None) -> str:
    """A chat template: as text, or the name of the file that it is in."""
    if given and "\n" not in given and "{" not in given and os.path.isfile(given):
        return Path(given).read_text(encoding="utf-8")
    return given or ""


def _sources(wanted: Wanted, run: ConfigFacts | None) -> Iterable[Source]:
    train, val = wanted.files, wanted.val_files
    if run is not None:
        train = train or run.spec.data.train_files
        val = val or (() if wanted.files else run.spec.data.val_files)
    if not train and not val:
        made = f": {run.spec.data.made}" if run is not None and run.spec.data.made else ""
        raise PlanError(f"no data file to read{made}; name one: rlcheck data FILE")
    for split, names in (("train", train), ("val", val)):
        for name in names:
            path = os.path.normpath(os.path.expanduser(os.path.expandvars(name)))
            for found in _within(path) if name in (*wanted.files, *wanted.val_files) else (path,):
                _refuse_other_kinds(name, found)
                yield Source(found, split, format_of(found))


def _within(path: str) -> Sequence[str]:
    """PATH; or the files of data in it, where it is a directory of such files; or those that it is a pattern of."""
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        saved = any(name in ("state.json", "dataset_dict.json") or name.endswith(".arrow") for name in names)
        files = [os.path.join(path, name) for name in names if name.lower().endswith((*_SUFFIXES, ".gz"))]
        return [path] if saved or not files else files
    return [path] if os.path.lexists(path) else sorted(glob.glob(path, recursive=True)) or [path]


def _refuse_other_kinds(name: str, path: str) -> None:
    """What is no file and no directory: each is read more than once, and from the middle.

    Raises:
        PlanError: it is not there, or a pipe, a device, a socket.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        where = "" if path == name and os.path.isabs(path) else f" (looked for {os.path.abspath(path)})"
        said = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be used: {error.strerror}"
        hint = "; write what comes from standard input to a file first" if name == "-" else "; check the path"
        raise PlanError(f"data file {name} {said}{where}{hint}") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise PlanError(f"{name} is no file but a pipe or a device; write what comes from it to a file first")


def format_of(path: str) -> str:
    """How PATH is read: by its name, else by its first bytes."""
    if os.path.isdir(path):
        return "arrow"
    name = path.lower()
    if name.endswith(".gz"):
        return "gz"
    known = next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), "")
    if known not in ("", "lines"):
        return known
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:  # said where it is read
        return "lines"
    if head.startswith(b"PAR1"):
        return "parquet"
    return "array" if name.endswith(".json") and head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[") else "lines"


def _asked(wanted: Wanted, run: ConfigFacts | None, reward: Reward) -> Asked:
    if run is None:
        return Asked(prompt_key=wanted.prompt_key)
    data = run.spec.data
    return Asked(
        framework=run.framework,
        source=run.source,
        prompt_key=wanted.prompt_key or ("" if "data.prompt_key" in run.without else data.prompt_key),
        source_key=data.source_key,
        keys={name.rpartition(".")[2]: key_of(run, name) or name for name in _KEYS},
        max_prompt_length=0 if "data.max_prompt_length" in run.without else data.max_prompt_length,
        filter_overlong_prompts=data.filter_overlong_prompts,
        truncation=data.truncation,
        train_batch_size=0 if "data.train_batch_size" in run.without else data.train_batch_size,
        train_max_samples=data.train_max_samples,
        multi_turn=run.spec.rollout.multi_turn,
        reward=reward.words,
        scored_sources=reward.sources,
    )


def _tokenizer(wanted: Wanted, run: ConfigFacts | None) -> str:
    """The directory of the tokenizer, "" where there is none to be had."""
    if wanted.tokenizer:
        path = os.path.abspath(os.path.expanduser(wanted.tokenizer))
        if not os.path.isdir(path):
            raise PlanError(f"--tokenizer {wanted.tokenizer}: no such directory; name one with tokenizer.json in it")
        return path
    if run is None:
        return ""
    actor: Fact[ModelFacts] = run.models.get("actor", Fact())
    found = value_or(value_or(actor, ModelFacts()).tokenizer, TokenizerFacts())
    model = run.spec.actor.model
    candidates = (found.directory, model.tokenizer_path, model.path)
    return next((os.path.abspath(os.path.expanduser(c)) for c in candidates
                 if c and os.path.isdir(os.path.expanduser(c))), "")  # fmt: skip


def peek(source: Source) -> tuple[tuple[str, ...], float]:
    """Columns of the first rows of a file of lines, and the mean length of its lines in bytes."""
    names: dict[str, None] = {}
    head = b""
    with contextlib.suppress(OSError, EOFError, zlib.error):  # what came before the end of a cut file is enough
        opener = gzip.open if source.format == "gz" else open
        with opener(source.path, "rb") as file:
            while len(head) < _PEEK_BYTES and (more := file.read1(_PEEK_BYTES - len(head))):
                head += more
    lines = head.splitlines()[:-1] if len(head) == _PEEK_BYTES else head.splitlines()
    for line in lines[:_PEEK_LINES]:
        try:
            row: Any = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            names.update(dict.fromkeys(cast("dict[str, Any]", row)))
    return tuple(names), sum(map(len, lines)) / max(1, len(lines)) + 1


def guess(asked: Asked, columns: Sequence[str]) -> Asked:
    """ASKED with the keys that no config named, taken from what COLUMNS are called; and with what looks like those
    that a config named and no file has."""
    found: dict[str, str] = {}
    if not asked.prompt_key:
        found["prompt_key"] = next((key for key in PROMPT_KEYS if key in columns), "")
    if not asked.framework:
        found["source_key"] = next((key for key in SOURCE_KEYS if key in columns), "")
        known = "reward_model" in columns or "ground_truth" in columns
        found["truth_key"] = "" if known else next((key for key in TRUTH_KEYS if key in columns), "")
    guessed = tuple(f"{name.partition('_')[0]}: {key}" for name, key in found.items() if key)
    usual = {"prompt_key": PROMPT_KEYS, "source_key": SOURCE_KEYS}
    wrong = [name for name in usual if name not in found and getattr(asked, name) not in ("", *columns)]
    likely = {name: next((key for key in usual[name] if key in columns), "") for name in wrong}
    return msgspec.structs.replace(asked, guessed=guessed, likely={k: v for k, v in likely.items() if v}, **found)
