"""RAM of one node: processes, state that is offloaded, models that are being read."""

from __future__ import annotations

from collections.abc import Sequence

from rlcheck.facts.config import RunSpec
from rlcheck.facts.memory import Owner, Phase
from rlcheck.measure.memory.constants import CONSTANTS
from rlcheck.measure.memory.engine import EngineMemory
from rlcheck.measure.memory.roles import RoleMemory
from rlcheck.measure.memory.transient import BYTES


def phases(run: RunSpec, roles: Sequence[RoleMemory], engine: EngineMemory) -> list[Phase]:
    """What the fullest node (the first, where models are read) needs, phase by phase."""
    local = run.gpus_per_node
    beside = run.colocated and not run.rollout.in_process
    num_engines = max(local // max(run.rollout.tensor_parallel, 1), 1) if beside else 0
    processes = Owner(
        kind="context",
        num_bytes=CONSTANTS.controller_host_bytes
        + local * CONSTANTS.rank_host_bytes
        + num_engines * max(run.rollout.tensor_parallel, 1) * CONSTANTS.engine_host_bytes,
    )
    away = [Owner(kind="weights", role=role.name, num_bytes=local * role.on_host()) for role in roles if role.on_host()]
    reading = max(roles, key=_whole, default=None)
    whole = [] if reading is None else [Owner(kind="buffers", role=reading.name, num_bytes=_whole(reading))]
    saving = [Owner(kind="buffers", role=role.name, num_bytes=_largest(role) * local) for role in roles[:1]]
    return [
        Phase(name="load", owners=(processes, *away, *whole), pool="host"),
        Phase(name="rollout", owners=(processes, *away), pool="host"),
        Phase(name="checkpoint", owners=(processes, *away, *saving), pool="host"),
        Phase(name="export", owners=(processes, *away, *saving, _file(roles)), pool="host"),
    ]


def _whole(role: RoleMemory) -> int:
    """The model, at most: rank 0 reads it whole where transformers has to change what stands in its files."""
    return role.parameters * BYTES.get(role.spec.sharding.model_dtype, 4)


def _largest(role: RoleMemory) -> int:
    return role.shape.largest_tensor * BYTES.get(role.spec.sharding.model_dtype, 4)


def _file(roles: Sequence[RoleMemory]) -> Owner:
    """One file of weights, held until it is written: 5 GB at most."""
    actor = next(role for role in roles if role.name == "actor")
    return Owner(kind="buffers", role="actor", num_bytes=min(_whole(actor), 5_000_000_000))
