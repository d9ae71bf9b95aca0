"""How full the GPUs of a node get: all processes together, so that a sleeping or working engine counts too."""

# NVML's binding is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pynvml

SAMPLE_S = 0.1
NvmlError = pynvml.NVMLError
"""The driver does not answer, or knows no such GPU."""


class GpuMemory:
    """Samples NVML from a thread of its own, and keeps the peak.

    torch's own peak (`max_memory_allocated`) leaves out the engine, NCCL and the CUDA context; what the driver counts
    does not. A peak shorter than `SAMPLE_S` may be missed.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        """Begin to watch GPUS, as CUDA_VISIBLE_DEVICES names them: numbers, or UUIDs (`GPU-…`, `MIG-…`).

        Raises:
            NvmlError: the driver does not answer, or knows no such GPU.
        """
        pynvml.nvmlInit()
        self._handles = [_handle(gpu) for gpu in gpus]
        self._peak_bytes = self._now()
        self._lock = threading.Lock()
        threading.Thread(target=self._sample, args=(threading.Event(),), name="gpu-memory", daemon=True).start()

    def take(self) -> int:
        """Bytes in use on the fullest GPU, at the worst moment since last asked."""
        now = self._now()
        with self._lock:
            peak, self._peak_bytes = max(self._peak_bytes, now), now
        return peak

    def _now(self) -> int:
        return max(_used(handle) for handle in self._handles)

    def _sample(self, never: threading.Event) -> None:
        while not never.wait(SAMPLE_S):
            # A GPU that is lost ends the run by other ways; this thread has nothing to say about it.
            with suppress(NvmlError):
                now = self._now()
                with self._lock:
                    self._peak_bytes = max(self._peak_bytes, now)


def _used(handle: Any) -> int:
    """What programs hold; drivers older than R510 count what the driver keeps for itself as well."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except NvmlError:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _handle(gpu: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(int(gpu)) if gpu.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(gpu)
