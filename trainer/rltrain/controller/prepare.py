"""Everything that can be made and checked before a cluster is started: toy, tokenizer, data, rewards."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from rltrain.cluster.waits import Say
from rltrain.config.resolve import replaced
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from rltrain.data.dataset import Dataset, build_dataset
from rltrain.data.schema import Split
from rltrain.data.sft import SftDataset, SftSettings, build_sft
from rltrain.data.template import load_tokenizer
from rltrain.records.run_dir import RunDir
from rltrain.rewards.coverage import check_rows
from rltrain.rewards.spec import spec_of
from rltrain.toy.make import make_toy


@dataclass(frozen=True)
class Inputs:
    """What ranks and engines are started with."""

    config: RunConfig
    """With the paths of what was made on the spot."""
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prepared(Inputs):
    """Inputs of a run, read and checked."""

    train: Dataset
    val: Dataset | None
    demonstrations: SftDataset | None
    """For the supervised warm-up, where there is one."""


@dataclass(frozen=True)
class PreparedValidation(Inputs):
    """Inputs of a validation, read and checked."""

    val: Dataset


def prepare(config: RunConfig, directory: RunDir, say: Say) -> Prepared:
    """Make and read what the run of CONFIG works on.

    Raises:
        UserError: the data, the model's directory or the tokenizer cannot be used.
    """
    if config.toy is not None:
        config = with_toy(config, directory)
    tokenizer = tokenizer_of(config)
    train = _scorable(config.data.train_files, config, tokenizer, "train", say)
    val = _scorable(config.data.val_files, config, tokenizer, "val", say) if config.data.val_files else None
    return Prepared(config, tokenizer, train, val, _demonstrations(config, tokenizer, say))


def prepare_validation(config: RunConfig, directory: RunDir, say: Say) -> PreparedValidation:
    """As `prepare`, without what only training needs.

    Raises:
        UserError: as `prepare`, or there is no validation data.
    """
    if config.toy is not None:
        config = with_toy(config, directory)
    if not config.data.val_files:
        raise UserError("the run has no validation data: give data.val_files=FILE")
    tokenizer = tokenizer_of(config)
    return PreparedValidation(config, tokenizer, _scorable(config.data.val_files, config, tokenizer, "val", say))


def tokenizer_of(config: RunConfig) -> PreTrainedTokenizerBase:
    """The policy's tokenizer, with the chat template of CONFIG.

    Raises:
        UserError: there is none, or it cannot be used.
    """
    model = config.actor_rollout_ref.model
    path = model.tokenizer_path or model.path
    if path is None:
        raise UserError("actor_rollout_ref.model.path is not set; name a directory in Hugging Face layout")
    return load_tokenizer(path, model.trust_remote_code, model.custom_chat_template)


def _scorable(
    files: str | tuple[str, ...] | None, config: RunConfig, tokenizer: PreTrainedTokenizerBase, split: Split, say: Say
) -> Dataset:
    """The rows of FILES, each of which the rewards of CONFIG can score."""
    dataset = build_dataset(files, config.data, tokenizer, split)
    say(dataset.report.line())
    check_rows(dataset, spec_of(config), config.reward_model.enable)
    return dataset


def _demonstrations(config: RunConfig, tokenizer: PreTrainedTokenizerBase, say: Say) -> SftDataset | None:
    if not config.sft_warmup.steps:
        return None
    found = build_sft(config.sft_warmup.files, "sft_warmup.files", SftSettings.of_warmup(config), tokenizer)
    say(found.report.line())
    return found


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
