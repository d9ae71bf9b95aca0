"""The system under a run: limits, memory, processors, disks, devices, clock and tool chain.

Everything comes from small files; the kernel's clock state is one system call, and network file systems are asked
through a child that may hang.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.system import (
    UNLIMITED,
    CpuFacts,
    KernelFacts,
    Limit,
    Limits,
    LocaleFacts,
    MemoryFacts,
    NumaNode,
    ProcessFacts,
    SystemFacts,
)
from rlcheck.measure.machine.cgroup import collect_cgroup
from rlcheck.measure.machine.clock import collect_clock
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.devices import collect_devices
from rlcheck.measure.machine.kernel_text import fields, id_list, missing_like, read_int, read_word, to_int
from rlcheck.measure.machine.places import Mounts, measure_places
from rlcheck.measure.machine.toolchain import collect_toolchain

_LIMIT_NAMES = {
    "Max locked memory": "memlock",
    "Max open files": "nofile",
    "Max processes": "nproc",
    "Max stack size": "stack",
    "Max core file size": "core",
    "Max address space": "address_space",
    "Max file size": "file_size",
}
_CAPABILITIES = {1: "dac_override", 12: "net_admin", 14: "ipc_lock", 19: "sys_ptrace", 21: "sys_admin", 23: "sys_nice",
                 24: "sys_resource"}  # fmt: skip
# The order in which getpass.getuser() asks.
_USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")
_LOCAL_NAME_SERVICES = frozenset(("files", "compat", "systemd", "altfiles", ""))


def collect(context: ProbeContext) -> SystemFacts:
    """Look at this machine."""
    mounts = Mounts(context)
    status = context.read_text("/proc/self/status", 65536)
    places = measure_places(context, mounts, _wanted_places(context, status.value or ""))
    shm = next((place for place in places if place.purpose == "shm"), None)
    return SystemFacts(
        limits=_limits(context),
        shm=known(shm) if shm and context.exists("/dev/shm") else absent("there is no /dev/shm"),
        places=tuple(place for place in places if place.purpose != "shm"),
        memory=_memory(context),
        cgroup=collect_cgroup(context, mounts),
        cpu=_cpu(context, status),
        kernel=_kernel(context),
        clock=collect_clock(context),
        process=_process(context, status),
        devices=collect_devices(context),
        toolchain=collect_toolchain(context, mounts),
        locale=_locale(context),
        own_addresses=_own_addresses(context),
    )


def _limits(context: ProbeContext) -> Fact[Limits]:
    text = context.read_text("/proc/self/limits", 65536)
    if text.value is None:
        return Fact(missing=text.missing)
    found: dict[str, Fact[Limit]] = {}
    for line in text.value.splitlines():
        row = re.match(r"(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)", line)
        if row is None or row[1] not in _LIMIT_NAMES:
            continue
        soft, hard = (UNLIMITED if word == "unlimited" else to_int(word) for word in (row[2], row[3]))
        if soft is not None and hard is not None:
            found[_LIMIT_NAMES[row[1]]] = known(Limit(soft=soft, hard=hard))
    unreadable: Fact[Limit] = missing(MissingKind.ERROR, "/proc/self/limits has no such line")
    return known(Limits(**{name: found.get(name, unreadable) for name in _LIMIT_NAMES.values()}))


def _memory(context: ProbeContext) -> Fact[MemoryFacts]:
    text = context.read_text("/proc/meminfo", 65536)
    if text.value is None:
        return Fact(missing=text.missing)
    lines = fields(text.value)

    def kib(name: str) -> int:
        return (to_int((lines.get(name, "").split() or [""])[0]) or 0) * 1024

    if not kib("MemTotal"):
        return missing(MissingKind.ERROR, "/proc/meminfo has no MemTotal")
    return known(
        MemoryFacts(
            total_bytes=kib("MemTotal"),
            available_bytes=kib("MemAvailable") or kib("MemFree"),
            swap_total_bytes=kib("SwapTotal"),
            swap_free_bytes=kib("SwapFree"),
            commit_limit_bytes=kib("CommitLimit"),
            committed_bytes=kib("Committed_AS"),
            hugepages_bytes=kib("HugePages_Total") // 1024 * kib("Hugepagesize"),
            swappiness=read_int(context, "/proc/sys/vm/swappiness"),
            overcommit=read_int(context, "/proc/sys/vm/overcommit_memory"),
            max_map_count=read_int(context, "/proc/sys/vm/max_map_count"),
        )
    )


def _cpu(context: ProbeContext, status: Fact[str]) -> CpuFacts:
    online = context.read_text("/sys/devices/system/cpu/online", 4096)
    ids = id_list(online.value or "")
    allowed = id_list(fields(status.value or "").get("Cpus_allowed_list", ""))
    unread: Fact[tuple[int, ...]] = Fact(missing=status.missing or missing(MissingKind.ERROR, "not a list").missing)
    thp = context.read_text("/sys/kernel/mm/transparent_hugepage/enabled", 256)
    chosen = re.search(r"\[(\w+)\]", thp.value or "")
    return CpuFacts(
        online=known(len(ids)) if ids else missing_like(online) if online.missing else _garbage("cpu/online"),
        allowed=known(allowed) if allowed else unread,
        numa_nodes=_numa_nodes(context),
        numa_balancing=read_int(context, "/proc/sys/kernel/numa_balancing"),
        thp=known(chosen[1]) if chosen else thp if thp.missing else _garbage("transparent_hugepage/enabled"),
        page_size_bytes=known(os.sysconf("SC_PAGE_SIZE")),
    )


def _garbage(name: str) -> Fact[Any]:
    return missing(MissingKind.ERROR, f"{name}: not understood")


def _numa_nodes(context: ProbeContext) -> tuple[NumaNode, ...]:
    directory = "/sys/devices/system/node"
    names = [name for name in context.list_dir(directory).value or () if re.fullmatch(r"node\d{1,5}", name)]
    nodes: list[NumaNode] = []
    for name in names[:1024]:
        total = re.search(r"MemTotal:\s+(\d+) kB", context.read_text(f"{directory}/{name}/meminfo", 65536).value or "")
        cpus = id_list(context.read_text(f"{directory}/{name}/cpulist", 65536).value or "")
        nodes.append(NumaNode(id=int(name[4:]), cpus=cpus, total_bytes=int(total[1][:18]) * 1024 if total else 0))
    return tuple(sorted(nodes, key=lambda node: node.id))


def _kernel(context: ProbeContext) -> KernelFacts:
    release = read_word(context, "/proc/sys/kernel/osrelease").value or os.uname().release
    listed = context.list_dir("/lib/modules")
    releases = tuple(listed.value or ())
    present: Fact[bool] = known(release in releases) if releases else absent("there is no /lib/modules")
    reboot: Fact[tuple[str, ...]] = absent("no /run/reboot-required")
    if context.exists("/run/reboot-required") or context.exists("/var/run/reboot-required"):
        packages = context.read_text("/run/reboot-required.pkgs", 65536).value or ""
        reboot = known(tuple(sorted(set(packages.split()))))
    return KernelFacts(
        release=release,
        modules_present=present,
        other_releases=tuple(name for name in releases if name != release)[:16],
        reboot_required=reboot,
        core_pattern=read_word(context, "/proc/sys/kernel/core_pattern"),
        pid_max=read_int(context, "/proc/sys/kernel/pid_max"),
        threads_max=read_int(context, "/proc/sys/kernel/threads-max"),
        ptrace_scope=read_int(context, "/proc/sys/kernel/yama/ptrace_scope"),
    )


def _process(context: ProbeContext, status: Fact[str]) -> Fact[ProcessFacts]:
    if status.value is None:
        return Fact(missing=status.missing)
    lines = fields(status.value)
    uid, gid = _second(lines.get("Uid", "")), _second(lines.get("Gid", ""))
    capabilities = to_int(lines.get("CapEff", ""), 16)
    umask = to_int(lines.get("Umask", ""), 8)
    seccomp = to_int(lines.get("Seccomp", ""))
    return known(
        ProcessFacts(
            uid=uid,
            gid=gid,
            groups=id_list(",".join(lines.get("Groups", "").split())),
            capabilities=_garbage("CapEff") if capabilities is None else known(_decode(capabilities)),
            seccomp=_garbage("Seccomp") if seccomp is None else known(seccomp),
            no_new_privileges=lines.get("NoNewPrivs") == "1",
            root_mapped=_root_is_mapped(context),
            umask=_garbage("Umask") if umask is None else known(umask),
            user_name_from=_user_name_from(context, uid),
            home_set=bool(context.environ.get("HOME")),
        )
    )


def _second(text: str) -> int:
    """The effective ID of `real effective saved file-system`."""
    words = text.split()
    return (to_int(words[1]) if len(words) > 1 else None) or 0


def _decode(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _CAPABILITIES.items() if mask >> bit & 1)


def _root_is_mapped(context: ProbeContext) -> bool:
    words = (context.read_text("/proc/self/uid_map", 4096).value or "").split()
    return len(words) >= 3 and words[0] == "0" and words[1] != "0"


def _user_name_from(context: ProbeContext, uid: int) -> Fact[str]:
    """Where getpass.getuser() would find a name. Directory services are not asked: they may not answer."""
    for name in _USER_VARIABLES:
        if context.environ.get(name):
            return known(name)
    if _passwd(context, uid) is not None:
        return known("/etc/passwd")
    services = fields(context.read_text("/etc/nsswitch.conf", 65536).value or "").get("passwd", "")
    if set(re.sub(r"\[.*?\]", "", services).split()) <= _LOCAL_NAME_SERVICES:
        return absent(f"user {uid} is not in /etc/passwd")
    return missing(MissingKind.UNSUPPORTED, f"user {uid} is not in /etc/passwd; {services} was not asked")


def _passwd(context: ProbeContext, uid: int) -> tuple[str, str] | None:
    """Name and home directory."""
    for line in (context.read_text("/etc/passwd").value or "").splitlines():
        row = line.split(":")
        if len(row) >= 6 and row[2] == str(uid):
            return row[0], row[5]
    return None


def _wanted_places(context: ProbeContext, status: str) -> list[tuple[str, str, str]]:
    """Purpose, path, and the variable that chose it."""
    uid = _second(fields(status).get("Uid", ""))
    row = _passwd(context, uid)
    home, home_by = _first(context, ("HOME",), row[1] if row else "/")
    tmp, tmp_by = _first(context, ("TMPDIR", "TEMP", "TMP"), "/tmp")
    ray, ray_by = _first(context, ("RAY_TMPDIR", "TMPDIR"), "/tmp")
    cache, cache_by = _first(context, ("XDG_CACHE_HOME",), posixpath.join(home, ".cache"))
    user = context.environ.get("USER") or (row[0] if row else str(uid))
    triton_home, triton_by = _first(context, ("TRITON_HOME",), home)
    wanted = [
        ("shm", "/dev/shm", ""),
        ("tmp", tmp, tmp_by),
        ("ray", posixpath.join(ray, "ray"), ray_by),
        ("triton", *_first(context, ("TRITON_CACHE_DIR",), posixpath.join(triton_home, ".triton/cache"), triton_by)),
        (
            "inductor",
            *_first(context, ("TORCHINDUCTOR_CACHE_DIR",), posixpath.join(tmp, f"torchinductor_{user}"), tmp_by),
        ),
        ("vllm", *_first(context, ("VLLM_CACHE_ROOT",), posixpath.join(cache, "vllm"), cache_by)),
        ("home", home, home_by),
        ("cwd", context.read_link("/proc/self/cwd").value or "", ""),
    ]
    return [(purpose, path, setting) for purpose, path, setting in wanted if path.startswith("/") and "\0" not in path]


def _first(context: ProbeContext, variables: tuple[str, ...], otherwise: str, setting: str = "") -> tuple[str, str]:
    """The first variable that is set and its name, else `otherwise` and the variable that it came from."""
    for name in variables:
        if context.environ.get(name):
            return context.environ[name], name
    return otherwise, setting


def _locale(context: ProbeContext) -> LocaleFacts:
    names = ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONUTF8", "PYTHONIOENCODING")
    return LocaleFacts(**{name.lower(): context.environ.get(name, "")[:80] for name in names})


def _own_addresses(context: ProbeContext) -> tuple[str, ...]:
    """This host's IPv4 addresses, from the routing table's local entries."""
    text = context.read_text("/proc/net/fib_trie", 1 << 20).value or ""
    found = re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\s+/32 host LOCAL", text)
    return tuple(sorted({address for address in found if not address.startswith("127.")}))[:64]
