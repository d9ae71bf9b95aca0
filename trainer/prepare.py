"""Everything that can be made and checked before a cluster is started: toy, tokenizer, data, rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from trainer.cluster.waits import Say
from trainer.config.schema import RunConfig, Section
from trainer.data.dataset import Dataset, build_dataset
from trainer.data.demonstrations import encode_demonstration
from trainer.data.template import load_tokenizer
from trainer.errors import UserError
from trainer.run_dir import RunDir
from trainer.toy.make import make_toy
from trainer.trainers import Encoded

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class Prepared:
    """Inputs of a run, read and checked."""

    config: RunConfig
    """With the paths of what was made on the spot."""
    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    val: Dataset | None
    demonstrations: tuple[Encoded, ...]


def prepare(config: RunConfig, directory: RunDir, say: Say) -> Prepared:
    """Make and read what the run of CONFIG works on.

    Raises:
        UserError: the data, the model's directory or the tokenizer cannot be used.
    """
    if config.toy is not None:
        config = with_toy(config, directory)
    model = config.actor_rollout_ref.model
    path = model.tokenizer_path or model.path
    if path is None:
        raise UserError("actor_rollout_ref.model.path is not set; name a directory in Hugging Face layout")
    tokenizer = load_tokenizer(path, model.trust_remote_code, model.custom_chat_template)
    train = build_dataset(config.data.train_files, config.data, tokenizer, "train")
    say(train.report.line())
    val = None
    if config.data.val_files:
        val = build_dataset(config.data.val_files, config.data, tokenizer, "val")
        say(val.report.line())
    return Prepared(config, tokenizer, train, val, _demonstrations(config, tokenizer))


def _demonstrations(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[Encoded, ...]:
    if not config.sft_warmup.steps:
        return ()
    dataset = build_dataset(config.sft_warmup.files, config.data, tokenizer, "sft")
    limit = config.data.max_response_length
    return tuple(encode_demonstration(row, tokenizer, limit) for row in dataset)


def with_toy(config: RunConfig, directory: RunDir) -> RunConfig:
    """CONFIG with what `toy` makes in the places that were left open."""
    paths = make_toy(config, directory.toy)
    data, parts, warmup = config.data, config.actor_rollout_ref, config.sft_warmup
    return replaced(
        config,
        data=replaced(
            data,
            train_files=data.train_files or str(paths.train_file),
            val_files=data.val_files or str(paths.val_file),
        ),
        actor_rollout_ref=replaced(parts, model=replaced(parts.model, path=parts.model.path or str(paths.model))),
        critic=replaced(
            config.critic,
            model=replaced(config.critic.model, path=config.critic.model.path or str(paths.model)),
        ),
        sft_warmup=replaced(warmup, files=warmup.files or str(paths.sft_file)),
    )


def replaced(section: S, **values: Any) -> S:
    """SECTION with some VALUES of their own types."""
    return section.model_copy(update=values)
