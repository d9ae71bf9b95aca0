"""The sizes of a decoder-only transformer that count for memory, from its `config.json`. Plain arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

_KNOWN = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "opt")
_KNOWN_MOE = ("qwen2_moe", "qwen3_moe", "mixtral", "deepseek_v2", "deepseek_v3")
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3", "gemma3_text", "opt")
_HEAD_DIMS = {"qwen3": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256}
"""Of families whose heads are not hidden size / heads where the config leaves their size out."""
_NO_BIAS_KEY = ("mistral", "mixtral", "phi3", "qwen2", "qwen2_moe")
"""Families that do not read `attention_bias`."""


class ShapeError(Exception):
    """Sizes that no memory can be counted from. The message is one line: which is missing, or wrong."""


@dataclass(frozen=True)
class Experts:
    """The expert part of a layer. `dense_layers`: layers that have a plain feed-forward in its place."""

    count: int
    per_token: int
    wide: int
    shared_wide: int
    dense_layers: int


@dataclass(frozen=True)
class Shape:
    """A model. Sizes are numbers of elements; `kv_per_token` of all layers together.

    `query_width` is heads x head size as the attention kernel sees it, `kv_heads` what tensor parallelism divides.
    """

    kind: str
    exact: bool
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    query_width: int
    key_width: int
    wide: int
    vocab: int
    embedding: int
    head: int
    layer_parameters: int
    dense_layer_parameters: int
    final_parameters: int
    kv_per_token: int
    linear_widths: tuple[tuple[str, int, int], ...]
    """Of a layer: name, inputs, outputs; what LoRA may attach to. Routed experts are fused tensors, not among them."""
    head_norms: bool = False
    experts: Experts | None = None
    max_positions: int = 0
    caps_logits: bool = False
    """The model bends its logits (Gemma 2): rltrain makes them whole."""

    @property
    def parameters(self) -> int:
        """All of the model, a tied head counted once."""
        dense = self.experts.dense_layers if self.experts else 0
        body = (self.layers - dense) * self.layer_parameters + dense * self.dense_layer_parameters
        return self.embedding + self.head + body + self.final_parameters

    @property
    def root_parameters(self) -> int:
        """What FSDP keeps in its last group: embeddings, final norm, head."""
        return self.embedding + self.head + self.final_parameters

    @property
    def backbone_root(self) -> int:
        """The same, without a head: a critic's."""
        return self.embedding + self.final_parameters

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest weight."""
        fused = self.experts.count * 2 * self.experts.wide * self.hidden if self.experts else 0
        return max(self.vocab * self.hidden, self.wide * self.hidden, fused)


def shape_of(sizes: Mapping[str, Any]) -> Shape:
    """The shape that SIZES (a `config.json`) describe.

    Exact for the families named in this module, as transformers builds them; others count as Llama, by their declared
    sizes. Nested text configs (`text_config`) are taken for the whole, which is not exact beside a vision tower.

    Raises:
        ShapeError: a size is missing, or no integer > 0.
    """
    text = sizes.get("text_config")
    if isinstance(text, Mapping) and "hidden_size" not in sizes:
        nested = cast("Mapping[str, Any]", text)
        above = {name: sizes[name] for name in ("model_type", "tie_word_embeddings") if name in sizes}
        inner = shape_of({**above, **nested})
        return replace(inner, exact=inner.exact and not isinstance(sizes.get("vision_config"), Mapping))
    kind = str(sizes.get("model_type", ""))
    if kind == "opt":
        return _opt(sizes)
    return _llama_like(sizes, kind)


def count(sizes: Mapping[str, Any], name: str, usual: int | None = None) -> int:
    """The size NAME; USUAL where it is left out or null.

    Raises:
        ShapeError: it is missing, or no integer > 0.
    """
    value = sizes.get(name)
    if value is None and usual is not None:
        return usual
    if value is None:
        raise ShapeError(f"no '{name}', which memory is counted from")
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ShapeError(f"{name}: expected an integer > 0, got {value!r}")
    return value


def _llama_like(sizes: Mapping[str, Any], kind: str) -> Shape:
    hidden, layers, heads = (count(sizes, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    vocab = count(sizes, "vocab_size")
    experts = _experts(sizes, kind, layers)
    wide = count(sizes, "intermediate_size", usual=experts.wide if experts else None)
    kv_heads = count(sizes, "num_key_value_heads", usual=heads)
    head_dim = count(sizes, "head_dim", usual=_HEAD_DIMS.get(kind, max(hidden // heads, 1)))
    latent = sizes.get("kv_lora_rank") is not None
    if latent:
        attention, linears, queries, keys, kv = _latent_attention(sizes, hidden, heads)
    else:
        queries, keys = heads * head_dim, kv_heads * head_dim
        linears = (("q_proj", hidden, queries), ("k_proj", hidden, keys), ("v_proj", hidden, keys),
                   ("o_proj", queries, hidden))  # fmt: skip
        attention = sum(a * b for _, a, b in linears) + _attention_bias(sizes, kind, hidden, queries, keys)
        kv = 2 * keys
    head_norms = kind in ("qwen3", "qwen3_moe", "gemma3_text")
    norms = (4 if kind in ("gemma2", "gemma3_text") else 2) * hidden + (2 * head_dim if head_norms else 0)
    dense = attention + norms + 3 * hidden * wide
    dense += 2 * wide + hidden if sizes.get("mlp_bias") and kind not in (*_KNOWN[1:], *_KNOWN_MOE) else 0
    apart = wide if experts is None else experts.shared_wide
    feed = (("gate_proj", hidden, apart), ("up_proj", hidden, apart), ("down_proj", apart, hidden)) if apart else ()
    layer = dense if experts is None else attention + norms + _expert_parameters(experts, hidden, kind)
    tied = bool(sizes.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT))
    return Shape(
        kind=kind,
        exact=kind in (*_KNOWN, *_KNOWN_MOE),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        query_width=queries,
        key_width=keys,
        wide=wide,
        vocab=vocab,
        embedding=vocab * hidden,
        head=0 if tied else vocab * hidden,
        layer_parameters=layer,
        dense_layer_parameters=dense,
        final_parameters=hidden,
        kv_per_token=layers * kv,
        linear_widths=_fused((*linears, *feed)) if kind == "phi3" else (*linears, *feed),
        head_norms=head_norms,
        experts=experts,
        max_positions=count(sizes, "max_position_embeddings", usual=0) if sizes.get("max_position_embeddings") else 0,
        caps_logits=sizes.get("final_logit_softcapping") is not None,
    )


def _attention_bias(sizes: Mapping[str, Any], kind: str, hidden: int, queries: int, keys: int) -> int:
    if kind == "qwen2" or (kind == "qwen2_moe" and sizes.get("qkv_bias", True)):
        return queries + 2 * keys
    return queries + 2 * keys + hidden if sizes.get("attention_bias") and kind not in _NO_BIAS_KEY else 0


def _fused(linears: tuple[tuple[str, int, int], ...]) -> tuple[tuple[str, int, int], ...]:
    """Phi-3's layers: queries, keys and values in one, gate and up in one."""
    by_name = {name: (a, b) for name, a, b in linears}
    hidden = by_name["q_proj"][0]
    wide = sum(by_name[name][1] for name in ("q_proj", "k_proj", "v_proj"))
    return (
        ("qkv_proj", hidden, wide),
        ("o_proj", *by_name["o_proj"]),
        ("gate_up_proj", hidden, 2 * by_name["up_proj"][1]),
        ("down_proj", *by_name["down_proj"]),
    )


def _latent_attention(
    sizes: Mapping[str, Any], hidden: int, heads: int
) -> tuple[int, tuple[tuple[str, int, int], ...], int, int, int]:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): parameters, linear layers, widths, cache."""
    latent, rope = count(sizes, "kv_lora_rank"), count(sizes, "qk_rope_head_dim")
    plain, value = count(sizes, "qk_nope_head_dim"), count(sizes, "v_head_dim")
    rank = sizes.get("q_lora_rank")
    queries = heads * (plain + rope)
    if isinstance(rank, int) and rank > 0:
        query: tuple[tuple[str, int, int], ...] = (("q_a_proj", hidden, rank), ("q_b_proj", rank, queries))
        extra = rank
    else:
        query, extra, rank = (("q_proj", hidden, queries),), 0, 0
    linears = (
        *query,
        ("kv_a_proj_with_mqa", hidden, latent + rope),
        ("kv_b_proj", latent, heads * (plain + value)),
        ("o_proj", heads * value, hidden),
    )
    bias = rank + latent + rope + hidden if sizes.get("attention_bias") else 0
    parameters = sum(a * b for _, a, b in linears) + latent + extra + bias
    return parameters, linears, queries, queries, latent + rope


def _experts(sizes: Mapping[str, Any], kind: str, layers: int) -> Experts | None:
    number = next(
        (sizes[name] for name in ("num_experts", "n_routed_experts", "num_local_experts") if name in sizes), 0
    )
    if not isinstance(number, int) or number <= 1:
        return None
    wide = count(sizes, "moe_intermediate_size", usual=count(sizes, "intermediate_size"))
    per_token = count(sizes, "num_experts_per_tok", usual=2)
    shared = sizes.get("shared_expert_intermediate_size") or 0
    if not shared and isinstance(sizes.get("n_shared_experts"), int):
        shared = int(sizes["n_shared_experts"]) * wide
    return Experts(number, per_token, wide, int(shared), _dense_layers(sizes, layers))


# More than any model has: a config may say anything.
_MOST_LAYERS = 10_000


def _dense_layers(sizes: Mapping[str, Any], layers: int) -> int:
    """Layers without experts: the first ones (DeepSeek), or those named and those that a step leaves out (Qwen)."""
    first, step = sizes.get("first_k_dense_replace"), sizes.get("decoder_sparse_step")
    if isinstance(first, int):
        return min(first, layers)
    named: set[Any] = set(cast("list[Any]", sizes.get("mlp_only_layers") or []))
    every = step if isinstance(step, int) and step > 0 else 1
    return sum(layer in named or (layer + 1) % every != 0 for layer in range(min(layers, _MOST_LAYERS)))


def _expert_parameters(experts: Experts, hidden: int, kind: str) -> int:
    routed = experts.count * 3 * hidden * experts.wide + experts.count * hidden
    shared = 3 * hidden * experts.shared_wide
    gate = hidden if experts.shared_wide and kind == "qwen2_moe" else 0
    return routed + shared + gate


def _opt(sizes: Mapping[str, Any]) -> Shape:
    hidden, layers, vocab, wide = (
        count(sizes, name) for name in ("hidden_size", "num_hidden_layers", "vocab_size", "ffn_dim")
    )
    positions, heads = count(sizes, "max_position_embeddings"), count(sizes, "num_attention_heads")
    narrow = count(sizes, "word_embed_proj_dim", usual=hidden)
    bias = 1 if sizes.get("enable_bias", True) else 0
    norm = 2 * hidden if sizes.get("layer_norm_elementwise_affine", True) else 0
    block = 4 * hidden * hidden + 2 * hidden * wide + bias * (5 * hidden + wide) + 2 * norm
    projections = 0 if narrow == hidden else 2 * narrow * hidden
    # The smallest OPT but one norms after its layers, and has no norm of its own at the end.
    last = norm if sizes.get("do_layer_norm_before", True) and not sizes.get("_remove_final_layer_norm") else 0
    # OPT's table of positions has two rows that no position uses.
    rest = (positions + 2) * hidden + projections + last
    square = tuple((name, hidden, hidden) for name in ("q_proj", "k_proj", "v_proj", "out_proj"))
    return Shape(
        kind="opt",
        exact=True,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        query_width=hidden,
        key_width=hidden,
        wide=wide,
        vocab=vocab,
        embedding=vocab * narrow,
        head=0 if sizes.get("tie_word_embeddings", True) else vocab * narrow,
        layer_parameters=block,
        dense_layer_parameters=block,
        final_parameters=rest,
        kv_per_token=2 * layers * hidden,
        linear_widths=(*square, ("fc1", hidden, wide), ("fc2", wide, hidden)),
        max_positions=positions,
    )
