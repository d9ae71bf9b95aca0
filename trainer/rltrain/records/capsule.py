"""Writes a step capsule (`rlcheck.facts.capsule`): whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from rlcheck.facts.capsule import Capsule, CapsuleRow

MOST_BYTES = 64 << 20
"""A capsule is no larger."""
_MOST_TOKENIZER_BYTES = 20 << 20
_SMALL = {torch.int64: torch.int32}
_AS_THEY_ARE = ("policy_version", "rollout_prompt_lengths", "rollout_prompt_digests")


def write(
    directory: Path,
    capsule: Capsule,
    rows: Sequence[CapsuleRow],
    batch: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    save_tokenizer: Callable[[Path], object],
) -> Path:
    """Write DIRECTORY, in the place of one that is there; returns it.

    Raises:
        OSError: it cannot be written.
        ValueError: it would be larger than `MOST_BYTES`.
    """
    fresh = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        save_file({name: _compact(name, tensor) for name, tensor in batch.items()}, fresh / "batch.safetensors")
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, fresh / "weights.safetensors")
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        (fresh / "rows.jsonl").write_bytes(lines)
        save_tokenizer(fresh / "tokenizer")
        missing = capsule.missing
        if sum(file.stat().st_size for file in (fresh / "tokenizer").iterdir()) > _MOST_TOKENIZER_BYTES:
            shutil.rmtree(fresh / "tokenizer")
            missing = (*missing, "the tokenizer: its files are larger than 20 MB")
        head = msgspec.structs.replace(capsule, missing=missing)
        (fresh / "capsule.json").write_bytes(msgspec.json.format(msgspec.json.encode(head), indent=1) + b"\n")
        if (size := sum(file.stat().st_size for file in fresh.rglob("*") if file.is_file())) > MOST_BYTES:
            raise ValueError(f"it has {size >> 20} MB, more than {MOST_BYTES >> 20}")
        shutil.rmtree(directory, ignore_errors=True)
        fresh.replace(directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return directory


def _compact(name: str, tensor: Tensor) -> Tensor:
    wanted = tensor.dtype if name in _AS_THEY_ARE else _SMALL.get(tensor.dtype, tensor.dtype)
    # A copy: fields may share memory, what safetensors writes may not.
    return tensor.to("cpu", wanted).clone(memory_format=torch.contiguous_format)
