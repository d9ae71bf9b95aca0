"""What built machines are put together from: an ordinary server, GPUs, network cards, Python environments.

The server begins as the recorded H200 host (a true document of `rlcheck collect`, so that every section is there) and
becomes a bare-metal machine of an ordinary user. Its home directory is written `~`, as the command writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.gpu import (
    DeviceNodes,
    DriverLibrary,
    Fabric,
    KernelModule,
    NvidiaDevice,
    NvidiaFacts,
    NvLinks,
    PciGpu,
    RemappedRows,
)
from rlcheck.facts.nccl import NcclFacts, NcclLibrary, TorchLinkage
from rlcheck.facts.network import DefaultRoute, Gid, GpuDirect, Interface, RdmaDevice, RdmaPort
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.python import Distribution, PythonFacts, TorchFacts
from rlcheck.facts.system import CpuFacts, Device, DeviceFacts, Hardware, Limit, NumaNode, Place, ProcessFacts

RECORDS = Path(__file__).resolve().parents[1] / "fixtures" / "machines"
GIB, MIB = 1 << 30, 1 << 20
SITE = "~/venv/lib/python3.12/site-packages"
NOT_SUPPORTED: Fact[Any] = absent("this GPU does not have it (NVML: NOT_SUPPORTED)")


def recorded(name: str) -> Facts:
    """A record that is on disk."""
    return decode((RECORDS / f"{name}.json").read_bytes(), name)[0]


def changed(struct: Any, changes: Mapping[str, Any]) -> Any:
    """`struct` with other values at dotted paths, looking through facts: a plain value becomes a known one."""
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        old = getattr(struct, name)
        if rest:
            value = changed(old.value if isinstance(old, Fact) else old, {rest: value})
        if isinstance(old, Fact) and not isinstance(value, Fact):
            value = known(value)
        struct = msgspec.structs.replace(struct, **{name: value})
    return struct


def at_home(facts: Facts) -> Facts:
    """The same for a user whose home directory is not root's."""
    data = encode((facts,)).replace(b'"/root"', b'"~"').replace(b"/root/", b"~/").replace(b"_root", b"_$USER")
    return decode(data)[0]


def platform(**changes: Any) -> PlatformFacts:
    usual = {
        "os_name": "Ubuntu 22.04.5 LTS", "os_id": "ubuntu", "os_version": "22.04", "kernel": "6.8.0-60-generic",
        "machine": "x86_64", "libc": "glibc", "libc_version": "2.35",
        "sys_vendor": known("Supermicro"), "product_name": known("Super Server"),
        "cpu_model": known("x86-64 processor"),
    }  # fmt: skip
    return PlatformFacts(**{**usual, **changes})


def cpus(count: int, nodes: int = 2, allowed: tuple[int, ...] | None = None, **changes: Any) -> CpuFacts:
    """So many processors, spread evenly over so many memory nodes."""
    share = count // nodes
    numa = tuple(NumaNode(id=n, cpus=tuple(range(n * share, (n + 1) * share)), total_bytes=512 * GIB)
                 for n in range(nodes))  # fmt: skip
    usual = {"online": known(count), "allowed": known(tuple(range(count)) if allowed is None else allowed),
             "numa_nodes": numa, "numa_balancing": known(0), "thp": known("madvise"),
             "page_size_bytes": known(4096)}  # fmt: skip
    return CpuFacts(**{**usual, **changes})


def place(purpose: str, path: str, free: int, total: int, **changes: Any) -> Place:
    usual = {"exists": True, "mount_point": "/", "fs_type": "ext4", "options": ("rw", "relatime"),
             "free_inodes": known(60_000_000), "writable": known(True)}  # fmt: skip
    return Place(purpose=purpose, path=path, **{**usual, "total_bytes": known(total), "free_bytes": known(free),
                                                **changes})  # fmt: skip


def shm(size: int, used: int = 0) -> Place:
    return place("shm", "/dev/shm", size - used, size, mount_point="/dev/shm", fs_type="tmpfs")


def places(free: int = 700 * GIB, total: int = 1700 * GIB, **changes: Any) -> tuple[Place, ...]:
    """The places of a run, all on one disk."""
    paths = {"tmp": "/tmp", "ray": "/tmp/ray", "triton": "~/.triton/cache", "inductor": "/tmp/torchinductor_$USER",
             "vllm": "~/.cache/vllm", "home": "~", "cwd": "~/run"}  # fmt: skip
    there = ("tmp", "home", "cwd")
    return tuple(place(purpose, path, free, total, exists=purpose in there, **changes)
                 for purpose, path in paths.items())  # fmt: skip


# Name, PCI ID, compute capability, memory in MiB as NVML gives it, power limit in W, PCIe generation, NVLink ports.
MODELS: dict[str, tuple[str, str, tuple[int, int], int, float, int, int]] = {
    "h200": ("NVIDIA H200", "2335", (9, 0), 143771, 700.0, 5, 18),
    "h100": ("NVIDIA H100 80GB HBM3", "2330", (9, 0), 81559, 700.0, 5, 18),
    "a100": ("NVIDIA A100-SXM4-80GB", "20b2", (8, 0), 81920, 400.0, 4, 12),
    "gh200": ("NVIDIA GH200 480GB", "2342", (9, 0), 97871, 900.0, 5, 0),
    "l4": ("NVIDIA L4", "27b8", (8, 9), 23034, 72.0, 4, 0),
    "a10": ("NVIDIA A10", "2236", (8, 6), 23028, 150.0, 4, 0),
    "4090": ("NVIDIA GeForce RTX 4090", "2684", (8, 9), 24564, 450.0, 4, 0),
}
CONSUMER = ("4090",)


def gpu(model: str, index: int, bus_id: str, **changes: Any) -> NvidiaDevice:
    """A healthy GPU that does nothing."""
    name, _, capability, memory_mib, watts, generation, links = MODELS[model]
    fabric = "completed" if links == 18 else "not_supported"
    ecc = NOT_SUPPORTED if model in CONSUMER else None
    values = {
        "uuid": f"GPU-{index:08x}", "name": name, "bus_id": bus_id, "compute_capability": capability,
        "memory_total_bytes": memory_mib * MIB, "memory_used_bytes": 4 * MIB, "memory_reserved_bytes": 615 * MIB,
        "processes": (), "ecc_enabled": ecc or True, "ecc_uncorrected": ecc or 0,
        "remapped_rows": ecc or RemappedRows(), "retired_pages_pending": NOT_SUPPORTED, "clock_events": 1,
        "pcie_gen": generation, "pcie_gen_max": generation, "pcie_width": 16, "pcie_width_max": 16,
        "nvlinks": NvLinks(num_active=links), "fabric": Fabric(state=fabric), "mig_enabled": ecc or False,
        "mig_uuids": (), "compute_mode": "default", "persistence": True, "recovery_action": 0, "temperature_c": 35,
        "power_w": 60.0, "power_limit_w": watts, "power_default_w": watts, "numa_node": NOT_SUPPORTED,
    }  # fmt: skip
    facts = {k: v if isinstance(v, Fact) else known(v) for k, v in {**values, **changes}.items()}
    return NvidiaDevice(index=index, **facts)


def bus_ids(count: int) -> tuple[str, ...]:
    return tuple(f"0000:{number:02x}:00.0" for number in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)[:count])


def libraries(driver: str, directory: str = "/usr/lib/x86_64-linux-gnu") -> tuple[DriverLibrary, ...]:
    return tuple(DriverLibrary(name=name, directory=directory, version=driver)
                 for name in ("libcuda.so", "libnvidia-ml.so"))  # fmt: skip


def nvidia(model: str, count: int, driver: str, cuda: int, flavour: str = "open", **changes: Any) -> NvidiaFacts:
    """`count` GPUs and their driver; `changes` are dotted paths of the section, or of every device (`each`)."""
    each = changes.pop("each", {})
    addresses = bus_ids(count)
    section = NvidiaFacts(
        source="nvml",
        pci=known(tuple(PciGpu(bus_id=at, device_id=MODELS[model][1], pci_class="0302", driver="nvidia")
                        for at in addresses)),
        nodes=DeviceNodes(numbers=tuple(range(count)), control=True, uvm=True, nvswitch=MODELS[model][6] == 18,
                          can_create=True),
        kernel_module=known(KernelModule(version=driver, flavour=flavour)),
        proc_gpus=known(addresses),
        libraries=libraries(driver),
        driver_version=known(driver),
        cuda_driver=known(cuda),
        devices=known(tuple(gpu(model, index, at, **each) for index, at in enumerate(addresses))),
        xids=known(()),
    )  # fmt: skip
    return changed(section, changes)


def device_facts(count: int, *cards: str, maker: str = "nvidia") -> DeviceFacts:
    """The nodes of GPUs 0 … count-1 and of RDMA cards; GPUs and cards are spread over two memory nodes."""
    numbers = range(count)
    gpus = {"nvidia": ["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{n}" for n in numbers)],
            "amd": ["/dev/kfd", *(f"/dev/dri/renderD{128 + n}" for n in numbers)]}[maker]  # fmt: skip
    verbs = [f"/dev/infiniband/uverbs{n}" for n, _ in enumerate(cards)]
    addresses = bus_ids(count)
    return DeviceFacts(
        nodes=tuple(Device(path=path, usable=True, gid=0, group="root", mode="666") for path in [*gpus, *verbs]),
        hardware=tuple(Hardware(kind=maker, address=at, numa_node=n * 2 // max(count, 1))
                       for n, at in enumerate(addresses)),
        infiniband=cards,
        nvidia_driver=maker == "nvidia",
        amd_driver=maker == "amd",
    )  # fmt: skip


LO = Interface(name="lo", index=1, up=True, operstate="unknown", kind="loopback", mtu=65536, ipv4="127.0.0.1",
               ipv6=("::1",))  # fmt: skip


def ethernet(name: str, index: int, ipv4: str, **changes: Any) -> Interface:
    usual = {"up": True, "operstate": "up", "kind": "ethernet", "mtu": 1500, "speed_mbps": 25_000,
             "driver": "mlx5_core", "pci": f"0000:{index:02x}:00.1"}  # fmt: skip
    return Interface(name=name, index=index, ipv4=ipv4, **{**usual, **changes})


UPLINK = ethernet("eno1", 2, "192.0.2.10")
ROUTE = DefaultRoute(interface="eno1", gateway="192.0.2.1")


def card(name: str, number: int, port: RdmaPort, **changes: Any) -> RdmaDevice:
    usual = {"driver": "mlx5_core", "model": "MT4129 MT_0000000838", "uverbs": f"uverbs{number}", "uverbs_usable": True,
             "pci": f"0000:{0x19 + 16 * number:02x}:00.0", "numa_node": number // 4}  # fmt: skip
    return RdmaDevice(name=name, ports=(port,), **{**usual, **changes})


def ib_port(lid: int = 987, **changes: Any) -> RdmaPort:
    gid = Gid(index=0, gid=f"fe80:0000:0000:0000:9c63:c003:0055:{lid:04x}", type="IB/RoCE v1")
    usual = {"number": 1, "state": "ACTIVE", "phys_state": "LinkUp", "link_layer": "InfiniBand", "rate_gbps": 400.0,
             "width": "4X NDR", "sm_lid": 359, "gids_read_to": 17, "gids": (gid,)}  # fmt: skip
    return RdmaPort(lid=lid, **{**usual, **changes})


def gpudirect(num_gpus: int, flavour: str = "open", peermem: bool = True) -> GpuDirect:
    return GpuDirect(num_gpus=num_gpus, module_flavour=flavour, peermem=peermem, kernel="6.8.0-60-generic")


# CUDA, HIP, bundled NCCL, and the architectures of the official wheels.
_CU13 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
_CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
_ROCM6 = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101")
TORCH: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "2.4.0+cu121": ("12.1", "", "2.20.5", _CU124),
    "2.5.1+cu121": ("12.1", "", "2.21.5", _CU124),
    "2.6.0+cu124": ("12.4", "", "2.21.5", _CU124),
    "2.7.0+rocm6.3": ("", "6.3.42133-1b9c17779", "", _ROCM6),
    "2.9.1+cpu": ("", "", "", ()),
    "2.11.0+cu130": ("13.0", "", "2.28.9", _CU13),
}
# What `torch` needs beside it, and what a trainer adds.
STACK = {
    "2.4.0+cu121": {"vllm": "0.6.3.post1", "ray": "2.38.0", "transformers": "4.46.2", "numpy": "1.26.4",
                    "triton": "3.0.0", "nvidia-nccl-cu12": "2.20.5", "nvidia-cuda-runtime-cu12": "12.1.105"},
    "2.5.1+cu121": {"vllm": "0.7.2", "verl": "0.2.0.post2", "ray": "2.40.0", "transformers": "4.48.3",
                    "numpy": "1.26.4", "tensordict": "0.5.0", "triton": "3.1.0", "nvidia-nccl-cu12": "2.21.5"},
    "2.6.0+cu124": {"vllm": "0.8.4", "ray": "2.43.0", "transformers": "4.51.3", "numpy": "1.26.4",
                    "triton": "3.2.0", "nvidia-nccl-cu12": "2.21.5", "nvidia-cuda-runtime-cu12": "12.4.127"},
    "2.7.0+rocm6.3": {"ray": "2.53.0", "transformers": "4.57.1", "numpy": "2.2.6", "pytorch-triton-rocm": "3.3.0"},
    "2.9.1+cpu": {"ray": "2.53.0", "transformers": "4.57.1", "numpy": "2.2.6", "tensordict": "0.10.0"},
    "2.11.0+cu130": {"vllm": "0.24.0", "verl": "0.9.1", "ray": "2.60.0", "transformers": "5.9.0", "numpy": "2.2.6",
                     "tensordict": "0.10.0", "triton": "3.6.0", "huggingface-hub": "1.12.0",
                     "nvidia-nccl-cu13": "2.28.9", "nvidia-cuda-runtime": "13.0.96"},
}  # fmt: skip


def python(
    torch: str,
    version: str = "3.12.3",
    machine: str = "x86_64",
    libc: str = "glibc 2.35",
    more: Mapping[str, str] | None = None,
    **changes: Any,
) -> PythonFacts:
    """A virtual environment around one build of torch. Requirement lines are left out: see the README."""
    cuda, hip, nccl, archs = TORCH[torch]
    site = SITE.replace("3.12", ".".join(version.split(".")[:2]))
    dists = {"torch": torch if "+cpu" in torch or "rocm" in torch else torch.partition("+")[0],
             "huggingface-hub": "0.36.0", **STACK[torch], **(more or {})}  # fmt: skip
    markers = {"implementation_name": "cpython", "os_name": "posix", "platform_machine": machine,
               "platform_python_implementation": "CPython", "platform_system": "Linux", "sys_platform": "linux",
               "python_version": ".".join(version.split(".")[:2]), "python_full_version": version,
               "implementation_version": version}  # fmt: skip
    section = PythonFacts(
        executable="~/venv/bin/python", version=version, prefix="~/venv", base_prefix="/usr", kind="venv",
        is_doctors_own=False, platform_tags_libc=libc, sys_path=(site,), marker_environment=markers,
        distributions=tuple(Distribution(name=name, version=number, location=site, installer="pip")
                            for name, number in sorted(dists.items())),
        torch=known(TorchFacts(version=torch, location=f"{site}/torch", cuda=cuda, hip=hip, cxx11_abi="new",
                               arch_list=archs, bundled_nccl=nccl)),
        imports=absent("import tests are made with --deep only"),
    )  # fmt: skip
    return changed(section, changes)


def nccl(environment: PythonFacts, **changes: Any) -> NcclFacts:
    """NCCL as that environment's torch loads it: its own copy, by the path that is built into torch."""
    torch = environment.torch.value
    none = absent("NCCL_DEBUG_FILE is not set")
    if torch is None or not torch.cuda:
        return NcclFacts(torch=absent("torch here is not a CUDA build"), debug_file=none)
    site = environment.sys_path[0]
    path = f"{site}/nvidia/nccl/lib/libnccl.so.2"
    section = NcclFacts(
        libraries=(NcclLibrary(path=path, origin="bundled", version=torch.bundled_nccl),),
        torch=known(TorchLinkage(path=f"{site}/torch/lib/libtorch_cuda.so", search="rpath", loaded=path,
                                 loaded_by="rpath", loaded_version=torch.bundled_nccl)),
        debug_file=none,
    )  # fmt: skip
    return changed(section, changes)


ENVIRON = {"HOME": "~", "LANG": "en_US.UTF-8", "USER": "$USER",
           "PATH": "~/venv/bin:/usr/local/bin:/usr/bin:/bin"}  # fmt: skip
ORDINARY = ProcessFacts(uid=1000, gid=1000, groups=(1000,), capabilities=known(()), seccomp=known(0),
                        umask=known(0o022), user_name_from=known("USER"), home_set=True)  # fmt: skip


def server(name: str, environment: PythonFacts, environ: Mapping[str, str] | None = None, **changes: Any) -> Facts:
    """A healthy bare-metal server without GPUs, used by an ordinary user, plus `changes` at dotted paths.

    A double underscore in a keyword stands for the dot.
    """
    none = absent("no control group limits it")
    changes = {path.replace("__", "."): value for path, value in changes.items()}
    usual = {
        "node": name,
        "platform": platform(),
        "environ": {**ENVIRON, **(environ or {})},
        "python": environment,
        "nvidia": absent("there is no NVIDIA GPU in this machine"),
        "network.hostname": name,
        "network.hosts_addresses": ("127.0.1.1",),
        "network.interfaces": (LO, UPLINK),
        "network.default_routes": (ROUTE,),
        "network.gpudirect": absent("no NVIDIA GPU with a loaded driver on this machine"),
        "nccl": nccl(environment),
        "system.limits.nofile": Limit(soft=1048576, hard=1048576),
        "system.limits.nproc": Limit(soft=4125000, hard=4125000),
        "system.shm": shm(504 * GIB),
        "system.places": places(),
        "system.memory.total_bytes": 1008 * GIB,
        "system.memory.available_bytes": 980 * GIB,
        "system.memory.overcommit": 0,
        "system.memory.max_map_count": 1048576,
        "system.cgroup.path": "/user.slice/user-1000.slice/session-3.scope",
        "system.cgroup.memory_limit_bytes": none,
        "system.cgroup.memory_limit_at": "",
        "system.cpu": cpus(112),
        "system.kernel.release": "6.8.0-60-generic",
        "system.kernel.modules_present": True,
        "system.kernel.ptrace_scope": 1,
        "system.kernel.pid_max": 4194304,
        "system.clock.synchronized": True,
        "system.clock.max_error_us": 21000,
        "system.process": ORDINARY,
        "system.devices": DeviceFacts(),
        "system.toolchain.cc": "",
        "system.toolchain.libcuda": ("/usr/lib/x86_64-linux-gnu/libcuda.so.1",),
        "system.own_addresses": ("192.0.2.10",),
        "system.locale.lc_all": "",
        "system.locale.lang": "en_US.UTF-8",
        "hub.uid": 1000,
        "hub.home.owner_uid": 1000,
        "hub.cache.owner_uid": 1000,
        "hub.cache.total_bytes": 1700 * GIB,
        "hub.cache.free_bytes": 700 * GIB,
        "hub.datasets.owner_uid": 1000,
        "ray.uid": 1000,
        "ray.addresses": ("127.0.0.1", "192.0.2.10"),
    }
    return changed(at_home(recorded("h200-host")), {**usual, **changes})


def gpu_server(name: str, model: str, count: int, driver: str, cuda: int, environment: PythonFacts,
               environ: Mapping[str, str] | None = None, **changes: Any) -> Facts:  # fmt: skip
    """The same with GPUs."""
    usual = {
        "nvidia": nvidia(model, count, driver, cuda),
        "system__devices": device_facts(count),
        "network__gpudirect": gpudirect(count),
    }
    return server(name, environment, environ, **{**usual, **changes})
