"""The headline of GPUs: models, memory and driver."""

from __future__ import annotations

from collections import Counter

from rlcheck.facts.base import Missing, MissingKind, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice
from rlcheck.report.topics.phrases import joined, why
from rlcheck.text import rough_gib


def _device_name(device: NvidiaDevice) -> str:
    return device.name.value or device.handle_error or "GPU"


def headline(facts: Facts) -> str:
    """Return models, memory and drivers of the GPUs, in a line."""
    nvidia, rocm = facts.nvidia.value, facts.rocm.value
    parts: list[str] = []
    if nvidia is not None and nvidia.devices.value is not None:
        models = Counter(_device_name(device) for device in nvidia.devices.value)
        parts += [f"{number} × {name}" for name, number in models.items()]
        memory = {device.memory_total_bytes.value for device in nvidia.devices.value} - {None}
        parts += [rough_gib(total) for total in memory if total is not None and len(memory) == 1]
        if nvidia.driver_version.value:
            parts.append(f"driver {nvidia.driver_version.value}")
        if nvidia.cuda_driver.value:
            parts.append(f"CUDA {nvidia.cuda_driver.value // 1000}.{nvidia.cuda_driver.value % 1000 // 10}")
    elif nvidia is not None:
        parts.append(f"NVIDIA: {why(nvidia.devices)}")
    if rocm is not None and rocm.devices.value:
        targets = Counter(device.gfx for device in rocm.devices.value)
        parts += [f"{number} × {gfx}" for gfx, number in targets.items()]
        parts.append(f"ROCm {rocm.rocm_version.value}" if rocm.rocm_version.value else "")
    if parts:
        return joined(*parts)
    reasons = [why(facts.nvidia), why(facts.rocm)]
    looked = all((why_missing(f) or Missing(kind=MissingKind.ERROR, reason="")).kind is MissingKind.ABSENT
                 for f in (facts.nvidia, facts.rocm))  # fmt: skip
    return "no NVIDIA or AMD GPU on this machine" if looked else "; ".join(dict.fromkeys(reasons))
