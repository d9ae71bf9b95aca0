"""Ask NVML about every GPU, one call at a time, and print each answer as a JSON line as soon as it is there.

Runs as `python -I -S nvml_child.py` because an NVML call can get stuck in the kernel. Input: `{"sys_path": [...]}`, the
places where pynvml (nvidia-ml-py) is found. Lines: `{"init": {...}}`, then `{"device": N, "item": I, "value": V}` or
`{"device": N, "item": I, "error": "NVML_NAME"}` in any order, at last `{"end": true}`. One thread a GPU, so that one
that hangs does not hide the others.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_LOCK = threading.Lock()
_NOT_AVAILABLE = (1 << 64) - 1


def emit(line: dict[str, Any]) -> None:
    """Print one finished item; the parent may kill us right after."""
    with _LOCK:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def error_names(nvml: Any) -> dict[int, str]:
    """NVML's error numbers and their names without the prefix."""
    prefix = "NVML_ERROR_"
    return {getattr(nvml, name): name[len(prefix) :] for name in dir(nvml) if name.startswith(prefix)}


def error_name(names: dict[int, str], error: BaseException) -> str:
    """NVML's own name of an exception, or the exception's class for what is no NVML error at all."""
    value = getattr(error, "value", None)
    if isinstance(value, int):
        return names.get(value, "CODE_%d" % value)
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return "FUNCTION_NOT_FOUND"
    return type(error).__name__


def text(value: Any) -> str:
    """A string of NVML, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def newer_or_older(newer: Callable[[], Any], older: Callable[[], Any]) -> Any:
    """What the newer call gives, or the older one that drivers had before it; else the newer one's error."""
    try:
        return newer()
    except Exception as error:
        try:
            return older()
        except Exception:
            raise error from None


def memory(nvml: Any, handle: Any) -> dict[str, int]:
    """Total, used and reserved bytes; the first version of the call counts reserved memory as used."""

    def with_reserved() -> dict[str, int]:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return {"total": int(info.total), "used": int(info.used), "reserved": int(info.reserved)}

    def without() -> dict[str, int]:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"total": int(info.total), "used": int(info.used)}

    return newer_or_older(with_reserved, without)


def processes(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Every compute process: number, program name and bytes (None when the driver does not say)."""
    found = []
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)[:256]:
        used = process.usedGpuMemory
        try:
            name = os.path.basename(text(nvml.nvmlSystemGetProcessName(process.pid)).split(" ")[0])
        except Exception:
            name = ""
        used = None if used is None or used >= _NOT_AVAILABLE else int(used)
        found.append({"pid": int(process.pid), "name": name, "used": used})
    return found


def remapped_rows(nvml: Any, handle: Any) -> list[int]:
    """Correctable, uncorrectable, pending, failed."""
    return [int(value) for value in nvml.nvmlDeviceGetRemappedRows(handle)]


def clock_events(nvml: Any, handle: Any) -> int:
    """The bit mask of reasons; the call had another name before driver 535."""
    return newer_or_older(
        lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    )


def nvlinks(nvml: Any, handle: Any) -> dict[str, int]:
    """How many NVLink ports are up and how many are down; a port number that does not exist ends the list."""
    states = []
    for link in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except Exception as error:
            ended = getattr(error, "value", None) in (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED)
            if ended:
                break
            raise
    return {"active": sum(states), "inactive": len(states) - sum(states)}


def fabric(nvml: Any, handle: Any) -> dict[str, Any]:
    """State and status of the registration with the NVSwitch fabric."""
    from ctypes import byref

    info = nvml.c_nvmlGpuFabricInfoV_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return {"state": int(info.state), "status": int(info.status), "cluster": any(bytes(bytearray(info.clusterUuid)))}


def mig_uuids(nvml: Any, handle: Any) -> list[str]:
    """The identifiers of the MIG slices."""
    found = []
    for index in range(min(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)), 64)):
        try:
            slice_handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except Exception:
            continue
        found.append(text(nvml.nvmlDeviceGetUUID(slice_handle)))
    return found


def recovery_action(nvml: Any, handle: Any) -> int:
    """What NVIDIA's driver wants done with the GPU, as its number."""
    field = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    if field.nvmlReturn != 0:
        raise nvml.NVMLError(field.nvmlReturn)
    return int(field.value.uiVal)


def integer(call: str, *arguments: int) -> Callable[[Any, Any], int]:
    """An item whose value is the integer that one NVML function returns."""
    return lambda nvml, handle: int(getattr(nvml, call)(handle, *arguments))


def milliwatts(call: str) -> Callable[[Any, Any], float]:
    """An item in watts from an NVML function that gives milliwatts."""
    return lambda nvml, handle: getattr(nvml, call)(handle) / 1000.0


ITEMS: dict[str, Callable[[Any, Any], Any]] = {
    "uuid": lambda nvml, handle: text(nvml.nvmlDeviceGetUUID(handle)),
    "name": lambda nvml, handle: text(nvml.nvmlDeviceGetName(handle)),
    "bus_id": lambda nvml, handle: text(nvml.nvmlDeviceGetPciInfo(handle).busId),
    "compute_capability": lambda nvml, handle: [int(n) for n in nvml.nvmlDeviceGetCudaComputeCapability(handle)],
    "memory": memory,
    "mig_enabled": lambda nvml, handle: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
    "mig_uuids": mig_uuids,
    "compute_mode": integer("nvmlDeviceGetComputeMode"),
    "persistence": integer("nvmlDeviceGetPersistenceMode"),
    "ecc_enabled": lambda nvml, handle: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
    "ecc_uncorrected": integer("nvmlDeviceGetTotalEccErrors", 1, 0),
    "remapped_rows": remapped_rows,
    "retired_pages_pending": integer("nvmlDeviceGetRetiredPagesPendingStatus"),
    "recovery_action": recovery_action,
    "clock_events": clock_events,
    "pcie_gen": integer("nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_gen_max": integer("nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_width": integer("nvmlDeviceGetCurrPcieLinkWidth"),
    "pcie_width_max": integer("nvmlDeviceGetMaxPcieLinkWidth"),
    "fabric": fabric,
    "nvlinks": nvlinks,
    "temperature_c": integer("nvmlDeviceGetTemperature", 0),
    "power_w": milliwatts("nvmlDeviceGetPowerUsage"),
    "power_limit_w": milliwatts("nvmlDeviceGetPowerManagementLimit"),
    "power_default_w": milliwatts("nvmlDeviceGetPowerManagementDefaultLimit"),
    "numa_node": integer("nvmlDeviceGetNumaNodeId"),
    "processes": processes,
}


def examine(nvml: Any, names: dict[int, str], index: int) -> None:
    """Print every item of one GPU; an item that fails, however, is an item with an error."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        emit({"device": index, "item": "handle", "error": error_name(names, error)})
        return
    emit({"device": index, "item": "handle", "value": True})
    for item, read in ITEMS.items():
        try:
            emit({"device": index, "item": item, "value": read(nvml, handle)})
        except Exception as error:
            emit({"device": index, "item": item, "error": error_name(names, error)})


def begin(sys_path: list[str]) -> tuple[Any, dict[int, str], int] | None:
    """Import the bindings, start NVML and print what it says of the whole machine; None when it cannot start."""
    sys.path.extend(path for path in sys_path if path and path not in sys.path)
    try:
        import pynvml as nvml
    except Exception as error:
        emit({"init": {"error": "NO_BINDINGS", "detail": "%s: %s" % (type(error).__name__, error)}})
        return None
    names = error_names(nvml)
    found: dict[str, Any] = {"error": ""}
    try:
        nvml.nvmlInit()
    except Exception as error:
        emit({"init": {"error": error_name(names, error), "detail": str(error)}})
        return None
    calls = {
        "driver_version": lambda: text(nvml.nvmlSystemGetDriverVersion()),
        "cuda_driver": lambda: int(nvml.nvmlSystemGetCudaDriverVersion_v2()),
        "count": lambda: int(nvml.nvmlDeviceGetCount()),
    }
    for key, call in calls.items():
        try:
            found[key] = call()
        except Exception as error:
            found[key + "_error"] = error_name(names, error)
    emit({"init": found})
    return nvml, names, max(0, min(found.get("count", 0), 128))


def main() -> None:
    """Read the request, ask about every GPU at once, and leave without waiting for NVML to shut down."""
    request = json.load(sys.stdin)
    started = begin(request.get("sys_path") or [])
    if started is not None:
        nvml, names, count = started
        threads = [threading.Thread(target=examine, args=(nvml, names, n), daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    emit({"end": True})
    # nvmlShutdown has nothing to free that the kernel does not, and can itself get stuck.
    os._exit(0)


if __name__ == "__main__":
    main()
