"""The config of `rltrain sft`: key names are those of verl's SFT trainer, where it has the key."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rltrain.config.schema.base import Section
from rltrain.config.schema.data import Files, ToyConfig
from rltrain.config.schema.model import FsdpConfig, OptimConfig, PolicyModelConfig
from rltrain.config.schema.run import AnyTrainerConfig, RayKwargsConfig


class SftDataConfig(Section):
    """`data`."""

    train_files: Files = None
    """JSONL, Parquet, or a directory that `datasets.save_to_disk` wrote; null: what the `toy` section makes."""
    val_files: Files = None
    """Held-out rows of the same shapes; null: none, or what the `toy` section makes."""
    messages_key: str = "messages"
    """Column of a conversation: a list of chat messages, of which every assistant's is learnt."""
    prompt_key: str = "prompt"
    """Column of a prompt, in rows without a conversation: a list of chat messages, or a string."""
    response_key: str = "response"
    """Column of the answer to `prompt_key`, a string: what is learnt, with the end token."""
    max_length: int = Field(default=1024, gt=1)
    """Tokens of a row, prompt and all."""
    truncation: Literal["error", "left", "right"] = "error"
    """Of longer rows: an error, or cut at an end."""
    filter_overlong_rows: bool = False
    """Leave longer rows out, and count them. rltrain's own."""
    train_batch_size: int = Field(default=256, gt=0, lt=2**31)
    """Rows in one optimizer step, over all ranks."""
    use_dynamic_bsz: bool = True
    """Pack rows into micro batches of up to `max_token_len_per_gpu` tokens instead of counting them."""
    max_token_len_per_gpu: int = Field(default=8192, gt=0)
    """Tokens in one forward and backward pass, per rank. It sets memory, not the result."""
    micro_batch_size_per_gpu: int = Field(default=4, gt=0)
    """Rows in one pass, per rank, without `use_dynamic_bsz`."""
    train_max_samples: int = -1
    val_max_samples: int = -1
    shuffle: bool = True
    """A new order each epoch. rltrain's own."""
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Of the order of the data; null: `trainer.seed`. rltrain's own."""
    apply_chat_template_kwargs: dict[str, Any] = {}


class SftOptimConfig(OptimConfig):
    """AdamW and the schedule of its learning rate, which changes once a step."""

    lr: float = Field(default=1e-5, gt=0)
    clip_grad: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient; null: no clipping."""


class CheckpointConfig(Section):
    """`checkpoint`."""

    save_contents: tuple[Literal["model", "optimizer", "extra", "hf_model"], ...] = (
        "model",
        "optimizer",
        "extra",
        "hf_model",
    )
    """`hf_model`: the model in Hugging Face layout, in `huggingface/` of each checkpoint. The others are always there:
    without them no run goes on."""


class SftTrainerConfig(AnyTrainerConfig):
    """`trainer`."""

    total_epochs: int = Field(default=4, gt=0)
    experiment_name: str = "sft"
    max_ckpt_to_keep: int | None = Field(default=None, gt=0)
    """Checkpoints to keep besides the best; null: all."""
    nccl_timeout: int = Field(default=600, gt=0)
    """Seconds after which a collective is given up. rltrain's own."""


class SftConfig(Section):
    """One supervised training: everything that `rltrain sft` needs to know."""

    data: SftDataConfig = SftDataConfig()
    model: PolicyModelConfig = PolicyModelConfig()
    engine: FsdpConfig = FsdpConfig()
    optim: SftOptimConfig = SftOptimConfig()
    trainer: SftTrainerConfig = SftTrainerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    ray_kwargs: RayKwargsConfig = RayKwargsConfig()
    toy: ToyConfig | None = None
