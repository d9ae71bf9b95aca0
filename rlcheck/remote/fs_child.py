"""Look at directories whose file system may never answer.

Run as a process of its own; reads `{"paths": [{"path": ..., "actions": ["statvfs", "write_lock"]}]}` from standard
input and prints one JSON line a path, as soon as it is known. Each path has a thread: one dead server holds up its own
line only, and whoever started this takes the lines that came in time and kills the rest.

A line has path, exists, at (the path, or its nearest existing parent, which the numbers are about), error (name of an
errno, or "") and, as asked: total_bytes, free_bytes, total_inodes, free_inodes, owner_uid, mode, writable, and
write_lock = {"ok", "step", "errno"}; whatever else the request says of a path, fs_type for one, is handed back.
"""

import errno
import fcntl
import json
import os
import secrets
import sys
import threading

_PRINTING = threading.Lock()


def main() -> None:
    """Examine every path of the request side by side."""
    try:
        request = json.load(sys.stdin)
    except ValueError:
        return
    threads = [threading.Thread(target=_report, args=(item,), daemon=True) for item in request.get("paths", [])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _report(item: dict) -> None:
    path = str(item.get("path", ""))
    line = dict(item, exists=False, at="", error="")
    actions = line.pop("actions", None) or ["statvfs"]
    try:
        line["at"] = at = nearest_existing(path)
        line["exists"] = at == path
        if "statvfs" in actions:
            line.update(measure(at))
        if "write_lock" in actions:
            line["write_lock"] = write_lock(path)
    except (OSError, ValueError) as error:
        line["error"] = name_of(error)
    with _PRINTING:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def nearest_existing(path: str) -> str:
    """`path`, or the nearest parent of it that is there."""
    while True:
        try:
            os.stat(path)
            return path
        except OSError as error:
            parent = os.path.dirname(path)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR) or parent == path:
                raise
            path = parent


def measure(path: str) -> dict:
    """Size, free space, owner and access of a directory."""
    room = os.statvfs(path)
    status = os.stat(path)
    return {
        "total_bytes": room.f_frsize * room.f_blocks,
        "free_bytes": room.f_frsize * room.f_bavail,
        "total_inodes": room.f_files,
        "free_inodes": room.f_favail,
        "owner_uid": status.st_uid,
        "mode": status.st_mode & 0o7777,
        "writable": os.access(path, os.W_OK | os.X_OK),
    }


def write_lock(directory: str) -> dict:
    """Create, write, remove and lock a file, as a cache does; say which step failed.

    The file is removed before it is locked: a lock that never returns then leaves no file behind when this process
    is killed.
    """
    name = os.path.join(directory, ".rlcheck-probe-" + secrets.token_hex(8))
    step = "create"
    try:
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return {"ok": False, "step": step, "errno": name_of(error)}
    failure = None
    try:
        step = "write"
        os.write(descriptor, b"rlcheck\n")
        os.fsync(descriptor)
    except OSError as error:
        failure = {"ok": False, "step": step, "errno": name_of(error)}
    try:
        os.unlink(name)
        if failure is None:
            step = "lock"
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        failure = failure or {"ok": False, "step": "lock" if step == "lock" else "remove", "errno": name_of(error)}
    finally:
        os.close(descriptor)
    return failure or {"ok": True, "step": "", "errno": ""}


def name_of(error: Exception) -> str:
    """ENOSPC and the like."""
    return errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)


if __name__ == "__main__":
    main()
