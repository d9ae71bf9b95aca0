"""From what the NVML child printed to device facts: each value, or why NVML did not give it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from rlcheck.facts.base import Fact, MissingKind, Struct, known, missing
from rlcheck.facts.gpu import Fabric, GpuProcess, NvidiaDevice, NvLinks, RemappedRows

_KINDS = {
    "NOT_SUPPORTED": MissingKind.ABSENT,
    "NO_PERMISSION": MissingKind.PERMISSION,
    "TIMEOUT": MissingKind.TIMEOUT,
    "FUNCTION_NOT_FOUND": MissingKind.UNSUPPORTED,
}
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_UUID = re.compile(r"((?:MIG-)?(?:GPU-)?[0-9A-Fa-f]{8})[0-9A-Fa-f-]*((?:/\d+)*)")


class Init(Struct, frozen=True):
    """The child's first line: how NVML started and what it says of the whole machine."""

    error: str = ""
    detail: str = ""
    driver_version: str = ""
    driver_version_error: str = ""
    cuda_driver: int = 0
    cuda_driver_error: str = ""
    count: int = 0
    count_error: str = ""


class _Line(Struct, frozen=True):
    device: int
    item: str
    value: Any = None
    error: str = ""


class _Memory(Struct, frozen=True):
    total: int
    used: int
    reserved: int | None = None


class _Process(Struct, frozen=True):
    pid: int
    name: str = ""
    used: int | None = None


class _Links(Struct, frozen=True):
    active: int
    inactive: int


class _Fabric(Struct, frozen=True):
    state: int
    status: int
    cluster: bool = False


_TYPES: dict[str, Any] = {
    "uuid": str,
    "name": str,
    "bus_id": str,
    "compute_capability": tuple[int, int],
    "memory": _Memory,
    "processes": tuple[_Process, ...],
    "ecc_enabled": bool,
    "ecc_uncorrected": int,
    "remapped_rows": tuple[int, int, int, int],
    "retired_pages_pending": int,
    "clock_events": int,
    "pcie_gen": int,
    "pcie_gen_max": int,
    "pcie_width": int,
    "pcie_width_max": int,
    "nvlinks": _Links,
    "fabric": _Fabric,
    "mig_enabled": bool,
    "mig_uuids": tuple[str, ...],
    "compute_mode": int,
    "persistence": int,
    "recovery_action": int,
    "temperature_c": int,
    "power_w": float,
    "power_limit_w": float,
    "power_default_w": float,
    "numa_node": int,
}


def read_init(lines: Iterable[Any]) -> Init | None:
    """The first line of the child, or None when it never came."""
    for line in lines:
        if isinstance(line, Mapping) and "init" in line:
            try:
                return msgspec.convert(line["init"], Init)  # pyright: ignore[reportUnknownArgumentType]
            except msgspec.ValidationError:
                return None
    return None


def read_devices(lines: Iterable[Any], count: int, silent: str) -> tuple[NvidiaDevice, ...]:
    """The facts of `count` GPUs; `silent` says why an item that never came is missing."""
    found: dict[int, dict[str, Fact[Any]]] = {index: {} for index in range(count)}
    for raw in lines:
        try:
            line = msgspec.convert(raw, _Line)
        except (msgspec.ValidationError, TypeError):
            continue
        if line.device in found:
            found[line.device][line.item] = _item(line)
    return tuple(_device(index, items, silent) for index, items in found.items())


def short_uuid(uuid: str) -> str:
    """The start of a GPU's or a MIG slice's identifier, enough to tell it from its neighbours."""
    match = _UUID.match(uuid)
    return (match.group(1) + match.group(2)) if match else uuid[:12]


def bus_id(text: str) -> str:
    """A PCI address as sysfs writes it: four digits of domain, lower case."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}" if colon else text.strip().lower()


def refused(error: str) -> Fact[Any]:
    """A value that NVML refused, with its error's name."""
    said = "this GPU does not have it (NVML: NOT_SUPPORTED)" if error == "NOT_SUPPORTED" else f"NVML: {error}"
    return missing(_KINDS.get(error, MissingKind.ERROR), said)


def _item(line: _Line) -> Fact[Any]:
    if line.error:
        return refused(line.error)
    if line.item == "handle":
        return known(True)
    try:
        return known(msgspec.convert(line.value, _TYPES[line.item]))
    except (ValueError, KeyError):  # also of text that no UTF-8 holds
        return missing(MissingKind.ERROR, f"NVML gave {str(line.value)[:60]!r}")


def _device(index: int, items: dict[str, Fact[Any]], silent: str) -> NvidiaDevice:
    not_said = missing(MissingKind.TIMEOUT, silent)
    handle = items.get("handle", not_said)
    if handle.missing is not None:
        error = handle.missing.reason.removeprefix("NVML: ") if "handle" in items else "NO_ANSWER"
        lost = missing(handle.missing.kind, f"the driver does not answer for this GPU: {error}")
        return _build(index, error, dict.fromkeys(_TYPES, lost))
    return _build(index, "", {name: items.get(name, not_said) for name in _TYPES})


def _build(index: int, error: str, items: dict[str, Fact[Any]]) -> NvidiaDevice:
    memory = items["memory"]
    plain = {name: items[name] for name in _TYPES if name != "memory" and name not in _CONVERTED}
    return NvidiaDevice(
        index=index,
        handle_error=error,
        memory_total_bytes=then(memory, lambda m: m.total),
        memory_used_bytes=then(memory, lambda m: m.used),
        memory_reserved_bytes=_reserved(memory),
        **{name: then(items[name], convert) for name, convert in _CONVERTED.items()},
        **plain,
    )


def then(fact: Fact[Any], convert: Callable[[Any], Any]) -> Fact[Any]:
    """The converted value, or the same reason for having none."""
    return fact if fact.missing is not None else known(convert(fact.value))


def _reserved(memory: Fact[Any]) -> Fact[Any]:
    if isinstance(memory.value, _Memory) and memory.value.reserved is None:
        return missing(MissingKind.UNSUPPORTED, "this driver counts reserved memory as used")
    return then(memory, lambda m: m.reserved)


def _processes(found: tuple[_Process, ...]) -> tuple[GpuProcess, ...]:
    unsaid: Fact[int] = missing(MissingKind.UNSUPPORTED, "NVML does not say how much")
    return tuple(
        GpuProcess(pid=p.pid, name=p.name[:64], used_bytes=unsaid if p.used is None else known(p.used)) for p in found
    )


_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "uuid": short_uuid,
    "bus_id": bus_id,
    "mig_uuids": lambda found: tuple(short_uuid(uuid) for uuid in found),
    "processes": _processes,
    "remapped_rows": lambda r: RemappedRows(
        num_correctable=r[0], num_uncorrectable=r[1], pending=bool(r[2]), failed=bool(r[3])
    ),
    "retired_pages_pending": bool,
    "persistence": bool,
    "nvlinks": lambda links: NvLinks(num_active=links.active, num_inactive=links.inactive),
    "fabric": lambda f: Fabric(state=FABRIC_STATES.get(f.state, str(f.state)), status=f.status, cluster=f.cluster),
    "compute_mode": lambda mode: COMPUTE_MODES.get(mode, str(mode)),
}
