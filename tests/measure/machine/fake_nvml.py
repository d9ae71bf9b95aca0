"""Made-up `pynvml` modules for the NVML child: a healthy one, and one that raises whatever it is told to."""

from __future__ import annotations

from pathlib import Path

# The codes and names of NVML's errors, as nvidia-ml-py has them.
ERRORS = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND", 7: "INSUFFICIENT_SIZE", 8: "INSUFFICIENT_POWER", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT",
    11: "IRQ_ISSUE", 12: "LIBRARY_NOT_FOUND", 13: "FUNCTION_NOT_FOUND", 14: "CORRUPTED_INFOROM", 15: "GPU_IS_LOST",
    16: "RESET_REQUIRED", 17: "OPERATING_SYSTEM", 18: "LIB_RM_VERSION_MISMATCH", 19: "IN_USE", 20: "MEMORY",
    21: "NO_DATA", 22: "VGPU_ECC_NOT_SUPPORTED", 23: "INSUFFICIENT_RESOURCES", 24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH", 26: "DEPRECATED", 27: "NOT_READY", 28: "GPU_NOT_FOUND", 29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED", 999: "UNKNOWN",
}  # fmt: skip

_HEAD = (
    "import ctypes, time\n"
    + "".join(f"NVML_ERROR_{name} = {code}\n" for code, name in ERRORS.items())
    + """
class NVMLError(Exception):
    def __init__(self, value):
        self.value = value

NVML_NVLINK_MAX_LINKS = 36
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
nvmlMemory_v2 = 0x02000028

class Bag:
    def __init__(self, **fields):
        self.__dict__.update(fields)

class c_nvmlGpuFabricInfoV_t(ctypes.Structure):
    _fields_ = [("clusterUuid", ctypes.c_uint8 * 16), ("status", ctypes.c_uint), ("state", ctypes.c_uint8)]

def nvmlInit(): pass
def nvmlSystemGetDriverVersion(): return b"580.65.06"
def nvmlSystemGetCudaDriverVersion_v2(): return 13000
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(h): return "GPU-0000000%d-1111-2222-3333-444444444444" % h
def nvmlDeviceGetName(h): return b"NVIDIA H200"
def nvmlDeviceGetPciInfo(h): return Bag(busId=b"00000000:0%d:00.0" % (h + 1))
def nvmlDeviceGetCudaComputeCapability(h): return (9, 0)
def nvmlDeviceGetMemoryInfo(h, version=None):
    return Bag(total=150 << 30, used=1 << 30, reserved=600 << 20)
def nvmlDeviceGetMigMode(h): return [0, 0]
def nvmlDeviceGetMaxMigDeviceCount(h): return 0
def nvmlDeviceGetComputeMode(h): return 0
def nvmlDeviceGetPersistenceMode(h): return 1
def nvmlDeviceGetEccMode(h): return [1, 1]
def nvmlDeviceGetTotalEccErrors(h, kind, counter): return 0
def nvmlDeviceGetRemappedRows(h): return (0, 1, 1, 0)
def nvmlDeviceGetRetiredPagesPendingStatus(h): raise NVMLError(3)
def nvmlDeviceGetFieldValues(h, ids): return [Bag(nvmlReturn=0, value=Bag(uiVal=1))]
def nvmlDeviceGetCurrentClocksEventReasons(h): return 4
def nvmlDeviceGetCurrPcieLinkGeneration(h): return 5
def nvmlDeviceGetMaxPcieLinkGeneration(h): return 5
def nvmlDeviceGetCurrPcieLinkWidth(h): return 16
def nvmlDeviceGetMaxPcieLinkWidth(h): return 16
def nvmlDeviceGetGpuFabricInfoV(h, ref):
    ref._obj.state = 3
def nvmlDeviceGetNvLinkState(h, link):
    if link >= 18: raise NVMLError(2)
    return int(link != 17)
def nvmlDeviceGetTemperature(h, sensor): return 40
def nvmlDeviceGetPowerUsage(h): return 85000
def nvmlDeviceGetPowerManagementLimit(h): return 700000
def nvmlDeviceGetPowerManagementDefaultLimit(h): return 700000
def nvmlDeviceGetNumaNodeId(h): raise NVMLError(3)
def nvmlDeviceGetComputeRunningProcesses(h):
    return [Bag(pid=7, usedGpuMemory=1 << 30), Bag(pid=8, usedGpuMemory=None)]
def nvmlSystemGetProcessName(pid):
    if pid == 8: raise NVMLError(4)
    return b"/home/someone/venv/bin/python3 train.py"
"""
)


def write(directory: Path, more: str = "") -> Path:
    """A directory with a healthy pynvml; `more` is appended to it and may replace functions."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pynvml.py").write_text(_HEAD + more)
    return directory


def raising(code: int, but: tuple[str, ...] = ()) -> str:
    """Source that makes every function raise `code`, except those named."""
    return f"""
def _raise(*a, **k): raise NVMLError({code})
for _name in [n for n in list(globals()) if n.startswith("nvml") and callable(globals()[n]) and n not in {but!r}]:
    globals()[_name] = _raise
"""
