"""The limits that control groups put on this process, from its own group up to the root, version 1 or 2."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.system import CgroupFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.kernel_text import to_int
from rlcheck.measure.machine.places import Mounts

# Version 1 has no word for "no limit": it shows the largest multiple of the page size instead.
_NO_LIMIT_V1 = 1 << 60
_DEEPEST = 64


def collect_cgroup(context: ProbeContext, mounts: Mounts) -> Fact[CgroupFacts]:
    """The tightest limits on the way up; missing when this kernel shows no control groups."""
    text = context.read_text("/proc/self/cgroup", 65536)
    if text.value is None:
        return Fact(missing=text.missing)
    tree = _Tree(context, mounts, text.value)
    if not tree.roots:
        return absent("no control group file system is mounted")
    memory_limit, memory_at = tree.tightest("memory", "memory.limit_in_bytes", "memory.max")
    pids_limit, pids_at = tree.tightest("pids", "pids.max", "pids.max")
    cpus, cpus_at = tree.quota()
    return known(
        CgroupFacts(
            version=1 if tree.is_v1("memory") else 2,
            path=tree.paths.get("memory", tree.paths.get("", "/")),
            memory_limit_bytes=memory_limit,
            memory_limit_at=memory_at,
            memory_high_bytes=tree.tightest("memory", "", "memory.high")[0],
            memory_used_bytes=tree.beside(memory_at, "memory", "memory.usage_in_bytes", "memory.current"),
            memory_reclaimable_bytes=tree.reclaimable(memory_at),
            swap_limit_bytes=tree.tightest("memory", "", "memory.swap.max")[0],
            cpus=cpus,
            cpus_at=cpus_at,
            pids_limit=pids_limit,
            pids_limit_at=pids_at,
            pids_used=tree.beside(pids_at, "pids", "pids.current", "pids.current"),
            oom_kills=tree.oom_kills(memory_at),
        )
    )


class _Tree:
    """Where each controller's groups are mounted, and this process's place below.

    `roots` maps a controller to its mount point, `paths` to the group of this process; "" is version 2.
    """

    def __init__(self, context: ProbeContext, mounts: Mounts, membership: str) -> None:
        self._context = context
        self.paths: dict[str, str] = {}
        for line in membership.splitlines():
            _, _, rest = line.partition(":")
            controllers, colon, path = rest.partition(":")
            if colon:
                self.paths.update((name, path) for name in controllers.split(","))
        self.roots: dict[str, str] = {}
        for mount in mounts.all():
            if mount.fs_type == "cgroup2":
                self.roots.setdefault("", mount.mount_point)
            elif mount.fs_type == "cgroup":
                self.roots.update((option, mount.mount_point) for option in mount.options)

    def is_v1(self, controller: str) -> bool:
        """Whether version 1 has this controller here."""
        return controller in self.paths and controller in self.roots

    def chain(self, controller: str) -> list[str]:
        """The directories from this process's group up to the root that is visible."""
        name = controller if self.is_v1(controller) else ""
        root = self.roots.get(name)
        if root is None:
            return []
        # Seen from inside a cgroup namespace, a group outside it is written with `..`; and a container that shares the
        # host's namespace sees the host's path, while only its own part of the tree is mounted.
        parts = [part for part in self.paths.get(name, "/").split("/") if part and part != ".."][:_DEEPEST]
        while parts and not self._context.exists(posixpath.join(root, *parts)):
            parts = parts[1:]
        return [posixpath.join(root, *parts[:depth]) for depth in range(len(parts), -1, -1)]

    def tightest(self, controller: str, v1_file: str, v2_file: str) -> tuple[Fact[int], str]:
        """The smallest number in a limit file on the way up, and the file that has it."""
        name = v1_file if self.is_v1(controller) else v2_file
        best: tuple[int, str] | None = None
        for directory in self.chain(controller) if name else []:
            path = posixpath.join(directory, name)
            limit = self._number(path)
            if limit is not None and 0 <= limit < _NO_LIMIT_V1 and (best is None or limit < best[0]):
                best = (limit, path)
        return (known(best[0]), best[1]) if best else (absent(f"no control group limits {name or v2_file}"), "")

    def quota(self) -> tuple[Fact[float], str]:
        """The smallest CPU quota on the way up, in processors."""
        read: Callable[[str], float | None] = self._quota_v1 if self.is_v1("cpu") else self._quota_v2
        found = [(cpus, directory) for directory in self.chain("cpu") if (cpus := read(directory)) is not None]
        if not found:
            return absent("no control group limits the processor time"), ""
        cpus, directory = min(found)
        return known(cpus), directory

    def beside(self, limit_file: str, controller: str, v1_file: str, v2_file: str) -> Fact[int]:
        """A counter of the group whose limit was found, or of this process's own group."""
        directories = [posixpath.dirname(limit_file)] if limit_file else self.chain(controller)[:1]
        name = v1_file if self.is_v1(controller) else v2_file
        for directory in directories:
            number = self._number(posixpath.join(directory, name))
            if number is not None:
                return known(number)
        return missing(MissingKind.UNSUPPORTED, f"no {name} in this control group")

    def reclaimable(self, limit_file: str) -> Fact[int]:
        """Page cache charged to the limiting group that the kernel would give up before killing anything."""
        name = "total_inactive_file" if self.is_v1("memory") else "inactive_file"
        directories = [posixpath.dirname(limit_file)] if limit_file else self.chain("memory")[:1]
        counts = self._pairs(directories, "memory.stat", name)
        return known(counts[0]) if counts else missing(MissingKind.UNSUPPORTED, "no memory.stat in this control group")

    def oom_kills(self, limit_file: str) -> Fact[int]:
        """How often the kernel killed for lack of memory in this group, or in the one that sets the limit."""
        name = "memory.oom_control" if self.is_v1("memory") else "memory.events"
        directories = self.chain("memory")[:1] + ([posixpath.dirname(limit_file)] if limit_file else [])
        counts = self._pairs(directories, name, "oom_kill")
        return known(max(counts)) if counts else missing(MissingKind.UNSUPPORTED, f"no {name} in this control group")

    def _pairs(self, directories: list[str], file: str, key: str) -> list[int]:
        """The value of `key` in a file of `key value` lines, from each directory that has it."""
        found: list[int] = []
        for directory in directories:
            text = self._context.read_text(posixpath.join(directory, file), 65536).value or ""
            pairs = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
            count = to_int(pairs.get(key, ""))
            found += [count] if count is not None and count >= 0 else []
        return found

    def _number(self, path: str) -> int | None:
        return to_int(self._context.read_text(path, 64).value or "")

    def _quota_v2(self, directory: str) -> float | None:
        words = (self._context.read_text(posixpath.join(directory, "cpu.max"), 64).value or "").split()
        return _ratio(words[0], words[1]) if len(words) == 2 else None

    def _quota_v1(self, directory: str) -> float | None:
        quota = self._context.read_text(posixpath.join(directory, "cpu.cfs_quota_us"), 64).value or ""
        period = self._context.read_text(posixpath.join(directory, "cpu.cfs_period_us"), 64).value or ""
        return _ratio(quota, period)


def _ratio(quota: str, period: str) -> float | None:
    top, bottom = to_int(quota), to_int(period)
    return top / bottom if top is not None and bottom is not None and top > 0 and bottom > 0 else None
