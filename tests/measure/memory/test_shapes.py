"""Sizes counted from a `config.json`, held against the models that transformers builds from it."""

from __future__ import annotations

from typing import Any

import pytest

from rlcheck.measure.memory.shapes import ShapeError, shape_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BASE: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
OPT: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "ffn_dim": 176, "num_hidden_layers": 6, "num_attention_heads": 8,
    "max_position_embeddings": 256, "word_embed_proj_dim": 64,
}  # fmt: skip
ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
    "n_routed_experts": 8, "n_shared_experts": 2, "moe_intermediate_size": 48, "first_k_dense_replace": 1,
    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
}  # fmt: skip
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", BASE),
    "llama, tied, biases": ("llama", {**BASE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": ("llama", {**BASE, "head_dim": 24}),
    "mistral": ("mistral", {**BASE, "head_dim": 16, "attention_bias": True}),
    "qwen2": ("qwen2", {**BASE, "attention_bias": False}),
    "qwen2, tied": ("qwen2", {**BASE, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", BASE),
    "qwen3, biases": ("qwen3", {**BASE, "head_dim": 32, "attention_bias": True}),
    "gemma": ("gemma", BASE),
    "gemma2": ("gemma2", {**BASE, "head_dim": 32}),
    "gemma3 text": ("gemma3_text", {**BASE, "head_dim": 32}),
    "phi3": ("phi3", BASE),
    "opt": ("opt", OPT),
    "opt, norms behind": ("opt", {**OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "opt, plain": ("opt", {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "opt, untied": ("opt", {**OPT, "tie_word_embeddings": False}),
    "qwen2_moe": ("qwen2_moe", {**BASE, **ROUTED, "shared_expert_intermediate_size": 96}),
    "qwen2_moe, some dense": (
        "qwen2_moe",
        {**BASE, **ROUTED, "shared_expert_intermediate_size": 96, "decoder_sparse_step": 2, "mlp_only_layers": [0, 3]},
    ),
    "qwen2_moe, no bias": ("qwen2_moe", {**BASE, **ROUTED, "shared_expert_intermediate_size": 96, "qkv_bias": False}),
    "qwen3_moe": ("qwen3_moe", {**BASE, **ROUTED, "head_dim": 32}),
    "qwen3_moe, some dense": ("qwen3_moe", {**BASE, **ROUTED, "head_dim": 32, "mlp_only_layers": [0, 5]}),
    "mixtral": ("mixtral", {**BASE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v2": ("deepseek_v2", {**BASE, **LATENT}),
    "deepseek_v2, lite": ("deepseek_v2", {**BASE, **LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", {**BASE, **LATENT, "n_shared_experts": 1, "first_k_dense_replace": 3}),
    "deepseek_v3, biases": ("deepseek_v3", {**BASE, **LATENT, "attention_bias": True}),
}


def built(kind: str, sizes: dict[str, Any]) -> Any:
    """The model without memory."""
    config = transformers.AutoConfig.for_model(kind, **sizes)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_those_of_the_model_that_transformers_builds(name: str) -> None:
    kind, sizes = KNOWN[name]
    model = built(kind, sizes)
    shape = shape_of({"model_type": kind, **sizes})
    assert shape.exact
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    # The same from the file that transformers writes, in which defaults stand as well.
    assert shape_of(model.config.to_dict()).parameters == shape.parameters


@pytest.mark.parametrize("name", ["llama", "phi3", "opt", "gemma3 text", "qwen2_moe", "qwen3_moe", "mixtral"])
def test_linear_layers_are_those_that_adapters_are_attached_to(name: str) -> None:
    kind, sizes = KNOWN[name]
    model = built(kind, sizes)
    head = model.get_output_embeddings()
    # The gate of Qwen2-MoE's shared expert has one output: peft takes it too, and nobody would see the difference.
    linear = [one for one in model.modules() if isinstance(one, torch.nn.Linear) and one is not head]
    theirs = sum(one.in_features + one.out_features for one in linear if one.out_features > 1)
    shape = shape_of({"model_type": kind, **sizes})
    assert shape.layers * sum(a + b for _, a, b in shape.linear_widths) == theirs


def test_an_unknown_architecture_is_estimated_and_said_to_be() -> None:
    """OLMo 2 is like Llama but for its norms."""
    model = built("olmo2", BASE)
    shape = shape_of(model.config.to_dict())
    assert not shape.exact
    assert shape.parameters == pytest.approx(sum(one.numel() for one in model.parameters()), rel=0.01)


def test_a_text_config_counts_for_the_whole_which_a_vision_tower_makes_inexact() -> None:
    text = {"model_type": "gemma3_text", **BASE, "head_dim": 32}
    alone = shape_of({"model_type": "gemma3", "text_config": text})
    assert (alone.exact, alone.parameters) == (True, shape_of(text).parameters)
    assert not shape_of({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}).exact
    untied = shape_of({"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False})
    assert untied.head == 1000 * 64


def test_the_cache_of_a_token() -> None:
    """Keys and values of two heads of eight in six layers; with latent attention one latent and the rotary part."""
    assert shape_of({"model_type": "llama", **BASE}).kv_per_token == 6 * 2 * 2 * 8
    assert shape_of({"model_type": "deepseek_v3", **BASE, **LATENT}).kv_per_token == 6 * (16 + 8)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({}, "no 'hidden_size'"),
        ({**BASE, "hidden_size": "64"}, "hidden_size: expected an integer > 0, got '64'"),
        ({**BASE, "num_hidden_layers": 0}, "num_hidden_layers: expected an integer > 0, got 0"),
        ({**BASE, "num_attention_heads": True}, "num_attention_heads"),
        ({**BASE, "vocab_size": None}, "no 'vocab_size'"),
        ({**BASE, **LATENT, "v_head_dim": None}, "no 'v_head_dim'"),
    ],
)
def test_sizes_that_nothing_can_be_counted_from(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        shape_of(sizes)
