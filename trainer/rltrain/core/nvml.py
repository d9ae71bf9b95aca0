"""What the driver says of GPUs, all processes together. Names are those of CUDA_VISIBLE_DEVICES: numbers or UUIDs."""

# NVML's binding is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pynvml

NvmlError = pynvml.NVMLError
"""The driver does not answer, or knows no such GPU."""


def visible() -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES, or one number for each GPU."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [part.strip() for part in named.split(",") if part.strip()]
    pynvml.nvmlInit()
    return [str(index) for index in range(pynvml.nvmlDeviceGetCount())]


def handle(gpu: str) -> Any:
    """Return NVML's handle of GPU."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(gpu)


def used_bytes(handle: Any) -> int:
    """Return what programs hold; drivers older than R510 count what the driver keeps for itself as well."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except NvmlError:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def busy_share(handle: Any) -> float:
    """Return for which share of the last moment, a sixth of a second to a second, any kernel ran."""
    return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100


def total_bytes(handle: Any) -> int:
    """Return how much memory the GPU has."""
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


@dataclass(frozen=True)
class Used:
    """How full one GPU is."""

    used_bytes: int
    total_bytes: int


def used() -> tuple[Used, ...]:
    """Return how full every GPU is that this process may use, in CUDA's order.

    Raises:
        NvmlError: the driver does not answer.
    """
    return tuple(Used(used_bytes(one), total_bytes(one)) for one in map(handle, visible()))
