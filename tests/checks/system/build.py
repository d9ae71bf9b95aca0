"""Small builders of facts for the SYS checks: a healthy machine, from which each case departs in one point."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.python import Distribution, PythonFacts, TorchFacts
from rlcheck.facts.system import (
    CgroupFacts,
    ClockFacts,
    CpuFacts,
    Device,
    DeviceFacts,
    Hardware,
    KernelFacts,
    Limit,
    Limits,
    MemoryFacts,
    NumaNode,
    Place,
    ProcessFacts,
    SystemFacts,
    ToolchainFacts,
)

GIB = 1 << 30
MIB = 1 << 20


def limits(**changes: Limit) -> Fact[Limits]:
    usual = {
        "memlock": Limit(),
        "nofile": Limit(soft=1 << 20, hard=1 << 20),
        "nproc": Limit(soft=1 << 20, hard=1 << 20),
        "stack": Limit(soft=8 * MIB),
        "core": Limit(soft=0),
        "address_space": Limit(),
        "file_size": Limit(),
    }
    return known(Limits(**{name: known(limit) for name, limit in (usual | changes).items()}))


def place(purpose: str, path: str, free: int = 100 * GIB, total: int = 200 * GIB, **more: Any) -> Place:
    usual: dict[str, Any] = {
        "exists": True,
        "mount_point": "/",
        "fs_type": "ext4",
        "options": ("rw", "relatime"),
        "free_inodes": known(1_000_000),
        "writable": known(True),
    }
    numbers = {"total_bytes": known(total), "free_bytes": known(free)}
    return Place(purpose=purpose, path=path, **(usual | numbers | more))


def places(**changes: Place) -> tuple[Place, ...]:
    usual = {
        "tmp": place("tmp", "/tmp"),
        "ray": place("ray", "/tmp/ray", exists=False),
        "triton": place("triton", "/home/u/.triton/cache", exists=False),
        "inductor": place("inductor", "/tmp/torchinductor_u", exists=False),
        "vllm": place("vllm", "/home/u/.cache/vllm", exists=False),
        "home": place("home", "/home/u", setting="HOME"),
    }
    return tuple((usual | changes).values())


def memory(**changes: Any) -> Fact[MemoryFacts]:
    usual = {
        "total_bytes": 512 * GIB,
        "available_bytes": 500 * GIB,
        "overcommit": known(0),
        "max_map_count": known(65530),
        "swappiness": known(60),
    }
    return known(MemoryFacts(**(usual | changes)))


def cgroup(**changes: Any) -> Fact[CgroupFacts]:
    none = absent("no limit")
    usual = {
        "version": 2,
        "path": "/",
        "memory_limit_bytes": none,
        "cpus": none,
        "pids_limit": none,
        "oom_kills": known(0),
    }
    return known(CgroupFacts(**(usual | changes)))


def cpu(**changes: Any) -> CpuFacts:
    usual = {
        "online": known(128),
        "allowed": known(tuple(range(128))),
        "numa_nodes": (NumaNode(id=0, cpus=tuple(range(64))), NumaNode(id=1, cpus=tuple(range(64, 128)))),
        "numa_balancing": known(0),
        "thp": known("madvise"),
        "page_size_bytes": known(4096),
    }
    return CpuFacts(**(usual | changes))


def process(**changes: Any) -> Fact[ProcessFacts]:
    usual = {
        "uid": 1000,
        "gid": 1000,
        "capabilities": known(()),
        "seccomp": known(0),
        "umask": known(0o022),
        "user_name_from": known("/etc/passwd"),
        "home_set": True,
    }
    return known(ProcessFacts(**(usual | changes)))


def nvidia(num: int = 8, **changes: Any) -> DeviceFacts:
    names = [*(f"nvidia{index}" for index in range(num)), "nvidiactl", "nvidia-uvm"]
    usual = {
        "nodes": tuple(Device(path=f"/dev/{name}", usable=True, gid=0, group="root", mode="666") for name in names),
        "hardware": tuple(Hardware(kind="nvidia", address=f"0000:{i:02x}:00.0", numa_node=0) for i in range(num)),
        "nvidia_driver": True,
    }
    return DeviceFacts(**(usual | changes))


def toolchain(**changes: Any) -> ToolchainFacts:
    usual = {
        "compilers": {"gcc": "/usr/bin/gcc", "g++": "/usr/bin/g++"},
        "python_h": known("/usr/include/python3.12/Python.h"),
        "include_dirs": ("/usr/include/python3.12",),
        "libcuda": ("/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
        "ldconfig": True,
    }
    return ToolchainFacts(**(usual | changes))


def python(**versions: str) -> Fact[PythonFacts]:
    hip = versions.pop("hip", "")
    found = tuple(Distribution(name=name, version=version, location="/site") for name, version in versions.items())
    torch = known(TorchFacts(version=versions["torch"], hip=hip)) if "torch" in versions else absent("no torch")
    return known(PythonFacts(distributions=found, torch=torch))


def machine(**changes: Any) -> Facts:
    """A healthy eight-GPU host. `changes` go to the sections platform, environ, python, or to fields of the system."""
    sections = {name: changes.pop(name) for name in ("platform", "environ", "python") if name in changes}
    system = SystemFacts(
        limits=limits(),
        shm=known(place("shm", "/dev/shm", 256 * GIB, 256 * GIB, fs_type="tmpfs")),
        places=places(),
        memory=memory(),
        cgroup=cgroup(),
        cpu=cpu(),
        kernel=KernelFacts(
            release="6.8.0-40-generic", modules_present=known(True), core_pattern=known("core"), ptrace_scope=known(0)
        ),
        clock=known(ClockFacts(synchronized=True, source="adjtimex(2)")),
        process=process(),
        devices=nvidia(),
        toolchain=toolchain(),
    )
    defaults: dict[str, Any] = {
        "platform": known(PlatformFacts(kernel="6.8.0-40-generic", machine="x86_64")),
        "environ": known({}),
        "python": python(torch="2.11.0", triton="3.6.0", ray="2.60.0"),
        "system": known(msgspec.structs.replace(system, **changes)),
    }
    return Facts(**(defaults | sections))


def in_container(kind: str = "docker") -> Fact[PlatformFacts]:
    return known(PlatformFacts(kernel="6.8.0-40-generic", machine="x86_64", container=kind))
