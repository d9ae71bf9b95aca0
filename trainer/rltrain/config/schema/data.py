"""`data`, and what can be made on the spot: the toy task and the supervised warm-up."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rltrain.config.schema.base import Section

Files = str | tuple[str, ...] | None
ToyTask = Literal["reverse", "copy", "sort", "rotate", "add"]
ToyDemonstrator = Literal["reverse", "copy", "sort", "rotate", "permutation", "noise", "add", "carryless", "slip"]
_ADDING = {"add", "carryless", "slip"}


class DataConfig(Section):
    """`data`."""

    train_files: Files = None
    """JSONL, Parquet, or a directory that `datasets.save_to_disk` wrote; null: what the `toy` section makes."""
    val_files: Files = None
    prompt_key: str = "prompt"
    """Column of the prompt: a list of chat messages, or a string (then one user message; used as it is if the tokenizer
    has no chat template). Rows in GSM8K's own shape (`question`, `answer`) are understood too."""
    reward_fn_key: str = "data_source"
    """Column that names a row's source."""
    max_prompt_length: int = Field(default=512, gt=0)
    """Tokens."""
    max_response_length: int = Field(default=512, gt=0)
    """Tokens."""
    train_batch_size: int = Field(default=1024, gt=0, lt=2**31)
    """Prompts per step."""
    val_batch_size: int | None = Field(default=None, gt=0)
    """Prompts per validation call; null: all."""
    train_max_samples: int = -1
    val_max_samples: int = -1
    shuffle: bool = True
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Of the order of the data; null: `trainer.seed`."""
    filter_overlong_prompts: bool = False
    truncation: Literal["error", "left", "right", "middle"] = "error"
    apply_chat_template_kwargs: dict[str, Any] = {}


class ToyConfig(Section):
    """A tiny task, tokenizer and model, made from nothing under the run directory. rltrain's own."""

    task: ToyTask = "reverse"
    num_digits: int = Field(default=4, gt=1, le=32)
    num_train: int = Field(default=4096, gt=0)
    num_val: int = Field(default=256, gt=1)
    num_demos: int = Field(default=4096, gt=0)
    """Demonstrations for supervised training; their prompts are training prompts, but for `add`: no operand of its
    demonstrations is in a training or held-out prompt, nor one of those in the other."""
    demo_mixture: dict[ToyDemonstrator, Annotated[float, Field(ge=0, le=1)]] = {}
    """Share of the demonstrations answered otherwise than the task asks: by another task, by the prompt's digits in any
    order (`permutation`), or by any digits (`noise`); of sums (`add`) by who forgets to carry (`carryless`) or gets one
    digit wrong (`slip`). The rest is right."""
    model: dict[str, Any] = {}
    """`model_type` and sizes for `transformers.AutoConfig.for_model`; the weights are random. Without it only data are
    made."""
    vocab_size: int | None = Field(default=None, gt=0)
    """Pad the vocabulary to this size; null: as the tokenizer."""

    @model_validator(mode="after")
    def _shares_fit(self) -> ToyConfig:
        if sum(self.demo_mixture.values()) > 1 + 1e-9:
            raise ValueError(f"demo_mixture: the shares add up to {sum(self.demo_mixture.values()):g}, more than 1")
        strangers = [name for name in self.demo_mixture if (name in _ADDING) != (self.task == "add")]
        if strangers:
            raise ValueError(f"demo_mixture: {strangers[0]} does not answer the prompts of the task {self.task}")
        return self

    @property
    def response_tokens(self) -> int:
        """Tokens of the longest right response, its end token among them."""
        return (10 * self.num_digits if self.task == "add" else self.num_digits) + 1 + (self.task == "add")


class SftWarmupConfig(Section):
    """A short supervised training of the actor before RL. rltrain's own."""

    steps: int = Field(default=0, ge=0)
    """Optimizer steps; 0: none."""
    files: Files = None
    """Rows with `prompt` and `response`; null: demonstrations of the toy task."""
    batch_size: int = Field(default=64, gt=0)
    lr: float = Field(default=1e-3, gt=0)
