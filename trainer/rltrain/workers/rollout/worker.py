"""The process of one engine: a plain class that a Ray actor hosts, or that a test calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rltrain.config.engines import ENGINES, loaded
from rltrain.config.schema import RunConfig
from rltrain.core import work
from rltrain.core.errors import RunFailure
from rltrain.workers.rollout.protocol import Completion, Request, RolloutEngine, Sampling, WakeTag
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.transport import Descriptor


class EngineWorker:
    """The engine of `actor_rollout_ref.rollout.name`.

    The process sees only the engine's own devices (CUDA_VISIBLE_DEVICES is set before torch is imported).

    Args:
        config: resolved; `actor_rollout_ref.model.path` is the model's directory.
        index: of this engine among the replicas.
    """

    def __init__(self, config: RunConfig, index: int) -> None:
        self._index = index
        self._processes = config.actor_rollout_ref.rollout.tensor_model_parallel_size
        self._engine = make_engine(config)
        self.has_weights = False
        """The engine holds the last published weights, whole; else random ones, or a part."""
        self._sampled: dict[Sampling, dict[str, Any]] = {}
        self._version = -1
        """Of those weights, as their last bucket said."""

    def start(self) -> dict[str, Any]:
        """Make the engine; facts about it.

        Raises:
            UserError: the config asks for what the engine does not have.
        """
        return self._engine.start()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each of REQUESTS, in their order.

        Raises:
            RunFailure: no weights were loaded, a prompt is too long, or the engine returned no tokens.
        """
        if not self.has_weights:
            raise RunFailure(f"engine {self._index} has no weights yet: sync before generating")
        self._note_progress(0, len(requests))
        answers = self._engine.generate(requests, sampling, self._note_progress) if requests else []
        if requests:
            self._sampled[sampling] = self._engine.sampled()
        return [replace(answer, policy_version=self._version) for answer in answers]

    def sampled(self, sampling: Sampling) -> dict[str, Any]:
        """What the engine made of SAMPLING when it was last asked for it; empty: it was not."""
        return self._sampled.get(sampling, {})

    def connect_sync(self, address: Address) -> None:
        """Meet the publisher for broadcasts; its group counts training rank 0 first, then all engines' processes."""
        self._engine.connect_sync(address, 1 + self._index * self._processes)

    def load_bucket(self, descriptor: Descriptor) -> None:
        """Load a bucket; with the last one, the prefix cache is reset, and the engine has weights."""
        self.has_weights = False
        self._engine.load_bucket(descriptor)
        if descriptor.bucket.is_last:
            self._engine.reset_prefix_cache()
            self.has_weights, self._version = True, descriptor.version

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Checksums of what the engine holds under the published NAMES."""
        return self._engine.checksums(names)

    def wake(self, tag: WakeTag) -> None:
        """Bring back device memory of TAG."""
        self._engine.wake(tag)

    def sleep(self) -> bool:
        """Give device memory back, if the engine can; whether its weights are forgotten."""
        forgotten = self._engine.sleep()
        if forgotten:
            self.has_weights = False
        return forgotten

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes."""
        self._engine.reset_prefix_cache()

    def stop(self) -> None:
        """End the engine and its processes."""
        self._engine.stop()

    def _note_progress(self, done: int, total: int) -> None:
        work.report(done, total)


def make_engine(config: RunConfig, saved_weights: bool = False) -> RolloutEngine:
    """Make the engine that CONFIG (resolved) names, not started yet.

    With SAVED_WEIGHTS it starts with those of the model's files, not with random ones.
    """
    model_dir = config.actor_rollout_ref.model.path
    if model_dir is None:
        raise ValueError("actor_rollout_ref.model.path is not resolved")
    return loaded(ENGINES[config.actor_rollout_ref.rollout.name].engine)(config, model_dir, saved_weights)
