"""Tiny models of three shapes with sharp random weights, a tokenizer of letters, and a config that points at them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from rltrain.config.schema import RunConfig

VOCAB = ["<pad>", "<eos>", *"abcdefghijklmnopqrstuvwxyz", *"0123456789", " ", ".", ":", "="]
EOS = 1
MAX_MODEL_LEN = 192
DEVICE = os.environ.get("RLTRAIN_TEST_DEVICE", "cpu")
"""`cuda`: engines, and the model that they are held against, run on a GPU, in bfloat16."""
DTYPE = "bfloat16" if DEVICE == "cuda" else "float32"
SHAPES: dict[str, dict[str, Any]] = {
    # Tied head, key-value heads shared by two query heads, biases on q, k, v; a vocabulary that vLLM pads.
    "qwen2": {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama": {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False},
    # Tied head, norms on queries and keys; heads whose size is not hidden size / heads.
    "qwen3": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}
    | {"hidden_size": 64},
    # Learned positions, biases and layer norms everywhere, tied head.
    "opt": {"hidden_size": 64, "num_attention_heads": 2, "ffn_dim": 96, "word_embed_proj_dim": 64},
}


def make_model(kind: str, directory: Path, seed: int = 0) -> None:
    """Write config, weights and tokenizer of KIND to DIRECTORY."""
    common = {"num_hidden_layers": 2, "max_position_embeddings": MAX_MODEL_LEN, "vocab_size": len(VOCAB)}
    ids = {"eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": None}
    sizes = SHAPES[kind] | ({} if kind == "opt" else {"intermediate_size": 96})
    config = AutoConfig.for_model(kind, **common, **ids, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model, seed)
    model.save_pretrained(directory)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(VOCAB)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>").save_pretrained(directory)


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights that make a sharp distribution, so that a wrong one is seen at once."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        parameter.copy_(torch.empty(parameter.shape).normal_(centre, 0.15, generator=generator))


def config_of(directory: Path, engine: str, **rollout: Any) -> RunConfig:
    """A resolved config for ENGINE on the model in DIRECTORY, on the CPU; on a GPU where `DEVICE` says so."""
    own = {"name": engine, "dtype": DTYPE, "num_replicas": 1, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 16}
    return RunConfig.model_validate(
        {
            "actor_rollout_ref": {"model": {"path": str(directory)}, "rollout": own | rollout},
            "data": {"max_response_length": 16},
            "trainer": {"device": DEVICE, "n_gpus_per_node": 1, "seed": 7, "verify_weight_sync": True},
        }
    )


def named_weights(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What a training rank publishes: each parameter once, whole."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
