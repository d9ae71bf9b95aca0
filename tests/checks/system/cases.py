"""For every SYS check a machine on which it fires and one on which it stays quiet."""

from __future__ import annotations

import msgspec

from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.system import ClockFacts, Device, DeviceFacts, Hardware, KernelFacts, Limit, LocaleFacts
from tests.checks.system.build import (
    GIB,
    MIB,
    cgroup,
    cpu,
    in_container,
    limits,
    machine,
    memory,
    nvidia,
    place,
    places,
    process,
    python,
    toolchain,
)

QUIET = machine()
PROXY = {"http_proxy": "http://proxy.example.com:3128"}
LOCAL = "localhost,127.0.0.1"


def amd(usable: bool) -> DeviceFacts:
    nodes = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")
    made = tuple(Device(path=path, usable=usable, gid=109, group="render", mode="660") for path in nodes)
    return DeviceFacts(nodes=made, amd_driver=True)


def closed_gpu(path: str) -> DeviceFacts:
    devices = nvidia()
    closed = tuple(msgspec.structs.replace(node, usable=node.path != path) for node in devices.nodes)
    return msgspec.structs.replace(devices, nodes=closed)


def kernel(**changes: object) -> KernelFacts:
    usual: dict[str, object] = {"release": "6.8.0-40-generic", "modules_present": known(True)}
    return KernelFacts(**(usual | changes))  # type: ignore[arg-type]


def rdma(**changes: object) -> DeviceFacts:
    return nvidia(infiniband=("mlx5_0", "mlx5_1"), **changes)


UVERBS = tuple(Device(path=f"/dev/infiniband/uverbs{i}", usable=True, mode="666") for i in range(2))
WITH_UVERBS = rdma(nodes=(*nvidia().nodes, *UVERBS))
FAR_GPUS = nvidia(hardware=(Hardware(kind="nvidia", address="0000:01:00.0", numa_node=1),))
ON_NFS = place("triton", "/nfs/u/.triton/cache", fs_type="nfs4", network=True, mount_point="/nfs")

CASES: dict[str, tuple[Facts, Facts]] = {
    "SYS001": (machine(shm=known(place("shm", "/dev/shm", 64 * MIB, 64 * MIB, fs_type="tmpfs"))), QUIET),
    "SYS002": (
        machine(
            devices=rdma(nodes=(*nvidia().nodes, *UVERBS)), limits=limits(memlock=Limit(soft=8 * MIB, hard=8 * MIB))
        ),
        machine(devices=rdma()),
    ),
    "SYS003": (machine(limits=limits(nofile=Limit(soft=1024, hard=1 << 20))), QUIET),
    "SYS004": (machine(limits=limits(nproc=Limit(soft=2000, hard=4000))), QUIET),
    "SYS005": (machine(cgroup=cgroup(pids_limit=known(1024), pids_limit_at="/sys/fs/cgroup/pids.max")), QUIET),
    "SYS006": (machine(limits=limits(core=Limit())), QUIET),
    "SYS007": (machine(limits=limits(stack=Limit(soft=MIB))), QUIET),
    "SYS008": (machine(limits=limits(address_space=Limit(soft=64 * GIB))), QUIET),
    "SYS009": (
        machine(cgroup=cgroup(memory_limit_bytes=known(64 * GIB), memory_limit_at="/sys/fs/cgroup/job_1/memory.max")),
        QUIET,
    ),
    "SYS010": (machine(memory=memory(available_bytes=8 * GIB)), QUIET),
    "SYS011": (machine(cgroup=cgroup(oom_kills=known(3), memory_limit_bytes=known(64 * GIB))), QUIET),
    "SYS012": (machine(memory=memory(swap_total_bytes=64 * GIB, swap_free_bytes=2 * GIB)), QUIET),
    "SYS013": (machine(memory=memory(overcommit=known(2))), QUIET),
    "SYS014": (machine(memory=memory(max_map_count=known(4096))), QUIET),
    "SYS015": (machine(cpu=cpu(allowed=known((0, 1, 2, 3)))), QUIET),
    "SYS016": (machine(cpu=cpu(allowed=known(tuple(range(8))))), QUIET),
    "SYS017": (
        machine(environ=known({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "16"}), cpu=cpu(allowed=known((0,)))),
        machine(environ=known({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "128"})),
    ),
    "SYS018": (machine(devices=FAR_GPUS, cpu=cpu(allowed=known(tuple(range(32))))), QUIET),
    "SYS019": (machine(cpu=cpu(thp=known("never"))), QUIET),
    "SYS020": (machine(cpu=cpu(numa_balancing=known(1)), devices=amd(usable=True)), QUIET),
    "SYS021": (machine(clock=known(ClockFacts(source="adjtimex(2)"))), QUIET),
    "SYS022": (machine(kernel=kernel(modules_present=known(False), other_releases=("6.8.0-45-generic",))), QUIET),
    "SYS023": (machine(cpu=cpu(page_size_bytes=known(65536))), QUIET),
    "SYS024": (machine(kernel=kernel(ptrace_scope=known(1))), QUIET),
    "SYS025": (machine(places=places(tmp=place("tmp", "/tmp", 3 * GIB))), QUIET),
    "SYS026": (machine(places=places(home=place("home", "/home/u", free_inodes=known(400)))), QUIET),
    "SYS027": (
        machine(places=places(ray=place("ray", "/net/scratch/slurm_jobdir/1355700/tmp.t0016/ray", setting="TMPDIR"))),
        QUIET,
    ),
    "SYS028": (
        machine(places=places(tmp=place("tmp", "/scratch/tmp", setting="TMPDIR", writable=known(False)))),
        QUIET,
    ),
    "SYS029": (machine(places=places(vllm=place("vllm", "/home/u/.cache/vllm", 300 * MIB))), QUIET),
    "SYS030": (machine(places=places(triton=ON_NFS)), QUIET),
    "SYS031": (machine(places=places(home=place("home", "/", writable=known(False)))), QUIET),
    "SYS032": (
        machine(
            platform=in_container(),
            devices=rdma(),
            limits=limits(memlock=Limit(soft=8 * MIB, hard=8 * MIB)),
            process=process(capabilities=known(("sys_ptrace",))),
        ),
        QUIET,
    ),
    "SYS033": (machine(devices=closed_gpu("/dev/nvidiactl")), QUIET),
    "SYS035": (
        machine(devices=amd(usable=False), python=python(torch="2.11.0", hip="7.2.4")),
        machine(devices=amd(usable=True), python=python(torch="2.11.0", hip="7.2.4")),
    ),
    "SYS036": (machine(process=process(uid=1_002_700_000, user_name_from=absent("not in /etc/passwd"))), QUIET),
    "SYS037": (machine(toolchain=toolchain(compilers={"cc": "/usr/bin/cc"})), QUIET),
    "SYS038": (machine(toolchain=toolchain(python_h=absent("no Python.h"))), QUIET),
    "SYS039": (machine(toolchain=toolchain(libcuda=())), QUIET),
    "SYS040": (
        machine(environ=known(PROXY), own_addresses=("192.0.2.7",)),
        machine(environ=known(PROXY | {"no_proxy": f"{LOCAL},192.0.2.7"}), own_addresses=("192.0.2.7",)),
    ),
    "SYS041": (
        machine(environ=known(PROXY | {"no_proxy": f"{LOCAL},192.0.2.0/24,*.example.com"})),
        machine(environ=known(PROXY | {"no_proxy": f"{LOCAL},.example.com"})),
    ),
    "SYS042": (machine(locale=LocaleFacts(lang="zh_CN.GBK")), machine(locale=LocaleFacts(lang="C.UTF-8"))),
    "SYS034": (machine(process=process(umask=known(0o077))), QUIET),
}
OTHER_FIRES = {
    "SYS002": (machine(devices=rdma(nodes=(*nvidia().nodes, *UVERBS)), limits=limits(memlock=Limit(soft=8 * MIB))),),
    "SYS004": (machine(limits=limits(nproc=Limit(soft=2000, hard=1 << 20))),),
    "SYS008": (machine(limits=limits(address_space=Limit(soft=64 * GIB, hard=64 * GIB))),),
    "SYS028": (machine(places=places(triton=place("triton", "/scratch/t", options=("rw", "noexec")))),),
}
