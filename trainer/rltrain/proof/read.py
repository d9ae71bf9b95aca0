"""Reads a capsule: JSON and safetensors alone; one that is damaged or hostile is an error of one line and no more."""

# Safetensors' and transformers' loaders are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from msgspec.structs import replace
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer

from rlcheck.facts.capsule import SCHEMA, Capsule, CapsuleRow
from rltrain.proof import trl_config, verl_config

T = TypeVar("T")
MOST_BYTES = 256 << 20
"""Of one file of a capsule; rltrain writes no capsule above 64 MB."""
MOST_RANKS, MOST_STEPS = 1 << 16, 10_000_000
"""What no real step has more of."""
_CONFIGS = {"trl": trl_config.mapped, "verl": verl_config.mapped}
_TOKEN_FIELDS = ("input_ids", "attention_mask", "response_mask")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


class BadCapsule(ValueError):
    """Why a directory cannot be read as a capsule, in one line."""


@dataclass(frozen=True)
class Case:
    """One capsule in memory. `batch`: fields by name; `weights`: by moment, then by Hugging Face name."""

    path: Path
    head: Capsule
    rows: tuple[CapsuleRow, ...]
    batch: Mapping[str, Tensor]
    weights: Mapping[str, Mapping[str, Tensor]]

    def config(self, key: str, default: Any = None) -> Any:
        """The config's value of KEY, such as `algorithm.gamma`; DEFAULT where it has none."""
        value: Any = self.head.config
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]  # pyright: ignore[reportUnknownVariableType]
        return value

    @cached_property
    def whole(self) -> bool:
        """Whether tensors are kept whole."""
        return self.head.tensors == "all"

    @cached_property
    def mask(self) -> Tensor:
        """Tokens of answers, bool `[B, R]`."""
        return self.batch["response_mask"].bool()

    @cached_property
    def loss_mask(self) -> Tensor:
        """Tokens that the loss counts, bool `[B, R]`: not those of answers that were cut, where the config says so, nor
        those that were rejected, as recorded (the link of advantages judges which)."""
        mask = self.mask & self.batch.get("rollout_rs_kept", self.mask).bool()
        if not self.config("algorithm.mask_truncated_completions"):
            return mask
        return mask & ~self.batch["truncated"].bool()[:, None]

    @cached_property
    def place(self) -> dict[int, int]:
        """Where each kept row of the step is in the capsule."""
        kept = self.head.kept_rows
        return {row: at for at, row in enumerate(range(len(self.rows)) if kept is None else kept)}

    def here(self, rows: Iterable[int]) -> list[int]:
        """ROWS of the step by their places in the capsule, but for those that it does not keep."""
        return [self.place[row] for row in rows if row in self.place]

    def tokens(self, row: int) -> tuple[list[int], list[int]]:
        """Prompt and answer as training read them."""
        ids, real = self.batch["input_ids"][row], self.batch["attention_mask"][row].bool()
        num_prompt = len(ids) - self.mask.shape[1]
        parts: Any = ids[:num_prompt][real[:num_prompt]], ids[num_prompt:][real[num_prompt:]]
        return parts[0].tolist(), parts[1].tolist()

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        counted: Any = self.batch["attention_mask"].long().sum(-1)
        return counted.tolist()

    @cached_property
    def tokenizer(self) -> Any:
        """The capsule's own tokenizer, which runs no code of its files; None where it is missing.

        Raises:
            BadCapsule: its files are no tokenizer.
        """
        place = self.path / "tokenizer"
        if not place.is_dir():
            return None
        files = [*place.rglob("*")]
        if odd := [file for file in files if not file.is_dir() and not regular(file)]:
            raise BadCapsule(f"{odd[0]} is no regular file of at most {MOST_BYTES >> 20} MB")
        loader: Any = AutoTokenizer
        try:
            return loader.from_pretrained(str(place), trust_remote_code=False, local_files_only=True)
        except Exception as error:
            raise BadCapsule(f"{place}: transformers cannot read this tokenizer: {one_line(error)}") from None


def one_line(error: object) -> str:
    """ERROR in at most 300 characters of one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def read(path: Path) -> Case:
    """The capsule in the directory PATH.

    Raises:
        BadCapsule: it is none, damaged, or of another schema.
    """
    if not path.is_dir():
        raise BadCapsule(f"{path} is no directory; name a capsule, such as RUN/capsules/step_1")
    found = _json(path / "capsule.json", _read_bytes(path / "capsule.json"), dict[str, Any])
    if found.get("schema") != SCHEMA:
        raise BadCapsule(f"{path}: schema {found.get('schema')!r}, this rlcheck reads {SCHEMA}")
    head = _json(path / "capsule.json", _read_bytes(path / "capsule.json"), Capsule)
    if head.trainer in _CONFIGS:
        head = replace(head, config=_CONFIGS[head.trainer](head.config))
    lines = _read_bytes(path / "rows.jsonl").splitlines()
    rows = tuple(_json(path / f"rows.jsonl:{number}", line, CapsuleRow) for number, line in enumerate(lines, 1))
    batch = _tensors(path / "batch.safetensors")
    weights: dict[str, dict[str, Tensor]] = {}
    if (path / "weights.safetensors").exists():
        for name, tensor in _tensors(path / "weights.safetensors").items():
            moment, _, weight = name.partition("/")
            weights.setdefault(moment, {})[weight] = tensor
    case = Case(path, head, rows, batch, weights)
    _check(case)
    return case


def regular(path: Path) -> bool:
    """Whether PATH is a regular file: of a pipe or a device there is no end.

    Raises:
        OSError: there is none.
    """
    return stat.S_ISREG(path.stat().st_mode)


def _checked(path: Path) -> Path:
    """PATH, a regular file that fits into memory."""
    try:
        if not regular(path):
            raise BadCapsule(f"{path} cannot be read: it is no regular file")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise BadCapsule(f"{path} cannot be read: it has {size >> 20} MB, more than {MOST_BYTES >> 20}")
    except OSError as error:
        raise BadCapsule(f"{path} cannot be read: {error.strerror or one_line(error)}") from None
    return path


def _read_bytes(path: Path) -> bytes:
    try:
        return _checked(path).read_bytes()
    except OSError as error:
        raise BadCapsule(f"{path} cannot be read: {error.strerror or one_line(error)}") from None


def _json(place: Path, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCapsule(f"{place} is damaged: {one_line(error)}") from None


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(_checked(path))
    except BadCapsule:
        raise
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise BadCapsule(f"{path} cannot be read: {one_line(error)}") from None


def _check(case: Case) -> None:
    """Sizes agree, and tokens are in the vocabulary: what is computed later relies on it."""
    batch, count = case.batch, len(case.rows)
    _check_head(case)
    if missing := [name for name in _TOKEN_FIELDS if name not in batch]:
        raise BadCapsule(f"{case.path}/batch.safetensors has no '{missing[0]}'")
    if count != (case.head.rows if case.head.kept_rows is None else len(case.head.kept_rows)):
        raise BadCapsule(f"{case.path}: {count} rows in rows.jsonl, capsule.json says otherwise")
    wide, narrow = batch["input_ids"].shape, batch["response_mask"].shape
    if len(wide) != 2 or len(narrow) != 2 or narrow[1] > wide[1]:
        raise BadCapsule(f"{case.path}: input_ids {list(wide)} and response_mask {list(narrow)} do not fit")
    for name, tensor in batch.items():
        if not tensor.ndim or tensor.shape[0] != count or tensor.ndim > 2:
            raise BadCapsule(f"{case.path}: '{name}' has shape {list(tensor.shape)}, rows.jsonl has {count} rows")
        full = name in ("input_ids", "attention_mask", "position_ids")
        if tensor.ndim == 2 and name != "prompts" and tensor.shape[1] != (wide[1] if full else narrow[1]):
            raise BadCapsule(f"{case.path}: '{name}' has {tensor.shape[1]} columns, others have {list(narrow)}")
    ids, size = batch["input_ids"], case.head.model_config.get("vocab_size")
    if ids.numel() and (int(ids.min()) < 0 or (isinstance(size, int) and int(ids.max()) >= size)):
        raise BadCapsule(f"{case.path}: token ids are {int(ids.min())} to {int(ids.max())}, the vocabulary has {size}")


def _check_head(case: Case) -> None:
    """Numbers of the head that later ones are counted, or memory is taken, by."""
    head, place = case.head, case.path / "capsule.json"
    bounds = {"world_size": (head.world_size, 1, MOST_RANKS), "step": (head.step, 1, MOST_STEPS),
              "total_steps": (head.total_steps, 0, MOST_STEPS), "rows": (head.rows, 0, MOST_BYTES),
              "start_step": (head.start_step, 0, head.step)}  # fmt: skip
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise BadCapsule(f"{place}: {name} is {value}, not {least} to {most}")
    kept = head.kept_rows
    if kept is not None and (sorted(set(kept)) != list(kept) or (kept and not 0 <= kept[0] <= kept[-1] < head.rows)):
        raise BadCapsule(f"{place}: kept_rows are not numbers of the step's {head.rows} rows, in order")
    for mini in (*head.actor, *head.critic):
        rows = [*(row for rank in mini.rows for row in rank), *(row for one in mini.micro_batches for row in one.rows)]
        if rows and not 0 <= min(rows) <= max(rows) < head.rows:
            raise BadCapsule(f"{place}: an update has row {max(rows)}, the step has {head.rows} rows")
        if len(mini.rows) > head.world_size or any(not 0 <= one.rank < head.world_size for one in mini.micro_batches):
            raise BadCapsule(f"{place}: an update has more ranks than {head.world_size}")
