"""What workers import, by name: in the process that they are forked from, where they are."""

from __future__ import annotations

from collections.abc import Sequence

from rltrain.cluster.fork_server import Imports
from rltrain.cluster.placement import Slot
from rltrain.config.engines import ENGINES
from rltrain.config.schema import RunConfig


def imports_of(config: RunConfig, slots: Sequence[Slot]) -> Imports | None:
    """What the workers in SLOTS import; None where one process of its own would save nothing."""
    if len(slots) < 2:
        return None
    engine = ENGINES[config.actor_rollout_ref.rollout.name].engine.partition(":")[0]
    named = {"train": ("rltrain.workers.fsdp.worker",), "rollout": ("rltrain.workers.rollout.worker", engine)}
    kinds = dict.fromkeys(slot.kind for slot in slots)
    modules = tuple(module for kind in kinds for module in named[kind])
    # Libraries have read it by the time that a worker is forked. Those who may use fewer threads are told.
    return Imports(modules, max(slot.num_threads for slot in slots))
