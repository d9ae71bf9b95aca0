"""GPUs that are physically there. The driver may hang: nothing here waits past its deadline."""

import contextlib
import os
import re
import signal
import subprocess
from typing import Any, Dict, List

_QUERY = "--query-gpu=name,uuid,memory.total,memory.used,driver_version"
_MIB = 1 << 20


def look(timeout_s: float) -> Dict[str, Any]:
    """`gpus`, a fact, and the `driver` version. nvidia-smi sees every GPU, whatever CUDA_VISIBLE_DEVICES says."""
    command = ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return without_tool(error)
    try:
        out = process.communicate(timeout=timeout_s)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return _missing("timeout", "nvidia-smi did not answer within %.1f s" % timeout_s)
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = (out.strip().splitlines() or ["exit status %d" % process.returncode])[-1]
        return _missing("error", "nvidia-smi: " + last[:200])
    return parse(out)


def parse(out: str) -> Dict[str, Any]:
    """The GPUs in nvidia-smi's table. Memory reads [N/A] on machines where CPU and GPU share it."""
    found: List[Dict[str, Any]] = []
    driver = ""
    for line in out.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[1].startswith("GPU-"):
            total, used = (int(cell) * _MIB if cell.isdigit() else 0 for cell in cells[2:4])
            found.append({"name": cells[0], "uuid": cells[1], "memory_bytes": total, "used_bytes": used})
            driver = cells[4]
    return {"gpus": {"value": found}, "driver": driver}


def without_tool(error: OSError) -> Dict[str, Any]:
    """The GPUs that the driver lists in /proc (a container may have the driver without its tools)."""
    root = "/proc/driver/nvidia/gpus"
    found = []
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        text = _read("%s/%s/information" % (root, name))
        words = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in text.splitlines()}
        if words.get("Model"):
            found.append({"name": words["Model"], "uuid": words.get("GPU UUID", "")})
    if found:
        return {"gpus": {"value": found}, "driver": ""}
    kind = "absent" if isinstance(error, FileNotFoundError) else "error"
    return _missing(kind, "nvidia-smi: %s" % ("command not found" if kind == "absent" else error.strerror))


def kernel_driver() -> str:
    """The version of the loaded NVIDIA kernel module; "" without one."""
    match = re.search(r"Kernel Module[^\d]*?\s(\d+\.\d+(?:\.\d+)?)\s", _read("/proc/driver/nvidia/version"))
    return match.group(1) if match else ""


def cuda_driver_version() -> str:
    """The newest CUDA that the driver supports, from libcuda (a call that touches no device); "" without it."""
    import ctypes

    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) or not version.value:
        return ""
    return "%d.%d" % (version.value // 1000, version.value % 1000 // 10)


def _missing(kind: str, reason: str) -> Dict[str, Any]:
    return {"gpus": {"missing": {"kind": kind, "reason": reason}}, "driver": ""}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
