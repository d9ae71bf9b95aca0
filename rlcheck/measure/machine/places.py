"""File systems: which one a path is on, how much room it has, and whether it may be touched from this process."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from rlcheck.facts.base import Fact, MissingKind, Struct, absent, known, missing
from rlcheck.facts.system import Place
from rlcheck.measure.machine.context import ProbeContext, os_error

# File systems that another machine serves: any call on one may hang in the kernel for as long as that machine is away.
NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "fhgfs", "ceph", "cifs", "smb3", "smbfs", "wekafs", "panfs",
     "afs", "glusterfs", "orangefs", "pvfs2", "dvs", "ocfs2", "gfs2", "ncpfs", "autofs", "9p")
)  # fmt: skip
_LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "fuseblk", "fusectl"))
CHILD_TIMEOUT_S = 2.0
_MOST_LINKS = 40
_PATH_LIMIT = 4096


class Mount(Struct, frozen=True):
    """A line of /proc/self/mounts."""

    source: str = ""
    mount_point: str = "/"
    fs_type: str = ""
    options: tuple[str, ...] = ()

    @property
    def network(self) -> bool:
        """Whether another machine serves it, or a program that may wait for one."""
        fuse = self.fs_type.startswith("fuse.") and self.fs_type not in _LOCAL_FUSE
        return fuse or self.fs_type in NETWORK_TYPES


class Mounts:
    """The mounted file systems, by mount point; the last mount on a point hides the earlier ones."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._by_point: dict[str, Mount] = {}
        for line in (context.read_text("/proc/self/mounts").value or "").splitlines():
            parts = [_unescape(part) for part in line.split(" ")]
            if len(parts) >= 4:
                mount = Mount(
                    source=parts[0], mount_point=parts[1], fs_type=parts[2], options=tuple(parts[3].split(","))
                )
                self._by_point[mount.mount_point] = mount

    def all(self) -> tuple[Mount, ...]:
        """Every visible mount."""
        return tuple(self._by_point.values())

    def at(self, path: str) -> Mount:
        """The mount that holds `path`, taken literally; one without a type when the table could not be read."""
        while path not in self._by_point and path != "/":
            path = posixpath.dirname(path) or "/"
        return self._by_point.get(path, Mount())

    def resolve(self, path: str) -> str:
        """`path` without symbolic links, as far as local file systems go: past the border nothing is touched."""
        if len(path) > _PATH_LIMIT:
            return path
        pending = [part for part in posixpath.normpath("/" + path).split("/") if part][::-1]
        here, links = "/", 0
        while pending:
            candidate = posixpath.join(here, pending.pop())
            target = None if self.at(candidate).network else self._context.read_link(candidate).value
            if target is None or links >= _MOST_LINKS or len(target) > _PATH_LIMIT:
                here = candidate
                continue
            links += 1
            whole = posixpath.normpath(posixpath.join(posixpath.dirname(candidate), target))
            pending += [part for part in whole.split("/") if part][::-1]
            here = "/"
        return here


def measure_places(
    context: ProbeContext, mounts: Mounts, wanted: Iterable[tuple[str, str, str]], timeout_s: float = CHILD_TIMEOUT_S
) -> tuple[Place, ...]:
    """Size, room and access of each `(purpose, path, setting)`; those of network file systems through a child."""
    places = [_locate(mounts, *item) for item in wanted]
    remote = {real: place for place, real in places if place.network}
    answers = _ask_child(context, tuple(remote), timeout_s) if remote else {}
    return tuple(
        _from_child(place, answers.get(real), timeout_s) if place.network else _from_here(context, place, real)
        for place, real in places
    )


def _locate(mounts: Mounts, purpose: str, path: str, setting: str) -> tuple[Place, str]:
    real = mounts.resolve(path)
    mount = mounts.at(real)
    place = Place(
        purpose=purpose,
        path=path,
        setting=setting,
        mount_point=mount.mount_point,
        fs_type=mount.fs_type,
        options=mount.options,
        network=mount.network,
    )
    return place, real


def _from_here(context: ProbeContext, place: Place, real: str) -> Place:
    at: str = real
    while not context.exists(at) and at != "/":
        at = posixpath.dirname(at) or "/"
    try:
        room = os.statvfs(context.path(at))
    except (OSError, ValueError) as error:
        reason = os_error(error, at) if isinstance(error, OSError) else missing(MissingKind.ERROR, str(error))
        return _with(place, exists=False, total_bytes=reason, free_bytes=reason, free_inodes=reason, writable=reason)
    return _with(
        place,
        exists=at == real,
        total_bytes=known(room.f_frsize * room.f_blocks),
        free_bytes=known(room.f_frsize * room.f_bavail),
        free_inodes=_inodes(room.f_files, room.f_favail),
        writable=known(context.access(at, os.W_OK | os.X_OK)),
    )


def _ask_child(context: ProbeContext, paths: tuple[str, ...], timeout_s: float) -> dict[str, dict[str, Any]]:
    """What the child said of each path of the machine in time."""
    real = {context.path(path): path for path in paths}
    request = {"paths": [{"path": path, "actions": ["statvfs"]} for path in real]}
    lines = context.child("fs_child.py", request, timeout_s=timeout_s)
    said = [cast("dict[str, Any]", line) for line in lines if isinstance(line, dict)]
    return {real[str(line.get("path"))]: line for line in said if str(line.get("path")) in real}


def _from_child(place: Place, line: dict[str, Any] | None, timeout_s: float) -> Place:
    if line is None or line.get("error") or not isinstance(line.get("total_bytes"), int):
        error = line.get("error") if line else ""
        kind = MissingKind.ERROR if error else MissingKind.TIMEOUT
        reason = missing(kind, f"{place.path}: {error or f'the file system did not answer within {timeout_s:g} s'}")
        return _with(place, total_bytes=reason, free_bytes=reason, free_inodes=reason, writable=reason)
    return _with(
        place,
        exists=bool(line.get("exists")),
        total_bytes=known(int(line["total_bytes"])),
        free_bytes=known(int(line.get("free_bytes", 0))),
        free_inodes=_inodes(int(line.get("total_inodes", 0)), int(line.get("free_inodes", 0))),
        writable=known(bool(line.get("writable"))),
    )


def _inodes(total: int, free: int) -> Fact[int]:
    return known(free) if total > 0 else absent("this file system does not count inodes")


def _with(place: Place, **changes: Any) -> Place:
    return msgspec.structs.replace(place, **changes)


def _unescape(text: str) -> str:
    """Spaces and the like are written as `\\040` in the mount table."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
