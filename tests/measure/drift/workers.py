"""Training ranks and engines that can be told to make a mistake: one crew for many faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from rltrain.measure.drift.workers import DriftEngineWorker, DriftTrainWorker
from rltrain.workers.fsdp.forward import Policy
from rltrain.workers.fsdp.sharded_model import ShardedModel
from rltrain.workers.sync.transport import Descriptor


class Rounding(Policy):
    """Rounds logits to bfloat16."""

    def _stats(self, logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return super()._stats(logits.bfloat16(), *rest)


class Shifting(Policy):
    """Reads each token under the logits of its neighbour."""

    def _stats(self, logits: Tensor, targets: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return super()._stats(logits, targets.roll(1), *rest)


class FaultyRank(DriftTrainWorker):
    """`unsent`: of weights whose name holds it, the first version is sent for ever; `forgets`: the temperature;
    `rounds`: logits are rounded; `shifts`: targets are."""

    unsent = ""
    forgets = False
    rounds = False
    shifts = False

    def setup(self, total_steps: int) -> dict[str, Any]:
        facts = super().setup(total_steps)
        publisher = self._sending()
        gather, first = publisher._weights, dict[str, Tensor]()

        def weights() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in gather():
                first.setdefault(name, tensor.clone())
                yield name, first[name] if self.unsent and self.unsent in name else tensor

        publisher._weights = weights
        return facts

    def _policy(self, sharded: ShardedModel) -> Policy:
        policy = super()._policy(sharded)
        if self.rounds or self.shifts:
            return (Rounding if self.rounds else Shifting)(**vars(policy))
        return replace(policy, temperature=1.0) if self.forgets else policy

    def obey(self, faults: dict[str, Any]) -> None:
        vars(self).update(faults)


class FaultyEngine(DriftEngineWorker):
    """`deaf`: it acknowledges buckets and drops them; `raw`: log-probabilities are those before temperature."""

    deaf = False

    def load_bucket(self, descriptor: Descriptor) -> None:
        if not self.deaf:
            super().load_bucket(descriptor)
        self.has_weights = True

    def obey(self, faults: dict[str, Any]) -> None:
        self.deaf = faults.get("deaf", False)
        engine: Any = self._engine
        engine._llm.collective_rpc(_report, args=("raw_logprobs" if faults.get("raw") else "processed_logprobs",))


def _report(worker: Any, mode: str) -> None:
    """Have the sampler report log-probabilities in MODE."""
    sampler = worker.model_runner.sampler
    sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = mode
