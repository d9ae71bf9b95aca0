"""The process of one engine: a plain class that a Ray actor hosts, or that a test calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer import work
from trainer.config.schema import RunConfig
from trainer.errors import RunFailure
from trainer.rollout.protocol import Completion, Request, RolloutEngine, Sampling, WakeTag
from trainer.sync.broadcast import Address
from trainer.sync.transport import Descriptor


class EngineWorker:
    """The engine of `actor_rollout_ref.rollout.name`, and its policy version.

    The process sees only the engine's own devices (CUDA_VISIBLE_DEVICES is set before torch is imported).

    Args:
        config: resolved; `actor_rollout_ref.model.path` is the model's directory.
        index: of this engine among the replicas.
    """

    def __init__(self, config: RunConfig, index: int) -> None:
        self._index = index
        self._processes = config.actor_rollout_ref.rollout.tensor_model_parallel_size
        self._engine = _make(config)
        self.policy_version = -1
        """Of the weights that the engine holds; -1: random ones."""

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
        if self.policy_version < 0:
            raise RunFailure(f"engine {self._index} has no weights yet: sync before generating")
        self._note_progress(0, len(requests))
        return self._engine.generate(requests, sampling, self._note_progress) if requests else []

    def trace(self, prompt_ids: Sequence[int], num_tokens: int, file: str) -> list[int]:
        """Write what each operation gives on one greedy completion to FILE (`RolloutEngine.trace`); its tokens.

        Raises:
            RunFailure: no weights were loaded, or the sequence is too long.
            UserError: the engine cannot be listened to.
        """
        if self.policy_version < 0:
            raise RunFailure(f"engine {self._index} has no weights yet: sync before tracing")
        return self._engine.trace(prompt_ids, num_tokens, file)

    def connect_sync(self, address: Address) -> None:
        """Meet the publisher for broadcasts; its group counts training rank 0 first, then all engines' processes."""
        self._engine.connect_sync(address, 1 + self._index * self._processes)

    def load_bucket(self, descriptor: Descriptor, version: int) -> None:
        """Load a bucket of VERSION; with the last one, the prefix cache is reset and the version taken over."""
        self.policy_version = -1
        self._engine.load_bucket(descriptor)
        if descriptor.bucket.is_last:
            self._engine.reset_prefix_cache()
            self.policy_version = version

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Checksums of what the engine holds under the published NAMES."""
        return self._engine.checksums(names)

    def wake(self, tag: WakeTag) -> None:
        """Bring back device memory of TAG."""
        self._engine.wake(tag)

    def sleep(self) -> bool:
        """Give device memory back, if the engine can; whether its weights are forgotten (it then has no version)."""
        forgotten = self._engine.sleep()
        if forgotten:
            self.policy_version = -1
        return forgotten

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes."""
        self._engine.reset_prefix_cache()

    def stop(self) -> None:
        """End the engine and its processes."""
        self._engine.stop()

    def _note_progress(self, done: int, total: int) -> None:
        work.report(done, total)


def _make(config: RunConfig) -> RolloutEngine:
    model_dir = config.actor_rollout_ref.model.path
    if model_dir is None:
        raise ValueError("actor_rollout_ref.model.path is not resolved")
    if config.actor_rollout_ref.rollout.name == "hf":
        from trainer.rollout.hf import HfEngine

        return HfEngine(config, model_dir)
    from trainer.rollout.vllm.engine import VllmEngine

    return VllmEngine(config, model_dir)
