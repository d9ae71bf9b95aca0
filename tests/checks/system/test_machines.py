"""Whole machines, with all checks of the family at once: a healthy one must not be called broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts, FactsError, decode, encode
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.system import ClockFacts, Device, DeviceFacts, KernelFacts, Limit, NumaNode
from rlcheck.playbook import Library
from tests.checks.system.build import (
    GIB,
    MIB,
    cgroup,
    cpu,
    limits,
    machine,
    memory,
    nvidia,
    place,
    places,
    process,
    python,
)

CHECKS = family_checks("SYS")

ROOT = process(uid=0, gid=0, capabilities=known(("dac_override", "net_admin", "ipc_lock", "sys_ptrace", "sys_nice")))
ONE_NODE = (NumaNode(id=0, cpus=tuple(range(128))),)


def statuses(facts: Facts) -> dict[str, str]:
    return {finding.id: finding.status for finding in judging.judge(facts, CHECKS, Library())}


def h200() -> Facts:
    """8 x H200 in a virtual machine: 20,000 open files, no control group limits, no swap, only rdma_cm of RDMA."""
    devices = nvidia()
    return machine(
        platform=known(PlatformFacts(kernel="6.6.80", machine="x86_64", virtualization="kvm")),
        limits=limits(nofile=Limit(soft=20000, hard=20000), nproc=Limit(soft=2256062, hard=2256062)),
        shm=known(place("shm", "/dev/shm", 560 * GIB, 560 * GIB, fs_type="tmpfs")),
        memory=memory(total_bytes=591424884736, available_bytes=590071476224),
        cpu=cpu(numa_nodes=ONE_NODE, numa_balancing=absent("no such file")),
        devices=nvidia(nodes=(*devices.nodes, Device(path="/dev/infiniband/rdma_cm", usable=True, mode="666"))),
        places=places(tmp=place("tmp", "/tmp", 235 * GIB, 252 * GIB)),
        process=ROOT,
        kernel=KernelFacts(
            release="6.6.80",
            modules_present=absent("no /lib/modules"),
            core_pattern=known("core"),
            ptrace_scope=absent("no Yama"),
        ),
    )


def cpu_vm() -> Facts:
    """A virtual machine with two processors, root, and no GPU."""
    none = absent("no such file")
    return machine(
        platform=known(PlatformFacts(kernel="6.18", machine="x86_64", virtualization="vm")),
        limits=limits(
            memlock=Limit(soft=8 * MIB, hard=8 * MIB),
            nofile=Limit(soft=20000, hard=20000),
            nproc=Limit(soft=96365, hard=96365),
        ),
        shm=known(place("shm", "/dev/shm", 23 * GIB, 23 * GIB, fs_type="tmpfs")),
        memory=memory(total_bytes=23 * GIB, available_bytes=22 * GIB),
        cgroup=cgroup(version=1),
        cpu=cpu(online=known(2), allowed=known((0, 1)), numa_nodes=(NumaNode(id=0, cpus=(0, 1)),)),
        devices=DeviceFacts(),
        clock=known(ClockFacts(source="adjtimex(2)")),
        process=ROOT,
        kernel=KernelFacts(release="6.18", modules_present=none, core_pattern=known("core"), ptrace_scope=none),
        python=python(torch="2.13.0+cpu", ray="2.60.0"),
    )


def test_h200_host_is_healthy() -> None:
    found = statuses(h200())
    assert {check_id: status for check_id, status in found.items() if status not in ("pass", "skip")} == {
        "SYS003": "info"
    }


def test_cpu_machine_is_healthy() -> None:
    found = statuses(cpu_vm())
    odd = {check_id: status for check_id, status in found.items() if status not in ("pass", "skip")}
    assert odd == {"SYS003": "info", "SYS021": "info"}


@pytest.mark.row("F56")
def test_container_with_64_mib() -> None:
    """F56: one L4 in Docker as it comes."""
    facts = machine(
        platform=known(PlatformFacts(container="docker")),
        shm=known(place("shm", "/dev/shm", 64 * MIB, 64 * MIB, fs_type="tmpfs")),
        devices=nvidia(1),
        memory=memory(total_bytes=64 * GIB, available_bytes=60 * GIB),
        cgroup=cgroup(memory_limit_bytes=known(32 * GIB), memory_limit_at="/sys/fs/cgroup/memory.max"),
        process=process(uid=0, capabilities=known(("dac_override",))),
    )
    found = statuses(facts)
    assert found["SYS001"] == "warn"
    assert found["SYS009"] == found["SYS032"] == "info"
    assert "fail" not in found.values()


def test_slurm_step_with_4_of_112() -> None:
    """F52."""
    facts = machine(
        platform=known(PlatformFacts(slurm_job="77", slurm_step="0")),
        environ=known({"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "16", "SLURM_CPUS_ON_NODE": "112"}),
        cpu=cpu(online=known(112), allowed=known((0, 1, 56, 57))),
        cgroup=cgroup(memory_limit_bytes=known(128 * GIB), memory_limit_at="/sys/fs/cgroup/slurm/job_77/memory.max"),
    )
    found = statuses(facts)
    assert [found[check_id] for check_id in ("SYS009", "SYS015", "SYS016", "SYS017")] == ["warn"] * 4


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_page_is_a_page(check) -> None:
    assert all(check.section(heading) for heading in ("What it does", "Why it matters"))


LEAVES = st.one_of(
    st.none(), st.integers(-(2**70), 2**70), st.text(max_size=8), st.booleans(), st.lists(st.integers(), max_size=3)
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_hostile_facts_never_break_a_check(data: st.DataObject) -> None:
    """A facts file that somebody edited is refused as a whole, or judged without an error."""
    document = json.loads(encode((data.draw(st.sampled_from([h200(), cpu_vm()])),)))
    for _ in range(data.draw(st.integers(1, 4))):
        here = document["nodes"][0]["system"]["value"]
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(here[key], dict | list) and data.draw(st.booleans()):
                here = here[key]
                continue
            here[key] = data.draw(LEAVES)
            break
    try:
        facts = decode(json.dumps(document).encode())[0]
    except FactsError:
        return
    assert "error" not in statuses(facts).values()
