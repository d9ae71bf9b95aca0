"""Files that may lie on another machine: looked at in a child process with a deadline, so that a dead server ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

# File systems that are another machine's; a dead one holds a `stat` forever.
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "fuse.sshfs",
    "beegfs",
    "gpfs",
    "glusterfs",
    "9p",
    "wekafs",
)
DEADLINE_S = 5.0
"""Longest wait for a file server."""
_LOOK = "import os,sys; s=os.stat(sys.argv[1]); print(s.st_mode)"


def mode_of(path: str) -> int:
    """The mode of PATH.

    Raises:
        OSError: it is not there, or may not be looked at.
        subprocess.TimeoutExpired: its server does not answer.
    """
    if not on_network(path):
        return os.stat(path).st_mode
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LOOK, path], capture_output=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode:
        raise FileNotFoundError(path)
    return int(done.stdout)


def hangs(path: Path) -> bool:
    """Whether PATH is on another machine that does not answer."""
    try:
        mode_of(str(path))
    except subprocess.TimeoutExpired:
        return True
    except (OSError, ValueError):
        return False
    return False


def file_size(path: Path) -> int:
    """Bytes of a plain file; of a pipe or a device, which could be read forever, none.

    Raises:
        OSError: it is not there, or no plain file.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no plain file")
    return found.st_size


def on_network(path: str) -> bool:
    """Whether PATH is on a mount of another machine, as far as the list of mounts says; PATH is not touched."""
    longest = max(
        (mount for mount in _network_mounts() if path == mount or path.startswith(f"{mount}/")), key=len, default=""
    )
    if not longest:
        return False
    local = (mount for mount in _local_mounts() if path == mount or path.startswith(f"{mount.rstrip('/')}/"))
    return len(longest) >= max((len(mount) for mount in local), default=0)


@lru_cache(maxsize=1)
def _mounts() -> tuple[tuple[str, str], ...]:
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return ()
    return tuple((row[1].replace("\\040", " "), row[2]) for row in rows if len(row) > 2)


def _network_mounts() -> list[str]:
    return [mount for mount, kind in _mounts() if kind in _NETWORK]


def _local_mounts() -> list[str]:
    return [mount for mount, kind in _mounts() if kind not in _NETWORK]
