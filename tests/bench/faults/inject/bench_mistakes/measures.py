"""Mistakes of precision, and those that show in the system alone: slow, leaking, waiting."""

from __future__ import annotations

import time
from typing import Any

from bench_mistakes.registry import Counter, mistake, wrap


@mistake("rltrain.workers.fsdp.forward")
def bf16_logits(module: Any) -> None:
    """Training rounds the logits to bfloat16 before the softmax."""
    wrap(module, "token_stats", lambda real, logits, *rest: real(logits.bfloat16(), *rest))


@mistake("vllm.v1.sample.sampler")
def engine_bf16_logits(module: Any) -> None:
    """The engine rounds the logits to bfloat16 before it samples."""

    def forward(real: Any, self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        return real(self, logits.bfloat16().float(), *args, **kwargs)

    wrap(module.Sampler, "forward", forward)


@mistake("rltrain.workers.fsdp.forward")
def shifted_targets(module: Any) -> None:
    """Off by one: a response token's log-probability is read under the logits of the position before."""

    wrap(module, "response_targets", lambda real, *args: real(*args).roll(1))


@mistake("rltrain.workers.fsdp.worker")
def slow_rank(module: Any, rank: int, seconds: float) -> None:
    """One rank takes SECONDS longer for each update."""

    def slowly(real: Any, self: Any, minis: Any) -> Any:
        if self._info.rank == rank:
            time.sleep(seconds)
        return real(self, minis)

    wrap(module.TrainWorker, "update_actor", slowly)


@mistake("rltrain.workers.rollout.worker")
def slower_and_slower(module: Any, seconds: float) -> None:
    """Each generation takes SECONDS longer than the one before."""
    calls = Counter()

    def slowly(real: Any, *args: Any) -> Any:
        time.sleep(seconds * calls())
        return real(*args)

    wrap(module.EngineWorker, "submit", slowly)


@mistake("rltrain.controller.loop")
def keeps_every_batch(module: Any, megabytes: int) -> None:
    """The controller never lets go of what it has seen."""
    kept: list[bytearray] = []

    def learn(real: Any, *args: Any) -> Any:
        kept.append(bytearray(b"x" * (megabytes << 20)))
        return real(*args)

    wrap(module.Loop, "learn", learn)
