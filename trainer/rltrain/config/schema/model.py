"""Models, how they are sharded, and how they are optimised: shared by actor, reference, critic and reward model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rlcheck.measure.config.picking import usual_dtype
from rltrain.config.schema.base import Section


def _usual_spelling(value: Any) -> Any:
    return usual_dtype(value) if isinstance(value, str) else value


Precision = Annotated[Literal["auto", "float32", "bfloat16", "float16"], BeforeValidator(_usual_spelling)]
"""`auto`: bfloat16 on a GPU, float32 on a CPU. verl's `fp32`, `bf16`, `fp16` are read as well."""
_Beta = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Section):
    """What `actor_rollout_ref.model`, `critic.model` and `reward_model.model` share."""

    path: str | None = None
    """Directory in Hugging Face layout. Null: what the `toy` section makes."""
    tokenizer_path: str | None = None
    """Directory of the tokenizer; null: `path`."""
    trust_remote_code: bool = False
    override_config: dict[str, Any] = {}
    """Keys that replace those of the model's `config.json`."""
    custom_chat_template: str | None = None
    enable_gradient_checkpointing: bool = True
    use_remove_padding: bool = True
    """Pack the tokens of a micro batch into one row, without padding."""


class PolicyModelConfig(ModelConfig):
    """`actor_rollout_ref.model`."""

    use_fused_kernels: bool = True
    """Read log-probabilities by blocks of tokens and vocabulary, of actor and reference: logits never exist whole. Left
    out, with a note, where a trial at the start shows that the model's head cannot be read so. On a GPU also compute
    norms, rotary embeddings and gated MLPs of all models by one kernel each, where they are of the usual form."""


class OptimConfig(Section):
    """AdamW (Loshchilov and Hutter 2019) and the schedule of its learning rate, which changes once an iteration."""

    lr: float = Field(default=1e-6, gt=0)
    lr_warmup_steps: int = Field(default=-1, ge=-1)
    """Training iterations of linear warm-up, the first at a rate of 0; 0 or less: as `lr_warmup_steps_ratio` says."""
    lr_warmup_steps_ratio: float = Field(default=0.0, ge=0, le=1)
    """Warm-up as a share of the run's iterations, rounded down."""
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = "constant"
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[_Beta, _Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)


class FsdpConfig(Section):
    """Sharding by FSDP2 (`torch.distributed.fsdp.fully_shard`)."""

    param_offload: bool = False
    """Keep parameters on the host while their role is idle."""
    optimizer_offload: bool = False
    """Keep optimizer state on the host while the role is idle."""
    offload_policy: bool = False
    """FSDP2's own CPU offload: parameters, gradients and optimizer live on the host all the time."""
    fsdp_size: int = Field(default=-1, ge=-1)
    """Ranks that hold one copy of the model together; the others hold more copies of it (HSDP), which all learn from
    rows of their own. Best the GPUs of a node: parameters then never cross nodes, gradients do once. 0, -1, or as many
    as there are ranks: one copy over all of them."""
    reshard_after_forward: bool = True
    model_dtype: Precision = "float32"
    """Of the sharded parameters, gradients and optimizer state."""
    dtype: Precision = "auto"
    """Of forward and backward (mixed precision)."""
    entropy_from_logits_with_chunking: bool = True
