"""Limits, memory and processors: where the line between the verdicts runs."""

from __future__ import annotations

import re

import pytest

from rlcheck.facts.base import known
from rlcheck.facts.system import Device, Hardware, KernelFacts, Limit, NumaNode
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
    process,
)
from tests.checks.system.test_cases import judge

UVERBS = Device(path="/dev/infiniband/uverbs0", usable=True)
RDMA = nvidia(infiniband=("mlx5_0",), nodes=(*nvidia().nodes, UVERBS))
# A virtual machine of Azure, whose network adapter is an RDMA adapter, too.
NO_GPU_RDMA = nvidia(0, infiniband=("mlx5_an0",), nodes=(UVERBS,), nvidia_driver=False)


@pytest.mark.parametrize(
    ("free", "gpus", "status"),
    [
        (64 * MIB, 8, "fail"),
        (64 * MIB, 1, "warn"),
        (64 * MIB, 0, "warn"),
        (8 * GIB, 8, "warn"),
        (16 * GIB, 8, "pass"),
        (10 * GIB, 1, "pass"),
        (10 * GIB, 0, "pass"),
    ],
)
def test_shm_by_gpus(free: int, gpus: int, status: str) -> None:
    """F54, F56: 64 MB is the default of a container."""
    shm = known(place("shm", "/dev/shm", free, free, fs_type="tmpfs"))
    assert judge("SYS001", machine(shm=shm, devices=nvidia(gpus))).status == status


def test_shm_never_asks_for_more_than_half_of_memory() -> None:
    shm = known(place("shm", "/dev/shm", 8 * GIB, 8 * GIB, fs_type="tmpfs"))
    assert judge("SYS001", machine(shm=shm, memory=memory(total_bytes=16 * GIB))).status == "pass"


def test_shm_that_is_a_disk_or_closed() -> None:
    disk = known(place("shm", "/dev/shm", 256 * GIB, 256 * GIB, fs_type="overlay"))
    assert judge("SYS001", machine(shm=disk)).status == "warn"
    closed = known(place("shm", "/dev/shm", 256 * GIB, 256 * GIB, fs_type="tmpfs", writable=known(False)))
    assert judge("SYS001", machine(shm=closed)).status == "fail"


def test_shm_fix_carries_the_size() -> None:
    shm = known(place("shm", "/dev/shm", 64 * MIB, 64 * MIB, fs_type="tmpfs"))
    fix = judge("SYS001", machine(shm=shm)).fixes[0]
    assert fix.command == "docker run --shm-size=16g ..."
    assert not re.search(r"\d", fix.title), "one number, that of the command"


def test_memlock_matters_with_rdma_only() -> None:
    short = limits(memlock=Limit(soft=8 * MIB, hard=8 * MIB))
    assert judge("SYS002", machine(limits=short)).status == "skip"
    root = process(uid=0, capabilities=known(("ipc_lock",)))
    assert judge("SYS002", machine(limits=short, devices=RDMA, process=root)).status == "pass"
    mapped = process(uid=0, capabilities=known(("ipc_lock",)), root_mapped=True)
    assert judge("SYS002", machine(limits=short, devices=RDMA, process=mapped)).status == "fail"
    unusable = nvidia(infiniband=("mlx5_0",))
    assert judge("SYS002", machine(limits=short, devices=unusable)).status == "warn"
    larger = limits(memlock=Limit(soft=32 * GIB, hard=32 * GIB))
    assert judge("SYS002", machine(limits=larger, devices=RDMA)).status == "warn"
    eighth = limits(memlock=Limit(soft=64 * GIB, hard=64 * GIB))
    assert judge("SYS002", machine(limits=eighth, devices=RDMA)).status == "info"
    unused = known({"NCCL_IB_DISABLE": "1"})
    assert judge("SYS002", machine(limits=short, devices=RDMA, environ=unused)).status == "skip"
    assert judge("SYS002", machine(limits=short, devices=NO_GPU_RDMA)).status == "warn"


@pytest.mark.parametrize(
    ("soft", "hard", "status"),
    [(256, 1024, "fail"), (1024, 4096, "warn"), (20000, 20000, "info"), (8192, 1 << 20, "pass"), (-1, -1, "pass")],
)
def test_open_files(soft: int, hard: int, status: str) -> None:
    assert judge("SYS003", machine(limits=limits(nofile=Limit(soft=soft, hard=hard)))).status == status


def test_open_files_of_a_laptop() -> None:
    usual = limits(nofile=Limit(soft=1024, hard=524288))
    finding = judge("SYS003", machine(limits=usual, devices=nvidia(0)))
    assert (finding.status, "`ulimit -n 65536` before `ray start`" in finding.message) == ("info", True)
    low = limits(nofile=Limit(soft=1024, hard=4096))
    assert judge("SYS003", machine(limits=low, devices=nvidia(0))).status == "warn"


def test_process_limit_does_not_bind_root() -> None:
    short = limits(nproc=Limit(soft=100, hard=100))
    assert judge("SYS004", machine(limits=short)).status == "fail"
    assert judge("SYS004", machine(limits=short, process=process(uid=0))).status == "pass"
    assert judge("SYS004", machine(limits=short, process=process(uid=0, root_mapped=True))).status == "fail"


def test_core_files_to_a_program_are_fine() -> None:
    piped = machine(limits=limits(core=Limit()))
    assert piped.system.value is not None
    import msgspec

    kernel = msgspec.structs.replace(
        piped.system.value.kernel, core_pattern=known("|/usr/lib/systemd/systemd-coredump")
    )
    assert judge("SYS006", machine(limits=limits(core=Limit()), kernel=kernel)).status == "pass"


def test_core_files_to_nowhere_are_fine() -> None:
    nowhere = KernelFacts(core_pattern=known("/dev/null"))
    assert judge("SYS006", machine(limits=limits(core=Limit()), kernel=nowhere)).status == "pass"
    unread = KernelFacts()
    assert judge("SYS006", machine(limits=limits(core=Limit()), kernel=unread)).status == "unknown"


def test_stack_unlimited_is_noted() -> None:
    assert judge("SYS007", machine(limits=limits(stack=Limit()))).status == "info"


def test_address_space_without_gpus_only_warns() -> None:
    short = limits(address_space=Limit(soft=64 * GIB, hard=64 * GIB))
    assert judge("SYS008", machine(limits=short, devices=nvidia(0))).status == "warn"


def test_memory_limit_that_ray_sees_is_noted() -> None:
    """F15: in a container of its own the limit is where Ray looks."""
    group = cgroup(memory_limit_bytes=known(64 * GIB), memory_limit_at="/sys/fs/cgroup/memory.max")
    assert judge("SYS009", machine(cgroup=group)).status == "info"
    whole = cgroup(memory_limit_bytes=known(600 * GIB), memory_limit_at="/sys/fs/cgroup/job/memory.max")
    assert judge("SYS009", machine(cgroup=whole)).status == "pass"


def test_page_cache_of_the_group_counts_as_free() -> None:
    full = {"memory_limit_bytes": known(100 * GIB), "memory_used_bytes": known(99 * GIB)}
    assert judge("SYS010", machine(cgroup=cgroup(**full))).status == "warn"
    cache = cgroup(**full, memory_reclaimable_bytes=known(80 * GIB))
    assert judge("SYS010", machine(cgroup=cache)).status == "pass"


def test_kills_without_a_limit_are_noted() -> None:
    assert judge("SYS011", machine(cgroup=cgroup(oom_kills=known(2)))).status == "info"


def test_little_swap_use_is_fine() -> None:
    used = memory(swap_total_bytes=64 * GIB, swap_free_bytes=60 * GIB)
    assert judge("SYS012", machine(memory=used)).status == "pass"


def test_swap_of_a_desktop_is_noted() -> None:
    used = memory(total_bytes=16 * GIB, swap_total_bytes=8 * GIB, swap_free_bytes=4 * GIB)
    assert judge("SYS012", machine(memory=used, devices=nvidia(0))).status == "info"


def test_gpus_are_those_of_the_job() -> None:
    """A job with one GPU of eight sees eight nodes and a variable."""
    one = machine(environ=known({"CUDA_VISIBLE_DEVICES": "3"}), cpu=cpu(allowed=known(tuple(range(8)))))
    assert judge("SYS016", one).status == "pass"
    for value in ("", "-1", "NoDevFiles"):
        none = machine(environ=known({"CUDA_VISIBLE_DEVICES": value}), cpu=cpu(allowed=known(tuple(range(8)))))
        assert judge("SYS016", none).status == "warn"


def test_pod_with_processors_of_its_own() -> None:
    """The static CPU manager of Kubernetes sets an affinity and a quota; Ray sees the quota."""
    pod = machine(cpu=cpu(allowed=known(tuple(range(16)))), cgroup=cgroup(cpus=known(16.0), cpus_at="/sys/fs/cgroup"))
    assert judge("SYS015", pod).status == "info"
    v1 = cgroup(version=1)
    docker = machine(cpu=cpu(allowed=known(tuple(range(16)))), cgroup=v1, platform=in_container())
    assert judge("SYS015", docker).status == "info"
    assert judge("SYS015", machine(cpu=cpu(allowed=known(tuple(range(16)))), cgroup=v1)).status == "warn"


@pytest.mark.parametrize(("at", "status"), [("/sys/fs/cgroup", "info"), ("/sys/fs/cgroup/system.slice/job", "warn")])
def test_quota_is_noted_where_ray_looks(at: str, status: str) -> None:
    """F52: Ray reads the quota of a container, and not one that is set further down."""
    finding = judge("SYS015", machine(cgroup=cgroup(cpus=known(16.0), cpus_at=at)))
    assert finding.status == status
    assert "16" in finding.message


def test_ray_is_told_the_whole_number() -> None:
    """F52: 4 of 112 processors."""
    finding = judge("SYS015", machine(cpu=cpu(online=known(112), allowed=known((0, 1, 2, 3)))))
    assert any("--num-cpus=4" in fix.title for fix in finding.fixes)


def test_one_processor_of_several_in_a_step() -> None:
    variables = known({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "112"})
    finding = judge("SYS017", machine(environ=variables, cpu=cpu(allowed=known((5,)))))
    assert finding.status == "warn"
    commands = [fix.command for fix in finding.fixes if fix.kind == "env"]
    assert commands == ["export SRUN_CPUS_PER_TASK=112 SLURM_CPUS_PER_TASK=112"]
    # srun stops when SLURM_ and SRUN_CPUS_PER_TASK differ.
    granted = known({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "112", "SLURM_CPUS_PER_TASK": "1"})
    fixes = judge("SYS017", machine(environ=granted, cpu=cpu(allowed=known((5,))))).fixes
    assert not [fix for fix in fixes if fix.kind == "env"]
    garbage = known({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "many"})
    assert judge("SYS017", machine(environ=garbage)).status == "pass"
    assert judge("SYS017", machine()).status == "skip"


def test_gpus_on_both_nodes_and_processors_on_one() -> None:
    both = nvidia(hardware=tuple(Hardware(kind="nvidia", address=f"{n}", numa_node=n) for n in (0, 1)))
    finding = judge("SYS018", machine(devices=both, cpu=cpu(allowed=known(tuple(range(32))))))
    assert finding.status == "info"
    assert "[1]" in finding.message


def test_memory_of_a_gpu_is_no_memory_node() -> None:
    """On Grace Hopper a GPU's memory is a node without processors."""
    nodes = (NumaNode(id=0, cpus=tuple(range(72))), NumaNode(id=1))
    one = cpu(numa_nodes=nodes, online=known(72), allowed=known(tuple(range(72))))
    assert judge("SYS018", machine(cpu=one)).status == "skip"
    assert judge("SYS020", machine(cpu=one)).status == "skip"
