"""The training rank of a run, which can be put where a captured step began."""

# Torch and safetensors are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safetensors import safe_open
from torch import Tensor

from rltrain.core.errors import UserError
from rltrain.workers.fsdp.capture import MOMENTS
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.fsdp.state import make_optimizer_state
from rltrain.workers.fsdp.weights import named_weights, take
from rltrain.workers.fsdp.worker import ModelName, TrainWorker

Counts = tuple[int, int | None, int]
"""Optimizer steps of a role since the run began, Adam's own count (None: it has no state), and its updates."""


class ReplayTrainWorker(TrainWorker):
    """Calls are collective."""

    def restore(self, file: str, counts: Mapping[ModelName, Counts]) -> None:
        """Take weights and moments from FILE, a capsule's `weights.safetensors` that holds them whole.

        Raises:
            UserError: a tensor is missing or has another shape than the model's.
        """
        with safe_open(file, "pt") as kept:
            held = set(kept.keys())
            for name, sharded in self._models.items():
                prefix = "reference" if name == "ref" else f"{name}.before"
                for weight, tensor in named_weights(sharded.model):
                    _fill(tensor, f"{prefix}/{weight}", kept, held)
                if sharded.stepper is not None and counts[name][1] is not None:
                    _fill_moments(sharded, f"{name}.", kept, held, float(counts[name][1] or 0))
                sharded.leave()
        self.count(counts)

    def count(self, counts: Mapping[ModelName, Counts]) -> None:
        """Go on with the schedules of the learning rates from COUNTS."""
        for name in self._learning():
            stepper = self._models[name].trainer()
            stepper.num_steps, _, stepper.num_updates = counts[name]


def _fill_moments(sharded: ShardedModel, prefix: str, kept: Any, held: set[str], steps: float) -> None:
    make_optimizer_state(sharded)
    for weight, tensor in named_weights(sharded.model):
        state = sharded.trainer().optimizer.state.get(tensor, {})
        for moment, value in state.items():
            if moment in MOMENTS:
                _fill(value, f"{prefix}{moment}.before/{weight}", kept, held)
            else:
                value.fill_(steps)


def _fill(tensor: Tensor, key: str, kept: Any, held: set[str]) -> None:
    if key not in held:
        raise UserError(f"the capsule holds no '{key}', which the step needs to be run again")
    whole: Tensor = kept.get_tensor(key)
    if whole.shape != tensor.shape or whole.dtype != tensor.dtype:
        raise UserError(
            f"'{key}' of the capsule is {whole.dtype} {list(whole.shape)}, that of the model {tensor.dtype} "
            f"{list(tensor.shape)}: its config is not the one that was kept"
        )
    take(tensor, whole)
