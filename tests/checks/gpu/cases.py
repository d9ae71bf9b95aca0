"""For every GPU check a document on which it fires and one on which it stays quiet."""

from __future__ import annotations

from typing import Any

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import (
    AccelNode,
    AmdDevice,
    DeviceNodes,
    DriverLibrary,
    Fabric,
    GpuProcess,
    KernelModule,
    NvidiaDevice,
    NvidiaFacts,
    NvLinks,
    PciGpu,
    RemappedRows,
    RocmFacts,
    Xid,
)
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.python import Distribution, PythonFacts, TorchFacts

GIB = 1 << 30
DRIVER = "580.159.04"
NOT_SUPPORTED: Fact[Any] = missing(MissingKind.ABSENT, "this GPU does not have it (NVML: NOT_SUPPORTED)")


def h200(index: int = 0, **changes: Any) -> NvidiaDevice:
    """A healthy H200 of an eight-GPU machine; changes are values or facts."""
    values: dict[str, Any] = {
        "uuid": f"GPU-{index:08x}",
        "name": "NVIDIA H200",
        "bus_id": f"0000:00:{6 + index:02x}.0",
        "compute_capability": (9, 0),
        "memory_total_bytes": 150754820096,
        "memory_used_bytes": 0,
        "memory_reserved_bytes": 644939776,
        "processes": (),
        "ecc_enabled": True,
        "ecc_uncorrected": 0,
        "remapped_rows": RemappedRows(),
        "retired_pages_pending": NOT_SUPPORTED,
        "clock_events": 1,
        "pcie_gen": 5,
        "pcie_gen_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "nvlinks": NvLinks(num_active=18),
        "fabric": Fabric(state="completed"),
        "mig_enabled": False,
        "mig_uuids": (),
        "compute_mode": "default",
        "persistence": True,
        "recovery_action": 0,
        "temperature_c": 37,
        "power_w": 85.0,
        "power_limit_w": 700.0,
        "power_default_w": 700.0,
        "numa_node": NOT_SUPPORTED,
    }
    values.update(changes)
    error = values.pop("handle_error", "")
    facts = {name: value if isinstance(value, Fact) else known(value) for name, value in values.items()}
    return NvidiaDevice(index=index, handle_error=error, **facts)


def devices(count: int = 8, **changes: Any) -> tuple[NvidiaDevice, ...]:
    """`count` H200, the last of them changed."""
    return (*(h200(i) for i in range(count - 1)), h200(count - 1, **changes))


def nvidia(*gpus: NvidiaDevice, **changes: Any) -> NvidiaFacts:
    """The NVIDIA section of a healthy bare-metal machine with these GPUs."""
    addresses = tuple(gpu.bus_id.value or "" for gpu in gpus)
    values: dict[str, Any] = {
        "source": "nvml",
        "pci": known(tuple(pci(address) for address in addresses)),
        "nodes": DeviceNodes(numbers=tuple(range(len(gpus))), control=True, uvm=True, nvswitch=True),
        "kernel_module": known(KernelModule(version=DRIVER, flavour="open")),
        "proc_gpus": known(addresses),
        "libraries": (library("libcuda.so"), library("libnvidia-ml.so")),
        "driver_version": known(DRIVER),
        "cuda_driver": known(13000),
        "devices": known(gpus),
        "xids": known(()),
    }
    return NvidiaFacts(**{**values, **changes})


def pci(bus_id: str, driver: str = "nvidia", device_id: str = "2335", pci_class: str = "0302") -> PciGpu:
    return PciGpu(bus_id=bus_id, device_id=device_id, pci_class=pci_class, driver=driver)


def library(name: str, version: str = DRIVER, directory: str = "/usr/lib64", kind: str = "system") -> DriverLibrary:
    return DriverLibrary(name=name, version=version, directory=directory, kind=kind)


def torch(version: str = "2.11.0", cuda: str = "13.0", hip: str = "", **more: Any) -> PythonFacts:
    """An environment with this torch; `dists` are further distributions, `archs` torch's architectures."""
    dists = {"torch": version, **more.pop("dists", {})}
    archs = more.pop("archs", ("sm_80", "sm_90", "sm_100", "sm_120"))
    return PythonFacts(
        distributions=tuple(Distribution(name=n, version=v, location="/venv") for n, v in dists.items()),
        torch=known(TorchFacts(version=version, cuda=cuda, hip=hip, arch_list=archs)),
    )


def doc(
    section: NvidiaFacts | RocmFacts | None = None,
    python: PythonFacts | None = None,
    environ: dict[str, str] | None = None,
    container: str = "",
) -> Facts:
    """A document with what a GPU check looks at."""
    none: Fact[Any] = absent("not on this machine")
    return Facts(
        platform=known(PlatformFacts(container=container)),
        environ=known(environ or {}),
        python=known(python or PythonFacts(torch=absent("torch is not installed"))),
        nvidia=known(section) if isinstance(section, NvidiaFacts) else none,
        rocm=known(section) if isinstance(section, RocmFacts) else none,
    )


def gpus(count: int = 8, **changes: Any) -> Facts:
    """A machine with `count` H200, the last of them changed."""
    return doc(nvidia(*devices(count, **changes)), torch())


def env(variables: dict[str, str], *devs: NvidiaDevice, **more: Any) -> Facts:
    return doc(nvidia(*(devs or devices())), torch(), variables, **more)


def mi300x(node: int = 2, gfx: str = "gfx942", **changes: Any) -> AmdDevice:
    """A healthy MI300X; changes are values or facts."""
    values: dict[str, Any] = {
        "memory_total_bytes": 192 * GIB,
        "memory_used_bytes": 300 << 20,
        "compute_partition": "SPX",
        "memory_partition": "NPS1",
        "ras_uncorrected": 0,
    }
    values.update(changes)
    facts = {name: value if isinstance(value, Fact) else known(value) for name, value in values.items()}
    return AmdDevice(node=node, gfx=gfx, render_minor=126 + node, bus_id=f"0000:{node:02x}:00.0", **facts)


def rocm(*cards: AmdDevice, **changes: Any) -> RocmFacts:
    """The AMD section of a healthy machine; eight MI300X when none are given."""
    cards = cards or tuple(mi300x(node) for node in range(2, 10))
    values: dict[str, Any] = {
        "rocm_version": known("7.2.1"),
        "driver_version": known("6.16.13"),
        "driver_loaded": True,
        "pci": known(tuple(pci(card.bus_id, "amdgpu", "74a1", "1200") for card in cards)),
        "devices": known(cards),
        "kfd": known(AccelNode(path="/dev/kfd", usable=True)),
        "render_nodes": known((AccelNode(path="/dev/dri/renderD128", usable=True),)),
    }
    return RocmFacts(**{**values, **changes})


def hip(hip_version: str = "7.2.26015-fc0010cf6a", **more: Any) -> PythonFacts:
    """An environment with a ROCm torch."""
    more.setdefault("archs", ("gfx90a", "gfx942", "gfx950", "gfx1100"))
    return torch("2.12.0+rocm7.2", cuda="", hip=hip_version, **more)


def amd(environ: dict[str, str] | None = None, section: RocmFacts | None = None, **torch_more: Any) -> Facts:
    return doc(section or rocm(), hip(**torch_more), environ)


def with_ray(version: str) -> dict[str, Any]:
    return {"dists": {"ray": version}}


_HEALTHY = gpus()
_NO_DRIVER = NvidiaFacts(
    pci=known((pci("0000:01:00.0", driver=""),)),
    kernel_module=absent("no driver"),
    devices=absent("the NVIDIA driver is not loaded"),
    xids=absent("the NVIDIA driver is not loaded"),
)
_NO_NODES = NvidiaFacts(
    pci=known((pci("0000:01:00.0"),)),
    kernel_module=known(KernelModule(version=DRIVER, flavour="open")),
    driver_version=known(DRIVER),
    devices=absent("no GPU is handed to this container"),
)
_BUSY = {
    "memory_used_bytes": 70 * GIB,
    "processes": (GpuProcess(pid=4242, name="VLLM::EngineCore", used_bytes=known(70 * GIB)),),
}
_COMPAT = (library("libcuda.so", "590.44.01", "/usr/local/cuda/compat", "compat"), library("libcuda.so"))
_MI250 = rocm(mi300x(2, "gfx90a"), mi300x(3, "gfx90a"))
_CLUSTERED = {"fabric": Fabric(state="completed", cluster=True)}

CASES: dict[str, tuple[Facts, Facts]] = {
    "GPU001": (doc(_NO_DRIVER, torch()), _HEALTHY),
    "GPU002": (doc(_NO_NODES, torch(), container="docker"), _HEALTHY),
    "GPU003": (
        doc(
            nvidia(
                *devices(),
                source="",
                init_error="LIB_RM_VERSION_MISMATCH",
                libraries=(library("libnvidia-ml.so", "580.173.02"), library("libcuda.so", "580.173.02")),
            ),
            torch(),
        ),
        _HEALTHY,
    ),
    "GPU004": (doc(nvidia(source="", init_error="UNKNOWN"), torch()), _HEALTHY),
    "GPU005": (gpus(handle_error="GPU_IS_LOST"), _HEALTHY),
    "GPU006": (
        doc(nvidia(*devices(), libraries=(), cuda_driver=missing(MissingKind.ERROR, "NVML: LIBRARY_NOT_FOUND"))),
        _HEALTHY,
    ),
    "GPU007": (doc(nvidia(*devices(2, name="NVIDIA GeForce RTX 4090"), libraries=_COMPAT)), _HEALTHY),
    "GPU008": (
        doc(nvidia(*devices(), driver_version=known("570.86.10"), cuda_driver=known(12080)), torch()),
        doc(nvidia(*devices(), driver_version=known("570.86.10"), cuda_driver=known(12080)), torch("2.10.0", "12.8")),
    ),
    "GPU009": (doc(nvidia(h200(compute_capability=(7, 0), name="Tesla V100-SXM2-32GB")), torch()), _HEALTHY),
    "GPU010": (gpus(1, compute_capability=(7, 5), name="Tesla T4"), _HEALTHY),
    "GPU011": (env({"CUDA_VISIBLE_DEVICES": "0,1,8"}), env({"CUDA_VISIBLE_DEVICES": "0,7"})),
    "GPU012": (env({"CUDA_VISIBLE_DEVICES": ""}), _HEALTHY),
    "GPU013": (env({}, h200(0), h200(1, name="NVIDIA A100-SXM4-80GB")), _HEALTHY),
    "GPU014": (gpus(ecc_uncorrected=3), _HEALTHY),
    "GPU015": (gpus(ecc_enabled=False), _HEALTHY),
    "GPU016": (gpus(remapped_rows=RemappedRows(num_uncorrectable=1, pending=True)), _HEALTHY),
    "GPU017": (gpus(remapped_rows=RemappedRows(num_uncorrectable=8, failed=True)), _HEALTHY),
    "GPU018": (gpus(1, retired_pages_pending=True), gpus(1, retired_pages_pending=False)),
    "GPU019": (gpus(recovery_action=1), _HEALTHY),
    "GPU020": (
        doc(
            nvidia(
                *devices(recovery_action=1),
                xids=known((Xid(code=79, bus_id="0000:00:0d", last_age_s=known(60.0), text="fallen off"),)),
            )
        ),
        _HEALTHY,
    ),
    "GPU021": (gpus(clock_events=0x8 | 0x40, temperature_c=92), gpus(clock_events=0x4)),
    "GPU022": (gpus(power_limit_w=400.0), _HEALTHY),
    "GPU023": (gpus(pcie_width=8), _HEALTHY),
    "GPU024": (gpus(nvlinks=NvLinks(num_active=16, num_inactive=2)), _HEALTHY),
    "GPU025": (gpus(fabric=Fabric(state="in_progress")), _HEALTHY),
    "GPU026": (doc(nvidia(*(h200(i, nvlinks=NvLinks(num_inactive=18)) for i in range(2)))), _HEALTHY),
    "GPU027": (gpus(2, **_CLUSTERED), _HEALTHY),
    "GPU028": (gpus(mig_enabled=True, mig_uuids=("MIG-00000001", "MIG-00000002")), _HEALTHY),
    "GPU029": (gpus(**_BUSY), _HEALTHY),
    "GPU030": (gpus(name="NVIDIA H100 80GB HBM3", memory_total_bytes=80 * GIB), _HEALTHY),
    "GPU031": (gpus(compute_mode="exclusive_process"), _HEALTHY),
    "GPU032": (gpus(persistence=False), _HEALTHY),
    "GPU033": (
        doc(nvidia(*devices(7), pci=known(tuple(pci(f"0000:00:{6 + i:02x}.0") for i in range(8))))),
        _HEALTHY,
    ),
    "GPU034": (gpus(1, name="NVIDIA GH200 480GB", numa_node=1), _HEALTHY),
    "GPU035": (
        env({"NVIDIA_DRIVER_CAPABILITIES": "utility"}, container="docker"),
        env({"NVIDIA_DRIVER_CAPABILITIES": "compute,graphics,utility"}, container="docker"),
    ),
    "GPU036": (amd(section=rocm(driver_loaded=False)), amd()),
    "GPU037": (doc(rocm(), torch()), amd()),
    "GPU039": (
        amd(dists={"triton": "3.7.1", "triton-rocm": "3.7.1"}),
        amd(dists={"triton-rocm": "3.7.1"}),
    ),
    "GPU040": (amd(section=rocm(rocm_version=known("6.4.1"))), amd()),
    "GPU041": (amd(archs=("gfx90a", "gfx1100")), amd()),
    "GPU042": (amd(section=rocm(mi300x(2, "gfx950")), hip_version="6.4.43482-0f2d60242"), amd()),
    "GPU043": (
        amd({"CUDA_VISIBLE_DEVICES": "0,1"}, **with_ray("2.46.0")),
        amd({"CUDA_VISIBLE_DEVICES": "0,1"}, **with_ray("2.50.0")),
    ),
    "GPU044": (
        amd({"ROCR_VISIBLE_DEVICES": "0,1"}, **with_ray("2.60.0")),
        amd({"ROCR_VISIBLE_DEVICES": "0,1"}, **with_ray("2.44.1")),
    ),
    "GPU045": (amd({"HIP_VISIBLE_DEVICES": "7,8"}), amd({"HIP_VISIBLE_DEVICES": "6,7"})),
    "GPU046": (amd(hip_version="6.4.43482-0f2d60242"), amd()),
    "GPU047": (
        amd(section=_MI250, hip_version="7.14.1"),
        amd({"HSA_NO_SCRATCH_RECLAIM": "1"}, section=_MI250, hip_version="7.14.1"),
    ),
    "GPU048": (amd({"NCCL_MIN_NCHANNELS": "112"}), amd()),
    "GPU049": (amd({"HSA_OVERRIDE_GFX_VERSION": "9.4.2"}), amd()),
    "GPU050": (
        amd({"PYTORCH_TUNABLEOP_ENABLED": "1"}),
        amd({"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_TUNING": "0"}),
    ),
    "GPU051": (amd(section=rocm(mi300x(2, compute_partition="CPX", memory_partition="NPS4"))), amd()),
    "GPU038": (amd(section=rocm(mi300x(2, ras_uncorrected=2))), amd()),
    "GPU052": (amd(section=rocm(mi300x(2, memory_used_bytes=100 * GIB))), amd()),
}
OTHER_FIRES = {
    "GPU020": (
        doc(nvidia(*devices(), xids=known((Xid(code=48, bus_id="0000:00:0d", last_age_s=known(60.0), text="x"),)))),
    )
}
