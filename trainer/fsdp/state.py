"""Save and load what training needs to go on: models, optimizers, schedules, random numbers (DCP).

A checkpoint loads on any number of ranks: DCP cuts tensors anew. On the same number, training continues bit for bit;
on another, the random numbers of each rank are seeded anew from the run's seed and the steps done.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from trainer.errors import UserError, kind_and_line
from trainer.fsdp.build import reshard
from trainer.fsdp.rank import derive_seed, fail_together, seed_everything
from trainer.fsdp.rng import rng_state, set_rng_state
from trainer.fsdp.role import Role
from trainer.fsdp.weights import named_weights

FACTS = "train_state.json"
"""Written last. Whether all files are still what they were is the controller's to see (`trainer.checkpoints`)."""
FORMAT = 1


def save(directory: Path, roles: Sequence[Role]) -> None:
    """Write ROLES and this rank's random state to DIRECTORY (collective; the directory is new or empty).

    Raises:
        UserError: on every rank, what could not be written; DIRECTORY then lacks `train_state.json`: it does not load.
    """
    problem = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        torch.save(rng_state(), directory / f"rng_{dist.get_rank():05d}.pt")
    except (OSError, RuntimeError) as error:
        problem = f"checkpoint {directory} cannot be written: {error}"
    fail_together(problem)
    for role in roles:
        try:
            dcp_save(_tensors(role), checkpoint_id=directory / role.name)
        except CheckpointException as error:
            raise UserError(f"checkpoint {directory / role.name} cannot be written: {_first(error)}") from error
    _write_facts(directory, {role.name: _facts(role) for role in roles})


def load(directory: Path, roles: Sequence[Role], seed: int) -> None:
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
    for role in roles:
        _expect(role, facts, directory)
        _load_role(directory / role.name, role, facts[role.name])
    if document["world_size"] == dist.get_world_size():
        set_rng_state(torch.load(directory / f"rng_{dist.get_rank():05d}.pt", weights_only=True))
    else:
        steps = sum(each["num_steps"] for each in facts.values())
        seed_everything(derive_seed(seed, "resumed", steps, dist.get_rank()))


def load_weights(directory: Path, role: Role) -> None:
    """Put ROLE's parameters where DIRECTORY left them, and nothing of what trains it (collective).

    Not for training: two thirds of what `load` reads and holds of a role is the optimizer's.

    Raises:
        UserError: as `load`.
    """
    _expect(role, _read_facts(directory)["roles"], directory)
    _read(directory / role.name, _weights(role))
    role.leave()


def saved_roles(directory: Path) -> set[str]:
    """The roles in the checkpoint DIRECTORY (collective).

    Raises:
        UserError: the checkpoint is not complete.
    """
    return set(_read_facts(directory)["roles"])


def _expect(role: Role, facts: Mapping[str, Any], directory: Path) -> None:
    if role.name not in facts:
        raise UserError(
            f"checkpoint {directory} has no {role.name} (it has {', '.join(facts)}): the config has changed"
        )


def _write_facts(directory: Path, roles: Mapping[str, Any]) -> None:
    """Write what `load` has to know before it reads tensors (collective; rank 0 writes)."""
    problem = None
    if dist.get_rank() == 0:
        document = {"format": FORMAT, "world_size": dist.get_world_size(), "roles": roles}
        try:
            (directory / FACTS).write_text(json.dumps(document, indent=1), encoding="utf-8")
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


def _facts(role: Role) -> dict[str, Any]:
    stepper = role.stepper
    if stepper is None:
        return {"num_steps": 0, "num_skipped": 0, "optimizer": False}
    return {
        "num_steps": stepper.num_steps,
        "num_skipped": stepper.num_skipped,
        "optimizer": bool(stepper.optimizer.state),
    }


def _tensors(role: Role) -> dict[str, Any]:
    """What DCP writes: `model` by name, and `optimizer` by parameter and then kind. Shares memory with ROLE."""
    tensors = _weights(role)
    if role.stepper is not None and role.stepper.optimizer.state:
        states = cast("dict[nn.Parameter, dict[str, Tensor]]", role.stepper.optimizer.state)
        names = {parameter: name for name, parameter in role.model.named_parameters()}
        tensors["optimizer"] = {names[parameter]: dict(state) for parameter, state in states.items()}
    return tensors


def _weights(role: Role) -> dict[str, Any]:
    """The part `model` of `_tensors`."""
    reshard(role.model)
    return {"model": {name: tensor.detach() for name, tensor in named_weights(role.model)}}


def _load_role(directory: Path, role: Role, facts: Mapping[str, Any]) -> None:
    stepper = role.stepper
    if stepper is not None:
        stepper.optimizer.state.clear()
        if facts["optimizer"]:
            _make_optimizer_state(role)
        stepper.num_steps, stepper.num_skipped = facts["num_steps"], facts["num_skipped"]
    _read(directory, _tensors(role))
    role.leave()


def _read(directory: Path, tensors: dict[str, Any]) -> None:
    """Fill TENSORS from DIRECTORY, which may hold more (collective)."""
    try:
        dcp_load(tensors, checkpoint_id=directory)
    except CheckpointException as error:
        raise UserError(f"checkpoint {directory} does not fit this model, or is not whole: {_first(error)}") from error


def _make_optimizer_state(role: Role) -> None:
    """AdamW's state of each parameter, empty: DCP reads into tensors that exist."""
    stepper = role.trainer()
    for parameter in role.model.parameters():
        stepper.optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter.detach()),
            "exp_avg_sq": torch.zeros_like(parameter.detach()),
        }


def _first(error: CheckpointException) -> str:
    """The first rank's reason, in one line."""
    rank, (reason, _) = next(iter(sorted(error.failures.items())))
    return f"rank {rank}: {kind_and_line(reason)}"
