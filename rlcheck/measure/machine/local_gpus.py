"""This machine's GPUs and their memory, by NVML, without waiting for a driver that hangs."""

# NVML's binding is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import threading

import msgspec

_NVML_S = 10.0
"""A driver that starts without persistence mode takes seconds for a host of eight GPUs."""


class Known(msgspec.Struct, frozen=True):
    """A kind of GPU: its total memory as the driver's tools report it, and who says so."""

    name: str
    total_bytes: int
    source: str


def local_gpu(deadline_s: float = _NVML_S) -> Known | None:
    """This machine's GPU with the least memory, by NVML; None where there is none or the driver does not answer."""
    return min(local_gpus(deadline_s), key=lambda gpu: gpu.total_bytes, default=None)


def local_gpus(deadline_s: float = _NVML_S) -> tuple[Known, ...]:
    """This machine's GPUs, by NVML; none where there are none or the driver does not answer."""
    found: list[Known] = []
    # NVML can hang forever in a sick driver: the thread is left behind then.
    worker = threading.Thread(target=_ask_nvml, args=(found,), daemon=True, name="nvml")
    worker.start()
    worker.join(deadline_s)
    return tuple(found)


def _ask_nvml(found: list[Known]) -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # the one that pynvml loads, whose import alone costs what it finds out
    except OSError:
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = str(pynvml.nvmlDeviceGetName(handle)).removeprefix("NVIDIA ")
            found.append(Known(name, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), "NVML"))
    except pynvml.NVMLError:
        return
    finally:
        pynvml.nvmlShutdown()
