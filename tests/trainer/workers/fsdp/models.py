"""Tiny models with random weights, in Hugging Face layout, and a random rollout batch for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from rltrain.toy.tokenizer import build_tokenizer

VOCAB = 32

COMMON = {"vocab_size": VOCAB, "num_hidden_layers": 2, "max_position_embeddings": 64}
ROPE = {
    **COMMON,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
OPT = {**COMMON, "hidden_size": 32, "ffn_dim": 64, "num_attention_heads": 4, "dropout": 0.1, "init_std": 0.2}

SHAPES = {
    "qwen2": ("qwen2", {**ROPE, "tie_word_embeddings": True}),
    "qwen2-window": (
        "qwen2",
        {**ROPE, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0, "tie_word_embeddings": False},
    ),
    "llama": ("llama", {**ROPE, "tie_word_embeddings": False}),
    "opt": ("opt", {**OPT, "word_embed_proj_dim": 32}),
    "opt-projected": ("opt", {**OPT, "word_embed_proj_dim": 16}),
}


def make_model(directory: Path, shape: str) -> Path:
    """A model of SHAPE under DIRECTORY, the same each time."""
    path = directory / shape
    kind, sizes = SHAPES[shape]
    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # Biases and norms away from their special first values, so that no mistake hides behind a zero or a one.
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return path


def make_scorer(directory: Path) -> Path:
    """A reward model under DIRECTORY, with its tokenizer."""
    path = directory / "scorer"
    tokenizer = build_tokenizer(VOCAB)
    torch.manual_seed(1)
    config = AutoConfig.for_model("qwen2", **ROPE, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def make_large(directory: Path) -> Path:
    """A model of many layers under DIRECTORY, large enough (147 MB) to be seen among what else a process holds."""
    path = directory / "large"
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 14, "tie_word_embeddings": True}
    config = AutoConfig.for_model("llama", **{**ROPE, **sizes, "num_key_value_heads": 4})
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def without_weights(model: Path, directory: Path) -> Path:
    """A copy of MODEL under DIRECTORY that lacks the files of its weights."""
    path = directory / model.name
    shutil.copytree(model, path, ignore=shutil.ignore_patterns("*.safetensors"))
    return path


def random_batch(num_rows: int, seed: int, num_prompt: int = 9, num_response: int = 10) -> dict[str, Tensor]:
    """A rollout of random tokens and lengths: prompts padded on the left, responses on the right."""
    generator = torch.Generator().manual_seed(seed)

    def lengths(longest: int) -> Tensor:
        return torch.randint(1, longest + 1, (num_rows, 1), generator=generator)

    prompt = torch.arange(num_prompt)[None] >= num_prompt - lengths(num_prompt)
    response = torch.arange(num_response)[None] < lengths(num_response)
    real = torch.cat([prompt, response], dim=1)
    ids = torch.randint(3, VOCAB, real.shape, generator=generator) * real
    return {
        "input_ids": ids,
        "attention_mask": real,
        "position_ids": (real.cumsum(1) - 1).clamp(min=0),
        "response_mask": response,
        "advantages": torch.randn(response.shape, generator=generator) * response,
        "returns": torch.randn(response.shape, generator=generator) * response,
    }
