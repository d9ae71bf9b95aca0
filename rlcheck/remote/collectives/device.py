"""What this rank is and has: its device, versions, settings, free memory."""

from __future__ import annotations

import os
import platform
import re
from typing import Any


def hello(torch: Any, backend: str, local_rank: int) -> dict[str, Any]:
    """The first message of a rank.

    Args:
        torch: the module.
        backend: auto, nccl or gloo; with gloo no device is touched.
        local_rank: which of this machine's devices is this rank's.

    Returns:
        pid, versions, num_devices, has_nccl, and of the device: name (`cpu` without), uuid, pci, free_bytes.
    """
    num_devices = torch.cuda.device_count() if backend != "gloo" and torch.cuda.is_available() else 0
    found: dict[str, Any] = {
        "at": "hello",
        "pid": os.getpid(),
        "versions": versions(torch),
        "num_devices": num_devices,
        "has_nccl": bool(torch.distributed.is_available() and torch.distributed.is_nccl_available()),
        "device": "cpu",
        "uuid": "",
        "pci": "",
        "free_bytes": _free_memory(),
    }
    if num_devices:
        found.update(_gpu(torch, local_rank % num_devices))
    return found


def versions(torch: Any) -> dict[str, str]:
    """Python, torch, and the libraries below it, as far as they say."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if torch.version.hip:
        found["hip"] = str(torch.version.hip)
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        number = torch.cuda.nccl.version()
        found["nccl"] = ".".join(map(str, number)) if isinstance(number, tuple) else str(number)
    driver = _driver()
    if driver:
        found["driver"] = driver
    return found


def _driver() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            match = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", file.readline())
    except OSError:
        return ""
    return match.group() if match else ""


def _free_memory() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
            match = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    except OSError:
        return 0
    return int(match.group(1)) * 1024 if match else 0


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    pci = ""
    if getattr(properties, "pci_bus_id", None) is not None:
        pci = "%04x:%02x:%02x.0" % (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    return {
        "device": str(properties.name),
        "uuid": "GPU-" + uuid if uuid and not uuid.startswith("GPU-") else uuid,
        "pci": pci,
        "free_bytes": int(torch.cuda.mem_get_info(index)[0]),
    }
