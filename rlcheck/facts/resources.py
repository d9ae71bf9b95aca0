"""What several SYS checks ask of the facts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.system import UNLIMITED, CpuFacts, Place, ProcessFacts, SystemFacts
from rlcheck.text import size_text


def system_of(facts: Facts) -> SystemFacts:
    """The SYS section, empty when it is missing."""
    return value_or(facts.system, SystemFacts())


def limit_text(value: int) -> str:
    """A number of things, or unlimited."""
    return "unlimited" if value == UNLIMITED else str(value)


def limit_bytes(value: int) -> str:
    """A size, or unlimited."""
    return "unlimited" if value == UNLIMITED else size_text(value)


def below(value: int, floor: int) -> bool:
    """Whether a limit is lower than `floor`; unlimited never is."""
    return value != UNLIMITED and value < floor


def num_gpus(facts: Facts) -> int:
    """GPUs that this process has device nodes for, no more than the device variables leave it.

    A job with one GPU of eight often sees the nodes of all of them, and learns its own from the variable alone.
    """
    nodes = system_of(facts).devices.nodes
    nvidia = [node for node in nodes if re.fullmatch(r"/dev/nvidia\d+", node.path)]
    has_kfd = any(node.path == "/dev/kfd" for node in nodes)
    amd = [node for node in nodes if has_kfd and node.path.startswith("/dev/dri/renderD")]
    gpus = nvidia or amd
    num = sum(1 for node in gpus if node.usable) or len(gpus)
    names = ("CUDA_VISIBLE_DEVICES",) if nvidia else ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    chosen = [len(_device_list(value_or(facts.environ, {}).get(name, ""))) for name in names]
    return min([num, *(count for count in chosen if count)])


def _device_list(value: str) -> set[str]:
    """The devices that a `…_VISIBLE_DEVICES` names; none when it is unset, empty or `-1`."""
    return {part.strip() for part in value.split(",")} - {"", "-1", "NoDevFiles"}


def ram_bytes(facts: Facts) -> int:
    """Memory of the machine, or of the control group when that is less; 0 when unknown."""
    system = system_of(facts)
    total = system.memory.value.total_bytes if system.memory.value else 0
    group = system.cgroup.value
    limit = group.memory_limit_bytes.value if group else None
    return min(total, limit) if limit and total else total


def usable_cpus(facts: Facts) -> float | None:
    """Processors that this process may really use: its affinity, or the quota when that is less."""
    system = system_of(facts)
    allowed = system.cpu.allowed.value
    quota = system.cgroup.value.cpus.value if system.cgroup.value else None
    known = [float(len(allowed))] if allowed else []
    known += [quota] if quota else []
    return min(known) if known else None


def whole(cpus: float) -> int:
    """A number of processors as `--num-cpus` wants it."""
    return max(1, math.floor(cpus))


def places(facts: Facts, *purposes: str) -> list[Place]:
    """The directories of these purposes, in that order, those that were not looked at left out."""
    by_purpose = {place.purpose: place for place in system_of(facts).places}
    return [by_purpose[purpose] for purpose in purposes if purpose in by_purpose]


def container(facts: Facts) -> str:
    """The kind of container, "" outside one or when unknown."""
    return facts.platform.value.container if facts.platform.value else ""


def has_capability(process: ProcessFacts, name: str) -> bool:
    """Whether the kernel would grant this to the process as it would to the machine's own root."""
    return name in (process.capabilities.value or ()) and not process.root_mapped


def distribution(facts: Facts, *names: str) -> str | None:
    """The version of the first of these that is installed; "" when none is; None when that is not known."""
    if facts.python.value is None:
        return None
    versions = {item.name: item.version for item in facts.python.value.distributions}
    return next((versions[name] for name in names if name in versions), "")


def numa_nodes_of(cpu: CpuFacts, cpus: Iterable[int]) -> set[int]:
    """The memory nodes that these processors belong to."""
    wanted = set(cpus)
    return {node.id for node in cpu.numa_nodes if wanted & set(node.cpus)}
