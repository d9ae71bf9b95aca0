"""The headline of a machine: its system, CPUs and memory."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.report.topics.phrases import joined, why
from rlcheck.text import rough_gib


def headline(facts: Facts) -> str:
    """Return system, CPUs, memory and /dev/shm, in a line."""
    platform, system = facts.platform.value, facts.system.value
    parts: list[str] = []
    if platform is not None:
        kernel = f"Linux {platform.kernel.split('-')[0]}" if platform.kernel else ""
        parts += [platform.os_name.partition(" (")[0], kernel, platform.machine]
        parts += [f"in {platform.container}" if platform.container else "", platform.cloud]
    if system is None:
        return joined(*parts, why(facts.system))
    if system.cpu.allowed.value is not None:
        allowed, online = len(system.cpu.allowed.value), system.cpu.online.value or 0
        parts.append(f"{allowed} CPUs" if allowed == online else f"{allowed} of {online} CPUs")
    if system.memory.value is not None:
        limit = system.cgroup.value.memory_limit_bytes.value if system.cgroup.value else None
        total = system.memory.value.total_bytes
        parts.append(f"{rough_gib(min(limit or total, total))} memory")
    if system.shm.value is not None and system.shm.value.total_bytes.value is not None:
        parts.append(f"/dev/shm {rough_gib(system.shm.value.total_bytes.value)}")
    return joined(*parts)
