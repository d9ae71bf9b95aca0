"""vLLM's CUDA build."""

from __future__ import annotations

from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.workers.rollout.protocol import WakeTag


class Cuda:
    """vLLM 0.26 on GPUs.

    Sleep is of level 2: weights and cache are given back to the device and forgotten. Weights come again with each
    sync, so a copy on the host would be wasted. Nobody else may allocate on the GPU while the engine goes to sleep:
    vLLM measures what it freed on the device as a whole, and ends itself if that is negative.
    """

    device = "cuda"
    versions = ">=0.26,<0.27"
    packs_weights = False

    def __init__(self) -> None:
        self._sleeps = False

    def environ(self) -> dict[str, str]:
        """Workers of tensor parallelism are spawned: CUDA does not survive a fork."""
        return {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}

    def prepare(self, config: RunConfig, model_dir: str) -> None:
        """Nothing."""

    def arguments(self, config: RunConfig, model_dir: str) -> dict[str, Any]:
        """Memory of the device, graphs, and sleep where the actor needs the room."""
        rollout = config.actor_rollout_ref.rollout
        self._sleeps = rollout.free_cache_engine and config.actor_rollout_ref.hybrid_engine
        return {
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "enforce_eager": rollout.enforce_eager,
            "enable_sleep_mode": self._sleeps,
        }

    def sleep(self, llm: Any) -> bool:
        """Level 2. Nothing where the engine has its own devices or `free_cache_engine` is off."""
        if self._sleeps:
            llm.sleep(level=2)
        return self._sleeps

    def wake(self, llm: Any, tag: WakeTag) -> None:
        """Weights first (their buffers are restored, their values must be loaded), the KV cache after the load."""
        if self._sleeps:
            llm.wake_up(tags=[tag])
