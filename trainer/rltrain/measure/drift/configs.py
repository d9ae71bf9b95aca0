"""The config that is measured: the run's own, with the actor alone, and with one thing changed."""

# Transformers is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
import yaml
from transformers import AutoModelForCausalLM

from rlcheck.facts.config import ConfigFacts
from rltrain.config import RunConfig, load, resolve
from rltrain.config.machine import this_machine
from rltrain.config.resolve import replaced
from rltrain.controller.prepare import with_toy
from rltrain.core.errors import UserError
from rltrain.measure.foreign import config_of
from rltrain.records.run_dir import RunDir
from rltrain.workers.fsdp.build import load_config, model_directory
from rltrain.workers.fsdp.precision import to_dtype
from rltrain.workers.fsdp.rank import derive_seed

MOST_RESPONSE = {"cpu": 32, "cuda": 512}
"""Tokens of a response at most: what is to be seen is seen in them."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_NO_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


@dataclass(frozen=True)
class Subject:
    """What is measured."""

    config: RunConfig
    """Resolved, with its toy made, and the actor alone."""
    weights_from: str
    """saved, random or toy."""
    notes: tuple[str, ...] = ()


def subject_of(request: Mapping[str, Any]) -> Subject:
    """The subject of a request to the plug-in (`rltrain.measure.drift.run`).

    Raises:
        UserError: the config cannot be used.
    """
    notes: list[str] = []
    directory = Path(request["directory"])
    if "run" in request:
        config = _foreign(request["run"], notes)
    else:
        config = resolve(load(request["source"], request["overrides"]), this_machine())
    weights_from = "saved"
    if config.toy is not None:
        weights_from = "saved" if config.actor_rollout_ref.model.path else "toy"
        config = with_toy(config, RunDir(directory))
    path = config.actor_rollout_ref.model.path
    if path is None:
        raise UserError("actor_rollout_ref.model.path is not set; name a directory in Hugging Face layout")
    if request.get("random_weights") or not any(True for name in _WEIGHTS for _ in Path(path).glob(name)):
        config, weights_from = with_random_weights(config, directory / "random"), "random"
    return Subject(actor_alone(config), weights_from, tuple(notes))


def actor_alone(config: RunConfig) -> RunConfig:
    """CONFIG without the roles that no log-probability needs, and with responses of a length that is quickly made."""
    parts, trainer = config.actor_rollout_ref, config.trainer
    most = min(config.data.max_response_length, MOST_RESPONSE[trainer.device])
    correction = config.algorithm.rollout_correction
    return replaced(
        config,
        actor_rollout_ref=replaced(
            parts,
            actor=replaced(parts.actor, use_kl_loss=False),
            rollout=replaced(parts.rollout, calculate_log_probs=True),
        ),
        critic=replaced(config.critic, enable=False),
        reward_model=replaced(config.reward_model, enable=False),
        algorithm=replaced(
            config.algorithm,
            use_kl_in_reward=False,
            rollout_correction=replaced(correction, bypass_mode=False),
        ),
        data=replaced(config.data, max_response_length=most),
        sft_warmup=replaced(config.sft_warmup, steps=0),
        # Weights are compared here, by name; the audit's second pass would tell nothing more.
        trainer=replaced(trainer, audit=False, verify_weight_sync=False),
    )


def changed(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The resolved CONFIG with OVERRIDES (`KEY=VALUE`, as on a command line).

    Raises:
        UserError: such a config cannot be.
    """
    pairs = [override.lstrip("+").partition("=") for override in overrides]
    return with_values(config, {key: yaml.safe_load(value) for key, _, value in pairs})


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The resolved CONFIG with VALUES by dotted key.

    Raises:
        UserError: such a config cannot be.
    """
    tree = config.model_dump()
    for key, value in values.items():
        *sections, last = key.split(".")
        place = tree
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = value
    if any(key.endswith(".tensor_model_parallel_size") for key in values):
        tree["actor_rollout_ref"]["rollout"]["num_replicas"] = None
    try:
        return resolve(RunConfig.model_validate(tree), this_machine())
    except ValueError as error:  # pydantic's are of this kind
        raise UserError(" ".join(str(error).split())) from None


def with_random_weights(config: RunConfig, directory: Path) -> RunConfig:
    """CONFIG with a model of the same shape in DIRECTORY, its weights drawn from the run's seed.

    Raises:
        UserError: no such model can be made.
    """
    section, dtype = config.actor_rollout_ref.model, to_dtype(config.actor_rollout_ref.rollout.dtype)
    source = model_directory(section)
    models, random = cast("tuple[Any, Any]", (AutoModelForCausalLM, torch.random))
    with random.fork_rng(devices=[]):
        random.manual_seed(derive_seed(config.trainer.seed, "random weights"))
        try:
            keywords = {"dtype": dtype, "trust_remote_code": section.trust_remote_code}
            model = models.from_config(load_config(section), **keywords)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise UserError(f"{source}: no model can be made of its config: {error}") from error
    model.save_pretrained(str(directory))
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_NO_FILES) and not (directory / file.name).exists():
            shutil.copy(file, directory / file.name)
    tokenizer = section.tokenizer_path or str(source)
    model_section = replaced(section, path=str(directory), tokenizer_path=tokenizer)
    return replaced(config, actor_rollout_ref=replaced(config.actor_rollout_ref, model=model_section))


def _foreign(run: Mapping[str, Any], notes: list[str]) -> RunConfig:
    """Another framework's config: rollout as `config_of` says, and the training side of its actor as FSDP2 has it."""
    spec = msgspec.convert(run, ConfigFacts).spec
    role, sharding = spec.actor, spec.actor.sharding
    if sharding.strategy not in ("fsdp", "fsdp2") or sharding.sequence_parallel > 1:
        notes.append(
            f"the training side is rltrain's (FSDP2): {sharding.strategy} with sequence parallel size "
            f"{sharding.sequence_parallel} may compute otherwise"
        )
    if role.model.lora_rank:
        notes.append("LoRA is left out: rltrain trains whole models, so that nothing is merged before a sync")
    fsdp, parts = "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref"
    values: dict[str, Any] = {
        f"{fsdp}.dtype": sharding.dtype,
        f"{fsdp}.model_dtype": sharding.model_dtype,
        f"{fsdp}.param_offload": sharding.param_offload,
        f"{parts}.model.use_remove_padding": role.model.remove_padding,
        f"{parts}.rollout.log_prob_micro_batch_size_per_gpu": role.infer_micro_batch_size or role.micro_batch_size,
        "data.train_files": spec.data.train_files or None,
        "data.prompt_key": spec.data.prompt_key,
        "data.reward_fn_key": spec.data.source_key,
    }
    return with_values(config_of(run), values)
