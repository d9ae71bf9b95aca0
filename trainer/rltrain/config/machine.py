"""What this machine offers to a run, found without importing torch."""

# NVML's binding is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import os
from collections.abc import Sequence

import pynvml

from rltrain.config.resolve import Machine


def this_machine() -> Machine:
    """GPUs that this process may use (`CUDA_VISIBLE_DEVICES` counts) and its CPUs."""
    num_gpus = _num_gpus()
    return Machine("cuda" if num_gpus else "cpu", num_gpus, len(os.sched_getaffinity(0)))


def _num_gpus() -> int:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        present = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(present) if visible is None else count_visible(visible, present)


def count_visible(visible: str, present: Sequence[str]) -> int:
    """How many GPUs CUDA shows.

    It stops at the first entry that names no GPU, and shows none at all where an entry occurs twice:
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (environment variables).

    Args:
        visible: what `CUDA_VISIBLE_DEVICES` says: indices, or beginnings of UUIDs.
        present: UUIDs of the machine's GPUs in NVML's order.
    """
    found: list[int | str] = []
    for entry in visible.split(","):
        chosen = _named(entry.strip(), present)
        if chosen is None:
            break
        if chosen in found:
            return 0
        found.append(chosen)
    return min(len(found), len(present))


def _named(entry: str, present: Sequence[str]) -> int | str | None:
    """What ENTRY names: the index of a GPU, a MIG slice, or nothing."""
    if entry.startswith("MIG-"):
        return entry
    if entry.startswith("GPU-"):
        return next((index for index, uuid in enumerate(present) if uuid.startswith(entry)), None)
    known = {str(index): index for index in range(len(present))}
    return known.get(entry)
