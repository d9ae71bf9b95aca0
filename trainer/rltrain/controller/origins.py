"""Where the weights of a run come from, read without the training ranks: what a capsule's weights are held against."""

# Torch and safetensors are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlcheck.facts.capsule import Origin
from rltrain.core.errors import UserError, first_line
from rltrain.workers.fsdp.state import read_alone
from rltrain.workers.sync.checksum import checksum

HASHED_BYTES = 8 << 30
"""The sha256 of larger files is not taken: it would hold up the start of the run."""
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def of_files(role: str, directory: str | None, dtype: torch.dtype, elements: int | None) -> Origin:
    """ROLE's weights as the model's safetensors in DIRECTORY have them, rounded to DTYPE.

    ELEMENTS: of each tensor, so many of its first numbers; None: all.
    """
    place = Path(directory or "")
    origin = Origin(role, "files", str(place), _name(dtype))
    try:
        files = model_files(place)
        if not files:
            return _missing(origin, f"{place} holds no safetensors")
        sums = {name: _checksum(tensor, dtype) for file in files for name, tensor in _first_numbers(file, elements)}
        small = sum(file.stat().st_size for file in files) <= HASHED_BYTES
        digests = {file.name: _sha256(file) for file in files} if small else {}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        return _missing(origin, f"{place} cannot be read: {first_line(error)}")
    return Origin(role, "files", str(place), _name(dtype), sums, digests)


def of_checkpoint(role: str, directory: Path, dtype: torch.dtype) -> Origin:
    """ROLE's weights as its part of a checkpoint, DIRECTORY, has them: whole."""
    origin = Origin(role, "checkpoint", str(directory), _name(dtype))
    try:
        state = read_alone(directory)
    except UserError as error:
        return _missing(origin, str(error))
    sums = {name: _checksum(tensor, dtype) for name, tensor in state.items()}
    return Origin(role, "checkpoint", str(directory), _name(dtype), sums)


def of_tensors(role: str, source: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Origin:
    """ROLE's weights as TENSORS are, the kept numbers of each."""
    sums = {name: _checksum(tensor, dtype) for name, tensor in tensors.items()}
    return Origin(role, source, "", _name(dtype), sums)


def model_files(directory: Path) -> list[Path]:
    """The safetensors that transformers loads from DIRECTORY.

    Raises:
        OSError, ValueError: its index cannot be read.
    """
    if (index := directory / _INDEX).is_file():
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [directory / name for name in sorted(set(names.values()))]
    single = directory / _SINGLE
    return [single] if single.is_file() else sorted(directory.glob("*.safetensors"))


def _first_numbers(file: Path, elements: int | None) -> Iterator[tuple[str, Tensor]]:
    """The tensors of FILE, or the first ELEMENTS numbers of each; of a large one no more is read."""
    with safe_open(file, "pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (no mapping)
            part = opened.get_slice(name)
            shape = torch.Size(part.get_shape())
            if elements is None or shape.numel() <= elements:
                yield name, opened.get_tensor(name)
            else:
                rows = -(-elements // shape[1:].numel())
                yield name, part[:rows].flatten()[:elements]


def _checksum(tensor: Tensor, dtype: torch.dtype) -> str:
    return checksum(tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _missing(origin: Origin, why: str) -> Origin:
    return Origin(origin.role, origin.source, origin.path, origin.dtype, missing=why)
