"""The system under a run: limits, memory, processors, disks, devices, clock, compiler tool chain."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct

UNLIMITED = -1


class Limit(Struct, frozen=True):
    """A resource limit (`ulimit`) as the kernel counts it, in bytes or in pieces; -1 is unlimited."""

    soft: int = UNLIMITED
    hard: int = UNLIMITED


class Limits(Struct, frozen=True):
    """The resource limits of this process, which its children inherit.

    Bytes: memlock, stack, core, address_space, file_size. Pieces: nofile (open files), nproc (processes and threads).
    """

    memlock: Fact[Limit] = Fact()
    nofile: Fact[Limit] = Fact()
    nproc: Fact[Limit] = Fact()
    stack: Fact[Limit] = Fact()
    core: Fact[Limit] = Fact()
    address_space: Fact[Limit] = Fact()
    file_size: Fact[Limit] = Fact()


class Place(Struct, frozen=True):
    """A directory that a run writes to, and the file system it is on.

    `purpose` is shm, tmp, ray, triton, inductor, home, cwd, …; `setting` the variable that chose the path, or "".
    `exists` is False when it would be created first: the numbers are then those of the nearest existing parent, and
    `writable` says whether it could be created. `network` says that the file system is another machine's.
    `free_bytes` is what an ordinary user may still fill; inode counts are missing where the file system has none.
    """

    purpose: str = ""
    path: str = ""
    setting: str = ""
    exists: bool = False
    mount_point: str = ""
    fs_type: str = ""
    options: tuple[str, ...] = ()
    network: bool = False
    total_bytes: Fact[int] = Fact()
    free_bytes: Fact[int] = Fact()
    free_inodes: Fact[int] = Fact()
    writable: Fact[bool] = Fact()


class MemoryFacts(Struct, frozen=True):
    """What `/proc/meminfo` and the sysctls of the whole machine say.

    `hugepages_bytes` is memory set aside for huge pages, which ordinary allocations cannot use.
    `overcommit` is `vm.overcommit_memory` (0 heuristic, 1 always, 2 never); `commit_limit_bytes` binds only with 2.
    """

    total_bytes: int = 0
    available_bytes: int = 0
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    commit_limit_bytes: int = 0
    committed_bytes: int = 0
    hugepages_bytes: int = 0
    swappiness: Fact[int] = Fact()
    overcommit: Fact[int] = Fact()
    max_map_count: Fact[int] = Fact()


class CgroupFacts(Struct, frozen=True):
    """The tightest limits on the way from this process's control group up to the root.

    A limit is absent when no group on the way sets one. `*_at` is the file that sets it. `version` is 1 or 2, and
    `path` the group of this process (as its cgroup namespace shows it).
    `memory_used_bytes` is what is charged to the limiting group, and `memory_reclaimable_bytes` the part of it that is
    only page cache; `cpus` is the CPU quota in processors' worth, and may be a fraction; `oom_kills` counts processes
    that the kernel killed in this group and below.
    """

    version: int = 0
    path: str = ""
    memory_limit_bytes: Fact[int] = Fact()
    memory_limit_at: str = ""
    memory_high_bytes: Fact[int] = Fact()
    memory_used_bytes: Fact[int] = Fact()
    memory_reclaimable_bytes: Fact[int] = Fact()
    swap_limit_bytes: Fact[int] = Fact()
    cpus: Fact[float] = Fact()
    cpus_at: str = ""
    pids_limit: Fact[int] = Fact()
    pids_limit_at: str = ""
    pids_used: Fact[int] = Fact()
    oom_kills: Fact[int] = Fact()


class NumaNode(Struct, frozen=True):
    """A memory node. A node without CPUs is memory of a device (a GPU's, on Grace Hopper)."""

    id: int = 0
    cpus: tuple[int, ...] = ()
    total_bytes: int = 0


class CpuFacts(Struct, frozen=True):
    """Processors: those online in the machine (what `os.cpu_count()` says) and those this process may run on."""

    online: Fact[int] = Fact()
    allowed: Fact[tuple[int, ...]] = Fact()
    numa_nodes: tuple[NumaNode, ...] = ()
    numa_balancing: Fact[int] = Fact()
    thp: Fact[str] = Fact()
    page_size_bytes: Fact[int] = Fact()


class KernelFacts(Struct, frozen=True):
    """The kernel's settings and whether the running one is still the installed one.

    `modules_present` says whether `/lib/modules` holds the running release; it is absent when there is no
    `/lib/modules` (containers, kernels without modules). `other_releases` are the releases that are there.
    `reboot_required` names the packages that asked for a reboot.
    """

    release: str = ""
    modules_present: Fact[bool] = Fact()
    other_releases: tuple[str, ...] = ()
    reboot_required: Fact[tuple[str, ...]] = Fact()
    core_pattern: Fact[str] = Fact()
    pid_max: Fact[int] = Fact()
    threads_max: Fact[int] = Fact()
    ptrace_scope: Fact[int] = Fact()


class ClockFacts(Struct, frozen=True):
    """Whether the kernel's clock is disciplined by a time source, as adjtimex(2) tells it."""

    synchronized: bool = False
    max_error_us: int = 0
    source: str = ""


class ProcessFacts(Struct, frozen=True):
    """Who this process is. `capabilities` are the effective ones, without `CAP_`, in lower case.

    `user_name_from` is where `getpass.getuser()` would find a name (a variable, or /etc/passwd; the name itself is not
    recorded), absent when it would find none. `root_mapped` is True when root here is an ordinary user outside.
    `seccomp` is 0 off, 1 strict, 2 filter.
    """

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    capabilities: Fact[tuple[str, ...]] = Fact()
    seccomp: Fact[int] = Fact()
    no_new_privileges: bool = False
    root_mapped: bool = False
    umask: Fact[int] = Fact()
    user_name_from: Fact[str] = Fact()
    home_set: bool = False


class Device(Struct, frozen=True):
    """A device node and whether this process may open it for reading and writing, as its mode and groups say."""

    path: str = ""
    usable: bool = False
    gid: int = -1
    group: str = ""
    mode: str = ""


class Hardware(Struct, frozen=True):
    """An accelerator or network adapter on the PCI bus. `kind` is nvidia, amd, or net; `numa_node` -1 is unknown."""

    kind: str = ""
    address: str = ""
    numa_node: int = -1


class DeviceFacts(Struct, frozen=True):
    """Device nodes in /dev, and the hardware that the kernel shows whether or not there is a node for it.

    `infiniband` are the adapters in `/sys/class/infiniband`. `amd_driver` is True when the kernel's amdgpu compute
    interface is loaded, `nvidia_driver` likewise. Nodes whose directory cannot be read are not in `nodes`.
    """

    nodes: tuple[Device, ...] = ()
    hardware: tuple[Hardware, ...] = ()
    infiniband: tuple[str, ...] = ()
    nvidia_driver: bool = False
    amd_driver: bool = False


class ToolchainFacts(Struct, frozen=True):
    """What Triton needs to build its launchers.

    `cc` is the variable CC. `compilers` maps gcc, g++, clang and cc to their paths, those not found left out.
    `python_h` is the header of the examined interpreter's minor version, `include_dirs` where it was looked for.
    `libcuda` are the places of a real libcuda.so.1 that the loader or LD_LIBRARY_PATH knows, `libcuda_stubs` the
    link-time stand-ins of the CUDA toolkit.
    """

    cc: str = ""
    cc_found: bool = False
    compilers: dict[str, str] = {}
    python_h: Fact[str] = Fact()
    include_dirs: tuple[str, ...] = ()
    libcuda: tuple[str, ...] = ()
    libcuda_stubs: tuple[str, ...] = ()
    ldconfig: bool = False


class LocaleFacts(Struct, frozen=True):
    """The variables that choose Python's text encoding, as they are set; "" is unset."""

    lc_all: str = ""
    lc_ctype: str = ""
    lang: str = ""
    pythonutf8: str = ""
    pythonioencoding: str = ""


class SystemFacts(Struct, frozen=True):
    """Everything the SYS checks judge. `own_addresses` are this host's IPv4 addresses, without loopback."""

    limits: Fact[Limits] = Fact()
    shm: Fact[Place] = Fact()
    places: tuple[Place, ...] = ()
    memory: Fact[MemoryFacts] = Fact()
    cgroup: Fact[CgroupFacts] = Fact()
    cpu: CpuFacts = CpuFacts()
    kernel: KernelFacts = KernelFacts()
    clock: Fact[ClockFacts] = Fact()
    process: Fact[ProcessFacts] = Fact()
    devices: DeviceFacts = DeviceFacts()
    toolchain: ToolchainFacts = ToolchainFacts()
    locale: LocaleFacts = LocaleFacts()
    own_addresses: tuple[str, ...] = ()
