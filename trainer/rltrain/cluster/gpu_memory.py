"""How full and how busy the GPUs of a node are: all processes together, so that a sleeping engine counts too."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from rltrain.core.nvml import NvmlError, busy_share, handle, used_bytes

SAMPLE_S = 0.1
BUSY_EVERY = 5
"""Looks at memory for one at how busy a GPU is, which the driver itself says of a sixth of a second or more."""


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
        self._gpus, self._handles = tuple(gpus), [handle(gpu) for gpu in gpus]
        self._busy: dict[str, list[float]] = {}
        self._peak_bytes = self._now()
        self._lock, self._sample_s = threading.Lock(), sample_s
        self._end = threading.Event()
        threading.Thread(target=self._sample, args=(self._end,), name="gpu-memory", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._end.set()

    def take(self) -> int:
        """Bytes in use on the fullest GPU, at the worst moment since last asked."""
        now = self._now()
        with self._lock:
            peak, self._peak_bytes = max(self._peak_bytes, now), now
        return peak

    def take_busy(self) -> dict[str, float]:
        """By GPU, the mean share of time in which a kernel ran since last asked; those that the driver does not say are
        left out."""
        with self._lock:
            taken, self._busy = self._busy, {}
        return {gpu: sum(shares) / len(shares) for gpu, shares in taken.items()}

    def _note_busy(self) -> None:
        for gpu, one in zip(self._gpus, self._handles, strict=True):
            # A part of a card (MIG) and some virtual ones do not say it.
            with suppress(NvmlError):
                share = busy_share(one)
                with self._lock:
                    self._busy.setdefault(gpu, []).append(share)

    def _now(self) -> int:
        return max(map(used_bytes, self._handles))

    def _sample(self, end: threading.Event) -> None:
        looks = 0
        while not end.wait(self._sample_s):
            if looks % BUSY_EVERY == 0:
                self._note_busy()
            looks += 1
            # A GPU that is lost ends the run by other ways; this thread has nothing to say about it.
            with suppress(NvmlError):
                now = self._now()
                with self._lock:
                    self._peak_bytes = max(self._peak_bytes, now)
