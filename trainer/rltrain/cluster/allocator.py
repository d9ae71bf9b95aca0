"""How torch's allocator takes memory from a GPU in training ranks."""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def environ(given: Mapping[str, str]) -> dict[str, str]:
    """Variables for a training rank, beside those GIVEN: segments that grow, unless the user has set the allocator.

    A training step allocates and frees pieces of very different sizes beside state that stays: with segments of fixed
    size, up to a sixth of a GPU was held for nobody. The engine is another process, whose sleep does without them, and
    the buffer of the weight sync is made outside of them (`rltrain.workers.sync.cuda_ipc`).
    """
    return {} if any(given.get(name) for name in NAMES) else {NAMES[0]: "expandable_segments:True"}
