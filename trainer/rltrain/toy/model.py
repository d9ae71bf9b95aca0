"""A causal language model with random weights, of any architecture that transformers knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from rltrain.config.schema import ToyConfig
from rltrain.core.errors import UserError

BUILD_ERRORS = (
    StrictDataclassError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ZeroDivisionError,
)
"""What sizes that do not fit raise, in transformers and torch."""
OURS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")


def save_random_model(directory: Path, toy: ToyConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Write a model of the shape `toy.model`, its weights drawn from SEED (float32, safetensors), to DIRECTORY.

    Raises:
        UserError: `toy.model` names no architecture, or one that cannot be built so.
    """
    if "model_type" not in toy.model:
        raise UserError("toy.model has no model_type; name one, such as qwen2, llama or opt, and its sizes")
    if taken := sorted(set(toy.model) & set(OURS)):
        raise UserError(f"toy.model: remove {', '.join(taken)}: the toy's tokenizer and toy.vocab_size set it")
    names: Any = tokenizer
    ids = {name: getattr(names, name) for name in OURS[1:]}
    try:
        configs, models, random = cast("tuple[Any, ...]", (AutoConfig, AutoModelForCausalLM, torch.random))
        config = configs.for_model(**toy.model, **ids, vocab_size=len(names))
        with random.fork_rng(devices=[]):
            random.manual_seed(seed)
            model = models.from_config(config, dtype=torch.float32)
    except BUILD_ERRORS as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"toy.model: no model can be built from {toy.model}: {why}") from None
    for name, number in ids.items():
        setattr(model.generation_config, name, number)
    _save_quietly(model, directory)


def _save_quietly(model: Any, directory: Path) -> None:
    # A progress bar for a file of some kilobytes would only be in the way of the run's own.
    library: Any = logging
    showed = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        model.save_pretrained(str(directory))
    finally:
        if showed:
            library.enable_progress_bar()
