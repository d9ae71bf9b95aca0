"""Every family of causal language models that transformers has, with a few thousand random weights."""

# Transformers is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCAB = 64
LAYERS = 4

_WIDTHS = {
    32: "hidden_size d_model n_embd embed_dim word_embed_proj_dim embedding_size emb_dim mamba_d_ssm lru_width "
    "attention_hidden_size",
    48: "intermediate_size ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim d_ff dim_ff ffn_hidden_size",
    16: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size "
    "q_lora_rank kv_lora_rank mamba_head_dim mamba_d_head",
    8: "head_dim global_head_dim kv_channels qk_rope_head_dim qk_nope_head_dim v_head_dim state_size ssm_state_size "
    "mamba_d_state mamba_chunk_size chunk_size linear_key_head_dim linear_value_head_dim attention_head_size dim_head "
    "hidden_size_per_layer_input",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts "
    "num_local_experts n_routed_experts moe_num_experts mamba_n_heads mamba_num_heads linear_num_value_heads "
    "time_step_rank sliding_window attention_chunk_size attention_window_size window_size",
    2: "num_key_value_heads num_experts_per_tok num_experts_per_token moe_k moe_topk n_layer n_layers num_layers "
    "linear_num_key_heads decoder_layers eos_token_id",
    1: "n_group topk_group mamba_n_groups n_groups encoder_layers bos_token_id",
    0: "pad_token_id",
    64: "vocab_size n_words vocab_size_per_layer_input max_position_embeddings n_positions max_sequence_length n_ctx",
}
_TINY: dict[str, Any] = {
    "initializer_range": 0.2,
    "init_std": 0.2,
    **{name: size for size, names in _WIDTHS.items() for name in names.split()},
    "num_hidden_layers": LAYERS,
}
_MULTI_HEAD = {"num_key_value_heads": 4}
_PAIRS = ["sliding_attention", "full_attention"] * 2
_OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ["axk1", "axk2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "minicpm3", "youtu"],
        _MULTI_HEAD,
    ),
    "codegen": {"rotary_dim": 4},
    "cpmant": {"prompt_types": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {**_MULTI_HEAD, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "ernie4_5_moe": {"moe_k": 2},
    "falcon_h1": {"mamba_d_head": 8},
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
        "layer_types": _PAIRS,
        "activation_sparsity_pattern": [0.0] * LAYERS,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "moe_topk": 2},
    "kimi_linear": {
        **_MULTI_HEAD,
        "head_dim": 8,
        "num_experts_per_token": 2,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "longcat_flash": {**_MULTI_HEAD, "zero_expert_num": 2},
    "mamba2": {"head_dim": 16, "expand": 2},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "roc_bert": {
        "pronunciation_vocab_size": 8,
        "shape_vocab_size": 8,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}

NOT_TINY = {
    "blt": "its encoder, decoder and patcher take no sizes that fit each other",
    "cohere_compass_text": "its rotary embedding needs the sizes of the released model",
    "gemma3n": "needs timm",
    "gemma4_assistant": "an assistant of another model, which it reads",
    "gemma4_unified_assistant": "an assistant of another model, which it reads",
    "musicgen": "made of three models, of text and of sound",
    "musicgen_melody": "made of three models, of text and of sound",
    "qwen4_exp": "its config leaves sizes open that its model needs",
    "qwen4_exp_text": "its config leaves sizes open that its model needs",
    "reformer": "reads rows of its own chunk's length alone",
    "zamba": "its shared layers are tied by place, which fits no other depth",
    "zamba2": "its shared layers are tied by place, which fits no other depth",
}
"""Families that cannot be made small from their config, and why."""


def tiny_config(family: str) -> PretrainedConfig:
    """A config of FAMILY with all sizes small."""
    kind = CONFIG_MAPPING[family]
    usual = kind().to_dict()
    sizes: dict[str, Any] = _sizes(usual)
    for name, inner in usual.items():
        if isinstance(inner, dict) and name.endswith("_config") and name != "quantization_config":
            sizes[name] = _sizes(inner)
    return kind(**{**sizes, **_OWN.get(family, {})})


def _sizes(usual: dict[str, Any]) -> dict[str, Any]:
    return {name: size for name, size in _TINY.items() if usual.get(name) is not None}


def tiny_model(family: str, attention: str | None = None) -> PreTrainedModel:
    """A model of FAMILY in float32, the same each time; ATTENTION: None for transformers' choice."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(tiny_config(family), dtype=torch.float32, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model.eval()
