"""One training rank of a measurement: `python -m rltrain.measure.memory.rank`, one JSON request on standard input.

Runs every phase of training twice over, as `TrainWorker` does in a run, and prints one JSON line for each.
"""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from rlcheck.facts.base import Struct
from rlcheck.facts.config import RunSpec
from rlcheck.facts.memory import MeasuredPhase
from rltrain.config.schema import RunConfig
from rltrain.measure.memory.as_config import config_of
from rltrain.measure.memory.child import answer
from rltrain.measure.memory.meter import Meter, States
from rltrain.measure.memory.random_weights import Lora, RandomWeights
from rltrain.measure.memory.rows import full_rows, mini_batch
from rltrain.workers.fsdp.micro import MicroSize
from rltrain.workers.fsdp.optim import local
from rltrain.workers.fsdp.rank import RankInfo
from rltrain.workers.fsdp.worker import ModelName, TrainWorker
from rltrain.workers.sync.bucket import largest_bytes, plan

PASSES = 2
"""Micro batches in an optimizer step: in the second one gradients of the first are there."""


class RankRequest(Struct, frozen=True):
    """What one rank is asked. `limit_bytes`: of the GPU, that torch may have (what sleeping engines leave); 0: all."""

    spec: RunSpec
    directories: dict[str, str]
    vocab_size: int
    rank: int
    world_size: int
    port: int
    limit_bytes: int = 0


class MemoryTrainWorker(TrainWorker):
    """The worker of a run, whose phases are measured."""

    def prepare(self, config: RunConfig, info: RankInfo, vocab_size: int) -> None:
        """Set up the models, and the meter."""
        self.setup(total_steps=100)
        self._vocab_size = vocab_size
        self.meter = Meter(torch.device(info.device))
        self.meter.mark("load", self._states())
        for name, sharded in self._models.items():
            if sharded.stepper is not None:
                sharded.stepper.optimizer.register_step_pre_hook(self._marker(f"{name} update"))
                sharded.stepper.optimizer.register_step_post_hook(self._marker(f"{name} step"))

    def _marker(self, name: str) -> Callable[..., None]:
        def mark(*_: Any) -> None:
            self.meter.mark(name, self._states())

        return mark

    def _states(self) -> States:
        weights: dict[str, int] = {}
        gradients: dict[str, int] = {}
        optimizer: dict[str, int] = {}
        for name, sharded in self._models.items():
            parameters = list(sharded.model.parameters())
            weights[name] = _on_device(parameters)
            gradients[name] = _on_device([p.grad for p in parameters if p.grad is not None])
            if sharded.stepper is not None:
                states = sharded.stepper.optimizer.state.values()
                optimizer[name] = _on_device([t for s in states for t in s.values() if isinstance(t, Tensor)])
        return States(weights, gradients, optimizer)

    def phases(self) -> None:
        """Every phase, in the order of a run; updates once more before."""
        config = self._config
        actor = config.actor_rollout_ref.actor
        if "critic" in self._models:
            self._update("critic", MicroSize.of(config.critic))
        self._update("actor", MicroSize.of(actor))
        # After the first updates: from then on optimizers have their state.
        with self.meter.phase("log-probs", self._states()):
            self.log_probs(self._rows(MicroSize.of_log_probs(config)))
        if "ref" in self._models:
            with self.meter.phase("ref log-probs", self._states()):
                self.ref_log_probs(self._rows(MicroSize.of_reference(config)))
        if "critic" in self._models:
            with self.meter.phase("values", self._states()):
                self.values(self._rows(MicroSize.of(config.critic)))
            self._update("critic", MicroSize.of(config.critic))
        self._update("actor", MicroSize.of(actor))
        self.free_cache()
        gc.collect()
        with self.meter.phase("weight sync", self._states()):
            self._sync()
        self.free_cache()
        with self.meter.phase("idle", self._states()):
            pass

    def _rows(self, size: MicroSize, passes: int = 1) -> dict[str, Tensor]:
        data = self._config.data
        return full_rows(size, data.max_prompt_length, data.max_response_length, self._vocab_size, passes)

    def _update(self, name: ModelName, size: MicroSize) -> None:
        mini = mini_batch(self._rows(size, PASSES), size, PASSES)
        update = self.update_critic if name == "critic" else self.update_actor
        update([mini])

    def _sync(self) -> None:
        """The staging buffer of a sync, and each tensor whole beside it."""
        bucket_bytes = self._config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes << 20
        largest = largest_bytes(plan(self.weight_manifest(), bucket_bytes))
        staging = torch.empty(largest, dtype=torch.uint8, device=self._info.device)
        for _, tensor in self.full_weights():
            staging[0] = 0
            del tensor


def _on_device(tensors: Sequence[Tensor]) -> int:
    shards = [local(tensor.detach()) for tensor in tensors]
    return sum(shard.numel() * shard.element_size() for shard in shards if shard.is_cuda)


def measure(request: RankRequest) -> list[MeasuredPhase]:
    """The phases of REQUEST on this rank; one that did not fit is the last, with its error."""
    device = torch.device("cuda", 0)
    if request.limit_bytes:
        _, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(min(request.limit_bytes / total, 1.0), device)
    config = config_of(request.spec, request.directories, request.world_size)
    info = RankInfo(request.rank, request.world_size, "127.0.0.1", request.port, "cuda:0")
    use = request.spec.actor.model
    lora = Lora(use.lora_rank, use.lora_alpha, use.target_modules) if use.lora_rank else None
    worker = MemoryTrainWorker(config, info, RandomWeights(lora))
    try:
        worker.prepare(config, info, request.vocab_size)
        worker.phases()
    except torch.OutOfMemoryError as error:
        done = list(worker.meter.phases.values()) if worker.__dict__.get("meter") else []
        return [*done, MeasuredPhase(name="out of memory", peak_bytes=0, error=str(error).split(" If ")[0])]
    worker.shutdown()
    return list(worker.meter.phases.values())


if __name__ == "__main__":
    answer(RankRequest, lambda request: {"phases": msgspec.to_builtins(measure(request))})
