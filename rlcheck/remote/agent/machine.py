"""What this machine is: MachineFacts of rlcheck/facts/cluster.py as plain JSON, within a deadline.

Whatever can get stuck (tools, file systems, drivers) has a thread of its own; what did not come in time is missing.
"""

import os
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List

from . import cards, environ, gpus, versions


def facts(options: Dict[str, Any], timeout_s: float) -> Dict[str, Any]:
    """The facts; takes at most `timeout_s` and a little."""
    deadline = time.monotonic() + timeout_s
    slow: Dict[str, Callable[[], Any]] = {
        "versions": versions.installed,
        "gpus": lambda: gpus.look(max(0.2, deadline - time.monotonic() - 0.2)),
        "cuda_driver": gpus.cuda_driver_version,
        "cards": cards.addresses,
        "rdma": cards.rdma,
        "shm": lambda: disk("/dev/shm"),
        "tmp": lambda: disk(os.environ.get("TMPDIR") or "/tmp"),
    }
    found = side_by_side(slow, deadline)
    late = missing("timeout", "did not answer within %g s" % timeout_s)
    look = found.get("gpus") or {"gpus": late, "driver": ""}
    words = dict(found.get("versions") or {}, **versions.system())
    words.update({"driver": look["driver"] or gpus.kernel_driver(), "cuda_driver": found.get("cuda_driver")})
    return dict(
        hostname=socket.gethostname(),
        boot_id=read("/proc/sys/kernel/random/boot_id"),
        versions={name: word for name, word in sorted(words.items()) if word},
        environ=environ.recorded(dict(os.environ), options.get("environ_rules") or {}),
        gpus=look["gpus"],
        cards=found.get("cards") or [],
        rdma=found.get("rdma") or [],
        shm=found.get("shm") or late,
        tmp=found.get("tmp") or late,
        python_path=sys.executable,
        **memory(),
        **processors(),
        **limits(),
    )


def side_by_side(tasks: Dict[str, Callable[[], Any]], deadline: float) -> Dict[str, Any]:
    """The results of the tasks that ended in time and well."""
    found: Dict[str, Any] = {}

    def work(name: str, task: Callable[[], Any]) -> None:
        try:
            found[name] = task()
        except Exception as error:  # whatever a broken machine comes up with costs this fact alone
            found[name] = None
            sys.stderr.write("%s: %s: %s\n" % (name, type(error).__name__, error))

    threads: List[threading.Thread] = []
    for name, task in tasks.items():
        threads.append(threading.Thread(target=work, args=(name, task), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


def missing(kind: str, reason: str) -> Dict[str, Any]:
    """A fact without a value."""
    return {"missing": {"kind": kind, "reason": reason}}


def read(path: str) -> str:
    """The text of a small file of the kernel; "" when it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def disk(path: str) -> Dict[str, Any]:
    """Room on the file system at `path`, as a fact."""
    try:
        room = os.statvfs(path)
    except OSError as error:
        kind = "absent" if isinstance(error, FileNotFoundError) else "error"
        return missing(kind, "%s: %s" % (path, error.strerror))
    total, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    return {"value": {"path": path, "total_bytes": total, "free_bytes": free}}


def memory() -> Dict[str, int]:
    """Memory of the machine, or of the container when that has less."""
    kib = {line.partition(":")[0]: line.split()[1] for line in read("/proc/meminfo").splitlines() if ":" in line}
    total, available = int(kib.get("MemTotal", 0)) * 1024, int(kib.get("MemAvailable", 0)) * 1024
    limit, used = cgroup_memory()
    if 0 < limit < total:
        total, available = limit, max(0, min(available, limit - used))
    return {"memory_total_bytes": total, "memory_available_bytes": available}


def cgroup_memory() -> "tuple[int, int]":
    """Limit and use of the tightest control group above this process; (0, 0) without a limit."""
    found = []
    for line in read("/proc/self/cgroup").splitlines():
        controllers, path = line.split(":", 2)[1:]
        if not controllers:
            root, names = "/sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = "/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        while True:  # a limit above ours binds us too; in a container the path may not be there, the root is
            limit, used = (read(root + path.rstrip("/") + "/" + name) for name in names)
            if limit.isdigit():
                found.append((int(limit), int(used) if used.isdigit() else 0))
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return min(found) if found else (0, 0)


def processors() -> Dict[str, int]:
    """Processors that are there, and those that this process may use."""
    online = os.cpu_count() or 0
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = online
    return {"cpus_online": online, "cpus_allowed": allowed}


def limits() -> Dict[str, int]:
    """Limits of this process: locked memory in bytes and open files; -1 is unlimited."""
    import resource

    return {
        "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
