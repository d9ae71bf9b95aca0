"""rltrain: PPO and GRPO training on Ray, FSDP2 and vLLM, guarded by rlcheck."""

from rlcheck import __version__

__all__ = ["__version__"]
