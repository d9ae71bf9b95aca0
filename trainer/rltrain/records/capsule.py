"""Writes a step capsule (`rlcheck.facts.capsule`): whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from rlcheck.capsules.write import HEAD, beside, close, encoded, replaced
from rlcheck.facts.capsule import Capsule, CapsuleRow

_SMALL = {torch.int64: torch.int32}
_AS_THEY_ARE = ("policy_version", "rollout_prompt_lengths", "rollout_prompt_digests")


def write(
    directory: Path,
    capsule: Capsule,
    rows: Sequence[CapsuleRow],
    batch: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    save_tokenizer: Callable[[Path], object],
) -> Capsule:
    """Write DIRECTORY, in the place of one that is there; returns its head.

    Raises:
        OSError: it cannot be written.
        ValueError: it would be larger than `MOST_BYTES`.
    """
    with replaced(directory) as fresh:
        save_file({name: _compact(name, tensor) for name, tensor in batch.items()}, fresh / "batch.safetensors")
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, fresh / "weights.safetensors")
        capsule = beside(fresh, capsule, rows, save_tokenizer)
        close(fresh, capsule)
    return capsule


def write_head(directory: Path, capsule: Capsule) -> None:
    """Write the head of the capsule in DIRECTORY again, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    fresh = directory / f".{HEAD}.new"
    fresh.write_bytes(encoded(capsule))
    fresh.replace(directory / HEAD)


def _compact(name: str, tensor: Tensor) -> Tensor:
    wanted = tensor.dtype if name in _AS_THEY_ARE else _SMALL.get(tensor.dtype, tensor.dtype)
    # A copy: fields may share memory, what safetensors writes may not.
    return tensor.to("cpu", wanted).clone(memory_format=torch.contiguous_format)
