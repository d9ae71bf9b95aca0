"""Write a model in Hugging Face layout: safetensors, config, tokenizer; from training ranks, or from a checkpoint."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Size, Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rltrain.config.schema import ModelConfig
from rltrain.core.errors import UserError, first_line
from rltrain.data.template import load_tokenizer
from rltrain.workers.fsdp.build import load_config, model_directory, reshard
from rltrain.workers.fsdp.rank import fail_together
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.state import read_alone, saved_sizes
from rltrain.workers.fsdp.weights import full_weights, named_weights

FILE_BYTES = 5 * 10**9
"""A file holds about this much, as transformers writes them."""

READ_BYTES = 1 << 29
"""Of a checkpoint, about so much is read at a time."""

COPIED_SUFFIXES = {".json", ".txt", ".model", ".jinja", ".py"}
"""Tokenizer, chat template, generation config, remote code."""


def export(directory: Path, sharded: ShardedModel, model: ModelConfig) -> None:
    """Write ROLE's weights, in their training dtype, to DIRECTORY (collective; rank 0 writes).

    `AutoModelForCausalLM.from_pretrained(DIRECTORY)` gives the same logits bit for bit: nothing is rounded.

    Raises:
        UserError: on every rank, what could not be written.
    """
    reshard(sharded.model)
    weights = full_weights(sharded.model, None, sharded.device)
    problem = None
    if dist.get_rank() == 0:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _write_weights(directory, weights)
            architecture = type(sharded.model).__name__.removeprefix("FSDP")
            _write_config(directory, architecture, sharded.fsdp.model_dtype, model)
        except (OSError, SafetensorError, UserError) as error:
            problem = f"export to {directory} failed: {error}"
    for _ in weights:  # The other ranks take part in gathering; so does rank 0 after an error.
        pass
    fail_together(problem)


def export_saved(saved: Path, directory: Path, model: ModelConfig, dtype: torch.dtype | None = None) -> None:
    """Write the weights of SAVED, one role of a checkpoint, to DIRECTORY in Hugging Face layout.

    This process reads them alone, a piece at a time: no model is built, no other process has a part.

    Args:
        saved: `CHECKPOINT/actor`.
        directory: new or empty.
        model: what was trained; its config and tokenizer are taken along.
        dtype: to cast floating-point weights to; None: as they were trained.

    Raises:
        UserError: they cannot be read, are another model's, or cannot be written.
    """
    sizes = saved_sizes(saved)
    architecture = _fitting(saved, {name: size for name, (size, _) in sizes.items()}, model)
    kinds = {kind for _, kind in sizes.values() if kind.is_floating_point}
    wanted = dtype or next(iter(kinds), torch.float32)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_weights(directory, _read_weights(saved, sizes, dtype))
        _write_config(directory, architecture, str(wanted).removeprefix("torch."), model)
    except (OSError, SafetensorError) as error:
        raise UserError(f"export to {directory} failed: {error}") from error


def _fitting(saved: Path, sizes: Mapping[str, Size], model: ModelConfig) -> str:
    """The class of MODEL, whose weights have SIZES; it is made without memory.

    Raises:
        UserError: they have not.
    """
    config = load_config(model)
    auto: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            made: PreTrainedModel = auto.from_config(config, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise UserError(f"model.path={model.path}: cannot be made: {first_line(error)}") from error
    expected = {name: tensor.shape for name, tensor in named_weights(made)}
    if wrong := sorted({*expected, *sizes} - {name for name in sizes if expected.get(name) == sizes[name]}):
        raise UserError(f"checkpoint {saved} does not fit model.path={model.path}: {', '.join(wrong[:3])}")
    return type(made).__name__


def _read_weights(
    saved: Path, sizes: Mapping[str, tuple[Size, torch.dtype]], dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    names: list[str] = []
    num_bytes = 0
    for name, (size, kind) in sizes.items():
        names.append(name)
        num_bytes += size.numel() * kind.itemsize
        if num_bytes >= READ_BYTES:
            yield from _piece(saved, names, dtype)
            names, num_bytes = [], 0
    if names:
        yield from _piece(saved, names, dtype)


def _piece(saved: Path, names: list[str], dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in read_alone(saved, names).items():
        yield name, tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _write_weights(directory: Path, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Files of about FILE_BYTES; with an index where there are several."""
    parts: list[list[str]] = []
    held: dict[str, Tensor] = {}
    num_bytes, total_bytes = 0, 0

    def flush() -> None:
        part = directory / f"model-{len(parts):05d}.part"
        part.touch()
        mode = part.stat().st_mode  # as the user's umask has it; safetensors' own files are the owner's alone
        save_file(held, part, metadata={"format": "pt"})
        part.chmod(mode)
        parts.append(list(held))
        held.clear()

    for name, tensor in weights:
        if held and num_bytes + tensor.nbytes > FILE_BYTES:
            flush()
            num_bytes = 0
        held[name] = tensor.cpu().contiguous()
        num_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    flush()
    index: dict[str, str] = {}
    for number, names in enumerate(parts):
        file = "model.safetensors" if len(parts) == 1 else f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        (directory / f"model-{number:05d}.part").replace(directory / file)
        index |= dict.fromkeys(names, file)
    if len(parts) > 1:
        document = {"metadata": {"total_size": total_bytes}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_text(json.dumps(document, indent=1))


def _write_config(directory: Path, architecture: str, dtype: str, model: ModelConfig) -> None:
    """The config as it was loaded (dropout and all), the files beside it that are not weights, the run's template."""
    config = load_config(model)
    config.architectures = [architecture]
    config.dtype = dtype
    config.save_pretrained(directory)
    sources = [model_directory(model)]
    if model.tokenizer_path is not None:
        sources.append(Path(model.tokenizer_path))
    for source in sources:
        for path in sorted(source.iterdir()):
            wanted = path.suffix in COPIED_SUFFIXES and path.name != "config.json"
            if path.is_file() and wanted and not path.name.endswith(".index.json"):
                shutil.copyfile(path, directory / path.name)
    if model.custom_chat_template is not None:
        # The files hold the template that the run did not use.
        tokenizer = load_tokenizer(sources[-1], model.trust_remote_code, model.custom_chat_template)
        tokenizer.save_pretrained(str(directory))
