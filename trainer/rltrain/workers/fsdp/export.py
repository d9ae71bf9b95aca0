"""Write a model in Hugging Face layout: safetensors, config, tokenizer."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rltrain.config.schema import ModelConfig
from rltrain.core.errors import UserError
from rltrain.data.template import load_tokenizer
from rltrain.workers.fsdp.build import load_config, model_directory, reshard
from rltrain.workers.fsdp.rank import fail_together
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.weights import full_weights

FILE_BYTES = 5 * 10**9
"""A file holds about this much, as transformers writes them."""

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
            _write_config(directory, sharded, model)
        except (OSError, SafetensorError, UserError) as error:
            problem = f"export to {directory} failed: {error}"
    for _ in weights:  # The other ranks take part in gathering; so does rank 0 after an error.
        pass
    fail_together(problem)


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


def _write_config(directory: Path, sharded: ShardedModel, model: ModelConfig) -> None:
    """The config as it was loaded (dropout and all), the files beside it that are not weights, the run's template."""
    config = load_config(model)
    config.architectures = [type(sharded.model).__name__.removeprefix("FSDP")]
    config.dtype = sharded.fsdp.model_dtype
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
