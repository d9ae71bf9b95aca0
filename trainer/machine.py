"""What this machine offers to a run, found without importing torch."""

# NVML's binding is not typed.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os

import pynvml

from trainer.config.resolve import Machine


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
        present = pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return present if visible is None else min(present, len([name for name in visible.split(",") if name.strip()]))
