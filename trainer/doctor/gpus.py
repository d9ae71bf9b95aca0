"""How full the GPUs are, asked of the driver: all processes together."""

# NVML's binding is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pynvml


@dataclass(frozen=True)
class Used:
    """Of one GPU."""

    used_bytes: int
    total_bytes: int


def each() -> tuple[Used, ...]:
    """Of every GPU that this process may use, in CUDA's order.

    Raises:
        pynvml.NVMLError: the driver does not answer.
    """
    pynvml.nvmlInit()
    try:
        infos = [pynvml.nvmlDeviceGetMemoryInfo(handle) for handle in _handles()]
    finally:
        pynvml.nvmlShutdown()
    return tuple(Used(int(info.used), int(info.total)) for info in infos)


def _handles() -> list[Any]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [
        pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
        for name in names
    ]
