"""Which file system a path is on, from the kernel's mount table alone: nothing is asked of the file system itself."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct, known, missing, why_missing
from rlcheck.facts.base import MissingKind as Kind
from rlcheck.measure.machine.context import ProbeContext

NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "orangefs",
     "pvfs2", "panfs", "wekafs", "davfs", "vastnfs"}
)  # fmt: skip
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs", "fuse.squashfuse", "fuse.squashfuse_ll"})


class Mount(Struct, frozen=True):
    """One line of the mount table. `options` are those of the mount."""

    point: str
    fs_type: str
    options: tuple[str, ...] = ()

    @property
    def is_network(self) -> bool:
        """Whether its files are on another machine, or behind a program (FUSE) that may fetch them from one."""
        return self.fs_type in NETWORK_TYPES or (self.fs_type.startswith("fuse.") and self.fs_type not in LOCAL_FUSE)


def read_mounts(ctx: ProbeContext) -> Fact[tuple[Mount, ...]]:
    """All mounts, in the order of the table (a later one hides an earlier one at the same point)."""
    text = ctx.read_text("/proc/self/mounts")
    if text.value is None:
        return Fact(missing=why_missing(text))
    lines = [line.split(" ") for line in text.value.splitlines()]
    mounts = tuple(
        Mount(point=_unescape(fields[1]), fs_type=fields[2], options=tuple(fields[3].split(",")))
        for fields in lines
        if len(fields) >= 4
    )
    return known(mounts) if mounts else missing(Kind.ERROR, "/proc/self/mounts: no mount in it")


def mount_of(mounts: tuple[Mount, ...], path: str) -> Mount | None:
    """The mount that holds absolute `path`."""
    best: Mount | None = None
    for mount in mounts:
        prefix = mount.point.rstrip("/") + "/"
        if (path + "/").startswith(prefix) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescape(field: str) -> str:
    """Spaces and the like are octal in the table."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field
