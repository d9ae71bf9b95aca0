"""Save and load what training needs to go on: models, optimizers, schedules, random numbers (DCP).

A checkpoint loads on any number of ranks: DCP cuts tensors again. On the same number, training continues bit for bit;
on another, the random numbers of each rank are seeded again from the run's seed and the steps done.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from rltrain.core.errors import UserError, kind_and_line
from rltrain.workers.fsdp.build import reshard
from rltrain.workers.fsdp.hashed_files import HashedFiles
from rltrain.workers.fsdp.rank import derive_seed, fail_together, seed_everything
from rltrain.workers.fsdp.rng import rng_state, set_rng_state
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.weights import named_weights

FACTS = "train_state.json"
"""Written last. Whether all files are still what they were is the controller's to see (`records.checkpoints`)."""
FORMAT = 1
_MODEL = "model."
"""Before the names of weights in what DCP writes."""


def save(directory: Path, models: Sequence[ShardedModel]) -> dict[str, str]:
    """Write ROLES and this rank's random state to DIRECTORY (collective; the directory is new or empty).

    Returns:
        SHA-256 of each file that this rank wrote, by path from DIRECTORY.

    Raises:
        UserError: on every rank, what could not be written; DIRECTORY then lacks `train_state.json`: it does not load.
    """
    problem, files, random_state = None, HashedFiles(), io.BytesIO()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        torch.save(rng_state(), random_state)
        files.write(directory / f"rng_{dist.get_rank():05d}.pt", random_state.getvalue())
    except (OSError, RuntimeError) as error:
        problem = f"checkpoint {directory} cannot be written: {error}"
    fail_together(problem)
    for sharded in models:
        writer = FileSystemWriter(directory / sharded.name)
        writer.fs = files
        try:
            dcp_save(_tensors(sharded), storage_writer=writer)
        except CheckpointException as error:
            raise UserError(f"checkpoint {directory / sharded.name} cannot be written: {_first(error)}") from error
    _write_facts(files, directory, {sharded.name: _facts(sharded) for sharded in models})
    return files.below(directory)


def load(directory: Path, models: Sequence[ShardedModel], seed: int) -> None:
    """Put ROLES and this rank's random numbers where DIRECTORY left them (collective).

    Args:
        directory: of `save`.
        roles: as they were saved, on any number of ranks.
        seed: of the run; used where the number of ranks has changed.

    Raises:
        UserError: the checkpoint is not complete, or holds another model.
    """
    document = _read_facts(directory)
    facts: Mapping[str, Any] = document["roles"]
    for sharded in models:
        _expect(sharded, facts, directory)
        _load_role(directory / sharded.name, sharded, facts[sharded.name])
    if document["world_size"] == dist.get_world_size():
        set_rng_state(torch.load(directory / f"rng_{dist.get_rank():05d}.pt", weights_only=True))
    else:
        steps = sum(each["num_steps"] for each in facts.values())
        seed_everything(derive_seed(seed, "resumed", steps, dist.get_rank()))


def load_weights(directory: Path, sharded: ShardedModel) -> None:
    """Put ROLE's parameters where DIRECTORY left them, and nothing of what trains it (collective).

    Not for training: two thirds of what `load` reads and holds of a role is the optimizer's.

    Raises:
        UserError: as `load`.
    """
    _expect(sharded, _read_facts(directory)["roles"], directory)
    _read(directory / sharded.name, _weights(sharded))
    sharded.leave()


def saved_models(directory: Path) -> set[str]:
    """The roles in the checkpoint DIRECTORY (collective).

    Raises:
        UserError: the checkpoint is not complete.
    """
    return set(_read_facts(directory)["roles"])


def _expect(sharded: ShardedModel, facts: Mapping[str, Any], directory: Path) -> None:
    if sharded.name not in facts:
        raise UserError(
            f"checkpoint {directory} has no {sharded.name} (it has {', '.join(facts)}): the config has changed"
        )


def _write_facts(files: HashedFiles, directory: Path, models: Mapping[str, Any]) -> None:
    """Write what `load` has to know before it reads tensors (collective; rank 0 writes)."""
    problem = None
    if dist.get_rank() == 0:
        document = {"format": FORMAT, "world_size": dist.get_world_size(), "roles": models}
        try:
            files.write(directory / FACTS, json.dumps(document, indent=1).encode())
        except OSError as error:
            problem = f"checkpoint {directory} cannot be written: {error}"
    fail_together(problem)


def _read_facts(directory: Path) -> dict[str, Any]:
    """What `_write_facts` wrote (collective: all ranks fail if one does)."""
    problem, document = None, dict[str, Any]()
    try:
        document = json.loads((directory / FACTS).read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            problem = f"{directory / FACTS}: format {document['format']}, this version reads {FORMAT}"
    except FileNotFoundError as error:
        problem = f"checkpoint {directory} is not complete ({error.filename} is missing): resume from an older one"
    except (OSError, ValueError, KeyError) as error:
        problem = f"{directory / FACTS} cannot be read ({error}): resume from an older checkpoint"
    fail_together(problem)
    return document


def _facts(sharded: ShardedModel) -> dict[str, Any]:
    stepper = sharded.stepper
    if stepper is None:
        return {"num_steps": 0, "num_skipped": 0, "num_updates": 0, "optimizer": False}
    return {
        "num_steps": stepper.num_steps,
        "num_skipped": stepper.num_skipped,
        "num_updates": stepper.num_updates,
        "optimizer": bool(stepper.optimizer.state),
    }


def _tensors(sharded: ShardedModel) -> dict[str, Any]:
    """What DCP writes: `model` by name, and `optimizer` by parameter and then kind. Shares memory with ROLE."""
    tensors = _weights(sharded)
    if sharded.stepper is not None and sharded.stepper.optimizer.state:
        states = cast("dict[nn.Parameter, dict[str, Tensor]]", sharded.stepper.optimizer.state)
        names = {parameter: name for name, parameter in sharded.model.named_parameters()}
        tensors["optimizer"] = {names[parameter]: dict(state) for parameter, state in states.items()}
    return tensors


def _weights(sharded: ShardedModel) -> dict[str, Any]:
    """The part `model` of `_tensors`."""
    reshard(sharded.model)
    return {"model": {name: tensor.detach() for name, tensor in named_weights(sharded.model)}}


def _load_role(directory: Path, sharded: ShardedModel, facts: Mapping[str, Any]) -> None:
    stepper = sharded.stepper
    if stepper is not None:
        stepper.optimizer.state.clear()
        if facts["optimizer"]:
            make_optimizer_state(sharded)
        if "num_updates" not in facts:
            raise UserError(
                f"checkpoint {directory} is of an rltrain whose learning rate followed optimizer steps, not updates: "
                "train from the model that `rltrain export` makes of it"
            )
        stepper.num_steps, stepper.num_skipped = facts["num_steps"], facts["num_skipped"]
        stepper.num_updates = facts["num_updates"]
    _read(directory, _tensors(sharded))
    sharded.leave()


def _read(directory: Path, tensors: dict[str, Any]) -> None:
    """Fill TENSORS from DIRECTORY, which may hold more (collective)."""
    try:
        dcp_load(tensors, checkpoint_id=directory)
    except CheckpointException as error:
        raise UserError(f"checkpoint {directory} does not fit this model, or is not whole: {_first(error)}") from error


def saved_sizes(directory: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of each weight of one role, DIRECTORY, by name, as they were saved.

    Raises:
        UserError: they cannot be read.
    """
    try:
        found = FileSystemReader(directory).read_metadata().state_dict_metadata
    except (OSError, ValueError, KeyError, CheckpointException) as error:
        raise UserError(f"checkpoint {directory} cannot be read: {kind_and_line(error)}") from error
    return {
        key.removeprefix(_MODEL): (about.size, about.properties.dtype)
        for key, about in found.items()
        if key.startswith(_MODEL) and isinstance(about, TensorStorageMetadata)
    }


def read_alone(directory: Path, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """The whole weights NAMES (None: all) of one role, DIRECTORY, on the host: by this process alone.

    Raises:
        UserError: they cannot be read.
    """
    sizes = saved_sizes(directory)
    state: dict[str, Any] = {
        f"{_MODEL}{name}": torch.empty(size, dtype=dtype)
        for name, (size, dtype) in sizes.items()
        if names is None or name in names
    }
    try:
        with warnings.catch_warnings():  # that there is no process group is what is asked for
            warnings.simplefilter("ignore")
            dcp_load(state, storage_reader=FileSystemReader(directory), no_dist=True)
    except (OSError, ValueError, KeyError, CheckpointException) as error:
        raise UserError(f"checkpoint {directory} cannot be read: {kind_and_line(error)}") from error
    return {key.removeprefix(_MODEL): tensor for key, tensor in state.items()}


def make_optimizer_state(sharded: ShardedModel) -> None:
    """AdamW's state of each parameter, empty: what is loaded is read into tensors that exist."""
    stepper = sharded.trainer()
    for parameter in sharded.model.parameters():
        stepper.optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter.detach()),
            "exp_avg_sq": torch.zeros_like(parameter.detach()),
        }


def _first(error: CheckpointException) -> str:
    """The first rank's reason, in one line."""
    rank, (reason, _) = next(iter(sorted(error.failures.items())))
    return f"rank {rank}: {kind_and_line(reason)}"
