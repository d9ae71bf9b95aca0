"""How full the GPUs of a node get: all processes together, so that a sleeping or working engine counts too."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from rltrain.core.nvml import NvmlError, handle, used_bytes

SAMPLE_S = 0.1


class GpuMemory:
    """Samples NVML from a thread of its own, and keeps the peak.

    torch's own peak (`max_memory_allocated`) leaves out the engine, NCCL and the CUDA context; what the driver counts
    does not. A peak shorter than SAMPLE_S seconds may be missed.
    """

    def __init__(self, gpus: Sequence[str], sample_s: float = SAMPLE_S) -> None:
        """Begin to watch GPUS, as CUDA_VISIBLE_DEVICES names them: numbers, or UUIDs (`GPU-…`, `MIG-…`).

        Raises:
            NvmlError: the driver does not answer, or knows no such GPU.
        """
        self._handles = [handle(gpu) for gpu in gpus]
        self._peak_bytes = self._now()
        self._lock, self._sample_s = threading.Lock(), sample_s
        threading.Thread(target=self._sample, args=(threading.Event(),), name="gpu-memory", daemon=True).start()

    def take(self) -> int:
        """Bytes in use on the fullest GPU, at the worst moment since last asked."""
        now = self._now()
        with self._lock:
            peak, self._peak_bytes = max(self._peak_bytes, now), now
        return peak

    def _now(self) -> int:
        return max(map(used_bytes, self._handles))

    def _sample(self, never: threading.Event) -> None:
        while not never.wait(self._sample_s):
            # A GPU that is lost ends the run by other ways; this thread has nothing to say about it.
            with suppress(NvmlError):
                now = self._now()
                with self._lock:
                    self._peak_bytes = max(self._peak_bytes, now)
