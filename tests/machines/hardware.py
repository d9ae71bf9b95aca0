"""Machines with a GPU, driver or fabric that matters."""

from __future__ import annotations

from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import AccelNode, AmdDevice, Fabric, PciGpu, RocmFacts
from rlcheck.facts.network import Interface
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.system import CpuFacts, Limit, NumaNode
from tests.machines.parts import (
    GIB,
    LO,
    MIB,
    NOT_SUPPORTED,
    bus_ids,
    changed,
    cpus,
    device_facts,
    gpu,
    gpu_server,
    libraries,
    nvidia,
    place,
    places,
    platform,
    python,
    recorded,
    server,
    shm,
)
from tests.machines.registry import machine

NEW = python("2.11.0+cu130")


@machine("8xh200")
def eight_h200(name: str) -> Facts:
    """The recorded one-GPU host, with what the tools of the real eight-GPU host printed."""
    readings = ((36, 77.64), (35, 76.81), (35, 79.12), (36, 77.05), (38, 78.58), (36, 78.47), (35, 77.94), (36, 77.52))
    addresses = tuple(f"0000:00:{number:02x}.0" for number in range(6, 14))
    base = recorded("h200-host")
    each = {"memory_used_bytes": 0}
    gpus = tuple(gpu("h200", index, addresses[index], temperature_c=celsius, power_w=watts, **each)
                 for index, (celsius, watts) in enumerate(readings))  # fmt: skip
    environ = {**(base.environ.value or {}), "NVIDIA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "NCCL_NVLS_ENABLE": "0",
               "NVSHMEM_DISABLE_NVLS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}  # fmt: skip
    nodes = tuple(n for n in device_facts(8).nodes if "nvidia" in n.path)
    rdma_cm = tuple(n for n in base.system.value.devices.nodes if "infiniband" in n.path)
    hardware = tuple(changed(h, {"address": a, "numa_node": -1})
                     for h, a in zip(device_facts(8).hardware, addresses, strict=True))  # fmt: skip
    return changed(base, {
        "node": name,
        "environ": environ,
        "nvidia.pci": tuple(PciGpu(bus_id=a, device_id="2335", pci_class="0302", driver="nvidia") for a in addresses),
        "nvidia.nodes.numbers": tuple(range(8)),
        "nvidia.proc_gpus": addresses,
        "nvidia.devices": gpus,
        "network.hostname": name,
        "network.gpudirect.num_gpus": 8,
        "system.limits.nproc": Limit(soft=2256062, hard=2256062),
        "system.shm": shm(560 * GIB),
        "system.places": tuple(changed(p, {"total_bytes": 252 * GIB, "free_bytes": 235 * GIB})
                               for p in base.system.value.places),
        "system.memory.total_bytes": 591424884736,
        "system.memory.available_bytes": 590071476224,
        "system.memory.commit_limit_bytes": 295712442368,
        "system.cgroup.memory_limit_bytes": absent("no control group limits memory.max"),
        "system.cgroup.memory_limit_at": "",
        "system.cpu": cpus(128, nodes=1, thp=base.system.value.cpu.thp),
        "system.devices.nodes": nodes + rdma_cm,
        "system.devices.hardware": hardware,
        "hub.cache.total_bytes": 252 * GIB,
        "hub.cache.free_bytes": 235 * GIB,
    })  # fmt: skip


@machine("a100-driver-535", "vllm-project/vllm/issues/4083", "sgl-project/sglang/issues/11395")
def a100(name: str) -> Facts:
    """Eight A100 with driver 535, in which somebody installed torch 2.11."""
    cpu = "AMD EPYC 7763 64-Core Processor"
    return gpu_server(
        name, "a100", 8, "535.54.03", 12020, python("2.11.0+cu130", libc="glibc 2.31"),
        platform=platform(os_name="Debian GNU/Linux 11 (bullseye)", os_id="debian", os_version="11",
                          kernel="5.16.0-0.bpo.4-amd64", libc_version="2.31", cpu_model=known(cpu)),
        nvidia=nvidia("a100", 8, "535.54.03", 12020, "proprietary"),
        system__cpu=cpus(256),
        system__kernel__release="5.16.0-0.bpo.4-amd64",
        network__gpudirect__module_flavour="proprietary",
        network__gpudirect__kernel="5.16.0-0.bpo.4-amd64",
    )  # fmt: skip


@machine("mi300x-rocm-mismatch", "vllm-project/vllm/issues/16474", "ray-project/ray/issues/52701",
         "vllm-project/vllm/issues/12572")  # fmt: skip
def mi300x(name: str) -> Facts:
    """Eight MI300X under ROCm 7.0 with a torch for ROCm 6.3, and two lists of visible devices that differ."""
    environ = {"HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    return amd_server(name, environ)


@machine("mi300x-healthy", "vllm-project/vllm/issues/16474")
def healthy_mi300x(name: str) -> Facts:
    """The same as it should be: ROCm of torch's version, nothing set."""
    return changed(amd_server(name, {}), {"rocm.rocm_version": "6.3.1"})


def amd_server(name: str, environ: dict[str, str]) -> Facts:
    addresses = bus_ids(8)
    gpus = tuple(
        AmdDevice(node=2 + index, gfx="gfx942", render_minor=128 + index, bus_id=at, device_id="74a1",
                  memory_total_bytes=known(206141652992), memory_used_bytes=known(297 * MIB),
                  compute_partition=known("SPX"), memory_partition=known("NPS1"), ras_uncorrected=known(0))
        for index, at in enumerate(addresses)
    )  # fmt: skip
    rocm = RocmFacts(
        rocm_version=known("7.0.2"), driver_version=known("6.10.5"), driver_loaded=True,
        pci=known(tuple(PciGpu(bus_id=at, device_id="74a1", pci_class="1200", driver="amdgpu") for at in addresses)),
        devices=known(gpus), kfd=known(AccelNode(path="/dev/kfd", usable=True)),
        render_nodes=known(tuple(AccelNode(path=f"/dev/dri/renderD{128 + n}", usable=True) for n in range(8))),
    )  # fmt: skip
    return server(
        name, python("2.7.0+rocm6.3", version="3.12.10"), environ,
        rocm=rocm,
        platform__kernel="5.15.0-128-generic",
        system__kernel__release="5.15.0-128-generic",
        system__cpu=cpus(192),
        system__devices=device_facts(8, maker="amd"),
        system__process__groups=(44, 109, 1000),
        system__toolchain__libcuda=(),
    )  # fmt: skip


@machine("gh200-torch-without-cuda", "vllm-project/vllm/issues/14636", "pytorch/pytorch.github.io/issues/1687",
         "vllm-project/vllm/issues/39361")  # fmt: skip
def gh200(name: str) -> Facts:
    """A Grace Hopper with PyPI's torch 2.9 for ARM, without CUDA; 64 KiB pages; the GPU's memory is a NUMA node."""
    kernel = "6.8.0-1022-nvidia-64k"
    nodes = (NumaNode(id=0, cpus=tuple(range(72)), total_bytes=480 * GIB), NumaNode(id=1, total_bytes=95 * GIB))
    return gpu_server(
        name, "gh200", 1, "550.120", 12040, python("2.9.1+cpu", version="3.12.8", machine="aarch64"),
        platform=platform(os_name="Ubuntu 22.04.4 LTS", kernel=kernel, machine="aarch64", sys_vendor=known("Quanta"),
                          product_name=known("GH200 server"), cpu_model=known("Neoverse-V2")),
        nvidia=nvidia("gh200", 1, "550.120", 12040, each={"numa_node": 1},
                      libraries=libraries("550.120", "/usr/lib/aarch64-linux-gnu")),
        network__gpudirect__kernel=kernel,
        system__kernel__release=kernel,
        system__cpu=CpuFacts(online=known(72), allowed=known(tuple(range(72))), numa_nodes=nodes,
                             numa_balancing=known(0), thp=known("madvise"), page_size_bytes=known(65536)),
        system__memory__total_bytes=575 * GIB,
        system__memory__available_bytes=560 * GIB,
        system__toolchain__libcuda=("/usr/lib/aarch64-linux-gnu/libcuda.so.1",),
    )  # fmt: skip


@machine("driver-upgraded-not-reloaded", "oddmario/NVIDIA-Ubuntu-Driver-Guide/issues/4",
         "lyulyul/shine-cluster/issues/30")  # fmt: skip
def not_reloaded(name: str) -> Facts:
    """Unattended upgrades put in driver 550.107.02 while the kernel still runs 550.90.07."""
    refused = missing(MissingKind.ERROR, "NVML: LIB_RM_VERSION_MISMATCH")
    return gpu_server(
        name, "a100", 4, "550.90.07", 12040, python("2.6.0+cu124"),
        platform=platform(os_name="Ubuntu 24.04.1 LTS", os_version="24.04", libc_version="2.39"),
        nvidia=nvidia("a100", 4, "550.90.07", 12040, "proprietary", source="", init_error="LIB_RM_VERSION_MISMATCH",
                      libraries=libraries("550.107.02"), devices=refused, cuda_driver=refused),
        network__gpudirect__module_flavour="proprietary",
        system__kernel__reboot_required=("linux-base", "nvidia-driver-550"),
    )  # fmt: skip


@machine("fabric-manager-down", "huggingface/huggingface_hub/issues/4128", "leptonai/gpud/pull/1151",
         "NVIDIA/gpu-driver-container/pull/909")  # fmt: skip
def no_fabric(name: str) -> Facts:
    """Eight H100 whose fabric manager does not run: NVML lists them, CUDA stops with error 802."""
    each = {"fabric": Fabric(state="in_progress")}
    return gpu_server(
        name, "h100", 8, "580.126.09", 13000, NEW,
        nvidia=nvidia("h100", 8, "580.126.09", 13000, each=each),
        system__cpu=cpus(224),
    )  # fmt: skip


@machine("leftover-debug-settings", "NVIDIA/nccl-tests/issues/117", "vllm-project/vllm/issues/13497")
def leftovers(name: str) -> Facts:
    """Four RTX 4090 with the settings of last month's hunt for a hang still in the profile."""
    environ = {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "ALL", "RAY_DEBUG": "legacy",
               "RAY_DEBUG_POST_MORTEM": "1", "CUDA_LAUNCH_BLOCKING": "1"}  # fmt: skip
    return gpu_server(
        name, "4090", 4, "535.183.01", 12020, python("2.5.1+cu121", version="3.10.12"), environ,
        platform__kernel="5.4.0-193-generic",
        platform__os_name="Ubuntu 20.04.6 LTS",
        platform__os_version="20.04",
        platform__libc_version="2.31",
        nvidia=nvidia("4090", 4, "535.183.01", 12020, "proprietary", each={"nvlinks": NOT_SUPPORTED}),
        network__gpudirect__module_flavour="proprietary",
        system__kernel__release="5.4.0-193-generic",
        system__memory__total_bytes=503 * GIB,
        system__memory__available_bytes=480 * GIB,
        system__shm=shm(251 * GIB),
    )  # fmt: skip


@machine("wsl2-laptop-4090", "vllm-project/vllm/issues/10116", "noonghunna/club-3090/issues/102")
def wsl(name: str) -> Facts:
    """A laptop with one RTX 4090 under Windows: the driver is Windows' own, behind /dev/dxg."""
    kernel = "5.15.153.1-microsoft-standard-WSL2"
    laptop = {"name": "NVIDIA GeForce RTX 4090 Laptop GPU", "memory_total_bytes": 16376 * MIB,
              "memory_used_bytes": 612 * MIB, "pcie_gen": 1, "power_limit_w": NOT_SUPPORTED,
              "power_default_w": NOT_SUPPORTED, "nvlinks": NOT_SUPPORTED, "processes": ()}  # fmt: skip
    eth0 = Interface(name="eth0", index=2, up=True, operstate="up", kind="ethernet", mtu=1500, ipv4="198.51.100.40",
                     speed_mbps=10_000, driver="hv_netvsc")  # fmt: skip
    base = gpu_server(
        name, "4090", 1, "560.94", 12060, python("2.4.0+cu121", version="3.12.7", libc="glibc 2.39"),
        {"WSL_DISTRO_NAME": "Ubuntu-24.04", "LD_LIBRARY_PATH": "/usr/lib/wsl/lib"},
        platform=PlatformFacts(os_name="Ubuntu 24.04.1 LTS", os_id="ubuntu", os_version="24.04", kernel=kernel,
                               machine="x86_64", libc="glibc", libc_version="2.39", virtualization="hyperv", wsl=True,
                               cpu_model=known("13th Gen Intel(R) Core(TM) i9-13980HX")),
        nvidia=nvidia("4090", 1, "560.94", 12060, each=laptop, pci=(), proc_gpus=absent("no /proc/driver/nvidia"),
                      kernel_module=absent("/proc/driver/nvidia/version: No such file or directory"),
                      libraries=tuple(changed(lib, {"version": ""}) for lib in libraries("", "/usr/lib/wsl/lib")),
                      xids=absent("the NVIDIA driver is not loaded")),
        network__interfaces=(LO, eth0),
        network__gpudirect=absent("no NVIDIA GPU with a loaded driver on this machine"),
        system__limits__nofile=Limit(soft=10240, hard=1048576),
        system__limits__memlock=Limit(soft=65536, hard=65536),
        system__limits__nproc=Limit(soft=127000, hard=127000),
        system__limits__core=Limit(soft=0),
        system__memory__total_bytes=31 * GIB,
        system__memory__available_bytes=26 * GIB,
        system__memory__swap_total_bytes=8 * GIB,
        system__memory__swap_free_bytes=8 * GIB,
        system__memory__max_map_count=262144,
        system__shm=shm(int(15.5 * GIB)),
        system__places=(*places(399 * GIB, 1006 * GIB)[:-1],
                        place("cwd", "/mnt/c/run", 120 * GIB, 930 * GIB, mount_point="/mnt/c", fs_type="9p",
                              network=True, free_inodes=absent("this file system does not count inodes"))),
        system__cpu=cpus(32, nodes=1),
        system__kernel__release=kernel,
        system__kernel__modules_present=absent("there is no /lib/modules"),
        system__toolchain__libcuda=("/usr/lib/wsl/lib/libcuda.so.1",),
        system__own_addresses=("198.51.100.40",),
    )  # fmt: skip
    return changed(base, {"nvidia.nodes.numbers": (), "nvidia.nodes.control": False, "nvidia.nodes.uvm": False,
                          "nvidia.nodes.can_create": False, "system.devices.nodes": (), "system.devices.hardware": (),
                          "system.devices.nvidia_driver": False})  # fmt: skip
