"""What differs between the builds of vLLM that rltrain drives."""

from __future__ import annotations

from typing import Any, Protocol

from rltrain.config.schema import RunConfig
from rltrain.workers.rollout.protocol import WakeTag


class Adapter(Protocol):
    """One range of versions on one kind of device."""

    device: str
    """"cpu" or "cuda"."""
    versions: str
    """As a version specifier (PEP 440)."""
    packs_weights: bool
    """Linear layers keep their weights in packed form, apart from the parameter."""

    def environ(self) -> dict[str, str]:
        """Environment variables to set before vLLM is imported."""
        ...

    def prepare(self, config: RunConfig, model_dir: str) -> None:
        """What to do between import and start."""
        ...

    def arguments(self, config: RunConfig, model_dir: str) -> dict[str, Any]:
        """Arguments of `vllm.LLM` that only this build needs."""
        ...

    def sleep(self, llm: Any) -> bool:
        """Give the device memory back; whether the weights are forgotten."""
        ...

    def wake(self, llm: Any, tag: WakeTag) -> None:
        """Bring the memory of TAG back."""
        ...
