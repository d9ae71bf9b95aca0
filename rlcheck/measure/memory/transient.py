"""What a pass holds besides parameters, gradients and optimizer state: activations, logits, gathered layers.

Bytes of one GPU. What each operation keeps for its backward pass is counted from transformers' decoder layers as they
are (norms in float32, gate and up projections of their own, keys and values repeated for the packed attention kernel).
A pass has three moments at which it may hold most: while the loss goes back into the logits, in the layer whose
activations are whole, and when FSDP reduces the gradients of its last group; the largest of them counts.
`tests/bench/gpu` holds the measurements that this was held against.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlcheck.facts.memory import Owner
from rlcheck.measure.memory.shapes import Shape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2, "fp8": 1, "float8": 1, "float64": 8}
_FLOAT32 = 4
# log-softmax, its gradient and that of the logits, each in float32; without a gradient: log-softmax, its exponential
# and their product.
UNFUSED = 12.0


@dataclass(frozen=True)
class Pass:
    """One forward pass, with or without its backward.

    `tokens` go through the layers, `logit_tokens` through the head (0: a critic's, which gives one number). `world`:
    GPUs that share the parameters. `kept`: bytes of a parameter as it is stored; `computed`: as it is used.
    """

    shape: Shape
    tokens: int
    logit_tokens: int
    world: int = 1
    kept: int = 4
    computed: int = 2
    checkpointing: bool = True
    chunk_tokens: int = 0
    """Tokens whose float32 distribution exists at a time; 0: all."""
    has_head: bool = True
    adapters: int = 0
    """Parameters of LoRA in all layers; 0: everything learns."""
    keeps_layers: bool = False
    """FSDP does not free gathered layers after the forward pass (`reshard_after_forward: false`)."""
    unshards: bool = False
    """FSDP gathers all layers before the pass."""
    spread: int = 1
    """GPUs over which each parameter is divided when it is gathered."""
    gathers: bool = True
    """Parameters are gathered for their use (FSDP); Megatron's stay where they are."""
    live_parameters: int = 0
    """Of DeepSpeed's stage 3, which are whole at a time."""
    cast_parameters: int = 0
    """Whose copies of another type torch's autocast keeps through a forward pass."""
    unfused: float = UNFUSED
    """Bytes for each element of the distribution besides the logits themselves."""
    block_elements: int = 0
    """Logits that exist at a time, where the head is read by blocks; 0: they exist whole."""
    fused: bool = False
    """Norms and gated MLPs are one kernel each: they keep their inputs, and nothing in float32."""

    @property
    def root_bytes(self) -> int:
        """FSDP's last group, gathered: embeddings, final norm, head."""
        elements = self.shape.root_parameters if self.has_head else self.shape.backbone_root
        return elements * self.computed // self.spread if self.gathers else 0

    @property
    def cast_bytes(self) -> int:
        """Copies that autocast made of weights."""
        return self.cast_parameters * self.computed

    @property
    def gathered_bytes(self) -> int:
        """Layers that are whole at a time: the one in use and the one being fetched."""
        if not self.gathers:
            return self.live_parameters * self.computed
        layer = max(self.shape.layer_parameters, self.shape.dense_layer_parameters) * self.computed
        whole = self.keeps_layers or self.unshards
        return layer * (self.shape.layers if whole else min(2, self.shape.layers)) // self.spread


def layer_bytes_per_token(shape: Shape, computed: int, fused: bool = False) -> float:
    """What one layer (the mean of all) keeps of a token for its backward pass.

    Norms: float32 input and the normed copy, twice. Attention: input, queries, keys and values at the queries' width,
    output. Feed-forward: input, gate, its activation, up, and their product; for each expert also its input and output.
    FUSED norms keep their input alone, and a fused MLP no activation of the gate (experts are not fused).
    """
    hidden, queries = shape.hidden, shape.query_width
    norm = computed if fused else _FLOAT32 + computed
    attention = (2 * norm + computed) * hidden + 4 * computed * queries + _FLOAT32 * shape.heads
    if shape.head_norms:
        attention += norm * (queries + shape.key_width)
    dense = attention + computed * hidden + (3 if fused else 4) * computed * shape.wide
    if shape.experts is None:
        return dense
    experts = shape.experts
    routed = experts.per_token * computed * (2 * hidden + 4 * experts.wide) + 4 * _FLOAT32 * experts.count
    sparse = attention + computed * hidden + routed + 4 * computed * experts.shared_wide
    return (sparse * (shape.layers - experts.dense_layers) + dense * experts.dense_layers) / shape.layers


def _active_wide(shape: Shape) -> int:
    """Width of the feed-forward that one token goes through."""
    if shape.experts is None:
        return shape.wide
    return max(shape.experts.per_token * shape.experts.wide + shape.experts.shared_wide, 1)


def inference(step: Pass) -> list[Owner]:
    """A pass without gradient: gathered groups, a layer's temporaries, and the distribution over the vocabulary."""
    shape = step.shape
    work = step.computed * step.tokens * (3 * _active_wide(shape) + 2 * shape.hidden)
    logits, distribution = _logits(step)
    root = step.root_bytes + step.cast_bytes
    kept = step.gathered_bytes if step.unshards or not step.logit_tokens else 0
    found = [Owner(kind="unsharded", num_bytes=root + kept)]
    if step.logit_tokens and logits + distribution + kept > work + step.gathered_bytes:
        return [*found, Owner(kind="logits", num_bytes=int(logits + distribution))]
    if step.logit_tokens:
        found[0] = Owner(kind="unsharded", num_bytes=root + step.gathered_bytes)
    return [*found, Owner(kind="activations", num_bytes=int(work))]


def training(step: Pass) -> list[Owner]:
    """A forward and backward pass, at the moment at which it holds most."""
    moments = [_in_layers(step)]
    if step.logit_tokens:
        moments.append(_at_logits(step))
    if not step.adapters:
        moments.append(_at_reduction(step))
    return max(moments, key=lambda owners: sum(owner.num_bytes for owner in owners))


def _logits(step: Pass) -> tuple[float, float]:
    """The logits, and what the loss makes of them at a time."""
    if step.block_elements:
        elements = min(step.logit_tokens * step.shape.vocab, step.block_elements)
        return step.computed * elements, step.unfused * elements
    at_once = min(step.chunk_tokens, step.logit_tokens) if step.chunk_tokens else step.logit_tokens
    return step.computed * step.logit_tokens * step.shape.vocab, step.unfused * at_once * step.shape.vocab


def _tail(step: Pass) -> float:
    """The final norm's float32 input and output, and the hidden states that the head reads."""
    hidden, norm = step.shape.hidden, step.computed if step.fused else _FLOAT32 + step.computed
    return norm * hidden * step.tokens + step.computed * hidden * step.logit_tokens


def _saved(step: Pass) -> float:
    """What all layers keep: everything, or with checkpointing their inputs alone."""
    shape = step.shape
    if step.checkpointing:
        return shape.layers * step.computed * shape.hidden * step.tokens
    whole = shape.layers * layer_bytes_per_token(shape, step.computed, step.fused) * step.tokens
    return whole + _adapter_bytes(step)


def _adapter_bytes(step: Pass) -> float:
    """LoRA's own activations in all layers: each linear layer's input again, in the adapters' float32."""
    if not step.adapters:
        return 0.0
    inputs = sum(width for _, width, _ in step.shape.linear_widths)
    return _FLOAT32 * inputs * step.shape.layers * step.tokens


def _at_logits(step: Pass) -> list[Owner]:
    logits, distribution = _logits(step)
    if step.block_elements:
        # Sums over blocks: the gradient of the hidden states in float32, that of the head's weight as it is computed.
        hidden = step.shape.hidden * (_FLOAT32 * step.logit_tokens + step.computed * step.shape.vocab)
        logits += hidden
    elif step.chunk_tokens:
        # Gradients of the chunks before the last, which are put together when all are there.
        chunks = max(-(-step.logit_tokens // step.chunk_tokens), 1)
        logits = max(logits * (1 + (chunks - 1) / chunks) + distribution, 2 * logits)
        distribution = 0.0
    kept = step.gathered_bytes if step.keeps_layers or step.live_parameters else 0
    return [
        Owner(kind="unsharded", num_bytes=step.root_bytes + step.cast_bytes + kept),
        Owner(kind="activations", num_bytes=int(_saved(step) + _tail(step))),
        Owner(kind="logits", num_bytes=int(logits + distribution)),
    ]


def _in_layers(step: Pass) -> list[Owner]:
    """The backward pass of a layer: its activations (made again with checkpointing), and gradients on their way."""
    shape = step.shape
    layer = max(shape.layer_parameters, shape.dense_layer_parameters)
    once = layer_bytes_per_token(shape, step.computed, step.fused) * step.tokens if step.checkpointing else 0.0
    once += _adapter_bytes(step) / shape.layers if step.checkpointing else 0.0
    work = 2 * step.computed * step.tokens * _active_wide(shape)
    # Checkpointing casts a layer's weights again in its backward pass, when the forward pass's copies are gone.
    cast = 0 if step.checkpointing else step.cast_bytes
    buffers = 0.0
    if not step.adapters and step.gathers:
        head = shape.vocab * shape.hidden * step.computed if step.has_head else 0
        # A layer's gradients as computed, and in float32 on their way to the shards.
        buffers = head + layer * (step.computed + _FLOAT32 + _FLOAT32 / step.world)
    return [
        Owner(kind="unsharded", num_bytes=step.root_bytes + step.gathered_bytes + cast),
        Owner(kind="activations", num_bytes=int(_saved(step) + once + work)),
        Owner(kind="buffers", num_bytes=int(buffers)),
    ]


def _at_reduction(step: Pass) -> list[Owner]:
    """Gradients of the last group in float32, whole and as a shard; cast once more where shards are kept otherwise."""
    elements = step.root_bytes / step.computed
    shard = _FLOAT32 + (step.kept if step.kept != _FLOAT32 else 0)
    return [Owner(kind="buffers", num_bytes=int(elements * (_FLOAT32 + shard / step.world)))]
