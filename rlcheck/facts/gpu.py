"""GPUs of both makers: driver, libraries, every device and its health, as read from NVML, sysfs and the kernel log."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class PciGpu(Struct, frozen=True):
    """A display or compute device on the PCI bus, whether or not a driver knows it.

    `device_id` is the four hexadecimal digits of its PCI ID, `pci_class` the first four of its class ("0302" is a 3D
    controller, "1200" an accelerator); `driver` the kernel driver bound to it, or "".
    """

    bus_id: str
    device_id: str = ""
    pci_class: str = ""
    driver: str = ""


class KernelModule(Struct, frozen=True):
    """The NVIDIA kernel module that is loaded now. `flavour` is open, proprietary or ""."""

    version: str
    flavour: str = ""


class DriverLibrary(Struct, frozen=True):
    """A user-space driver library in a directory that the dynamic linker searches, in its order.

    `version` comes from the file name (`libcuda.so.580.65.06`), "" when the name carries none. `kind` is system, compat
    (NVIDIA's forward-compatibility package) or stub.
    """

    name: str
    directory: str
    version: str = ""
    kind: str = "system"


class GpuProcess(Struct, frozen=True):
    """A process that holds memory of a GPU. `name` is the base name of its program, "" when it cannot be seen."""

    pid: int
    name: str = ""
    used_bytes: Fact[int] = Fact()


class NvLinks(Struct, frozen=True):
    """The NVLink ports of one GPU: how many are up and down; both 0 on a GPU without NVLink."""

    num_active: int = 0
    num_inactive: int = 0


class Fabric(Struct, frozen=True):
    """What an NVSwitch GPU says of its fabric registration.

    `state` is not_supported, not_started, in_progress, completed or a number; `status` the NVML code of the
    registration, 0 for success. `cluster` says that the GPU belongs to a multi-node NVLink domain.
    """

    state: str
    status: int = 0
    cluster: bool = False


class RemappedRows(Struct, frozen=True):
    """Memory rows replaced by spare ones on Ampere and newer. `failed` means that there was no spare row left."""

    num_correctable: int = 0
    num_uncorrectable: int = 0
    pending: bool = False
    failed: bool = False


class NvidiaDevice(Struct, frozen=True):
    """One GPU that the driver shows. `handle_error` is NVML's name for why the driver will not talk about it, or "".

    `uuid` is cut to its first eight digits: enough to match a visible-devices list, not to identify the card.
    `clock_events` is the bit mask of why clocks are lowered; `recovery_action` is NVML's number, 0 for none.
    `numa_node` is -1 when the machine does not say. Every value that NVML refused is missing with NVML's error name.
    """

    index: int
    handle_error: str = ""
    uuid: Fact[str] = Fact()
    name: Fact[str] = Fact()
    bus_id: Fact[str] = Fact()
    compute_capability: Fact[tuple[int, int]] = Fact()
    memory_total_bytes: Fact[int] = Fact()
    memory_used_bytes: Fact[int] = Fact()
    memory_reserved_bytes: Fact[int] = Fact()
    processes: Fact[tuple[GpuProcess, ...]] = Fact()
    ecc_enabled: Fact[bool] = Fact()
    ecc_uncorrected: Fact[int] = Fact()
    remapped_rows: Fact[RemappedRows] = Fact()
    retired_pages_pending: Fact[bool] = Fact()
    clock_events: Fact[int] = Fact()
    pcie_gen: Fact[int] = Fact()
    pcie_gen_max: Fact[int] = Fact()
    pcie_width: Fact[int] = Fact()
    pcie_width_max: Fact[int] = Fact()
    nvlinks: Fact[NvLinks] = Fact()
    fabric: Fact[Fabric] = Fact()
    mig_enabled: Fact[bool] = Fact()
    mig_uuids: Fact[tuple[str, ...]] = Fact()
    compute_mode: Fact[str] = Fact()
    persistence: Fact[bool] = Fact()
    recovery_action: Fact[int] = Fact()
    temperature_c: Fact[int] = Fact()
    power_w: Fact[float] = Fact()
    power_limit_w: Fact[float] = Fact()
    power_default_w: Fact[float] = Fact()
    numa_node: Fact[int] = Fact()


class Xid(Struct, frozen=True):
    """One kind of error that the NVIDIA driver wrote to the kernel log since boot, for one GPU.

    `last_age_s` is how long ago the last one was; missing when the log has no usable time stamps.
    """

    code: int
    bus_id: str = ""
    count: int = 1
    last_age_s: Fact[float] = Fact()
    text: str = ""


class DeviceNodes(Struct, frozen=True):
    """What is in /dev for CUDA: the numbers N of /dev/nvidiaN and whether the shared nodes are there."""

    numbers: tuple[int, ...] = ()
    control: bool = False
    uvm: bool = False
    nvswitch: bool = False
    imex_channels: int = 0
    can_create: bool = False


class NvidiaFacts(Struct, frozen=True):
    """The NVIDIA side of the machine.

    `source` is nvml, nvidia-smi or "" when neither answered. `init_error` is NVML's name for why it would not start
    (`LIB_RM_VERSION_MISMATCH`, …), "" when it did. `cuda_driver` is the driver's CUDA as 1000 * major + 10 * minor.
    `proc_gpus` are the bus IDs below /proc/driver/nvidia/gpus; `libraries` in the linker's order.
    """

    source: str = ""
    init_error: str = ""
    pci: Fact[tuple[PciGpu, ...]] = Fact()
    nodes: DeviceNodes = DeviceNodes()
    kernel_module: Fact[KernelModule] = Fact()
    proc_gpus: Fact[tuple[str, ...]] = Fact()
    libraries: tuple[DriverLibrary, ...] = ()
    driver_version: Fact[str] = Fact()
    cuda_driver: Fact[int] = Fact()
    devices: Fact[tuple[NvidiaDevice, ...]] = Fact()
    xids: Fact[tuple[Xid, ...]] = Fact()


class AmdDevice(Struct, frozen=True):
    """One GPU of the amdgpu driver (one node of the KFD topology: half an MI250 counts as one).

    `gfx` is the target name ("gfx942"). The partition modes are upper case ("SPX", "NPS1"). `ras_uncorrected` is the
    sum of the uncorrectable errors of all blocks since the driver was loaded.
    """

    node: int
    gfx: str = ""
    render_minor: int = -1
    bus_id: str = ""
    device_id: str = ""
    memory_total_bytes: Fact[int] = Fact()
    memory_used_bytes: Fact[int] = Fact()
    compute_partition: Fact[str] = Fact()
    memory_partition: Fact[str] = Fact()
    ras_uncorrected: Fact[int] = Fact()


class AccelNode(Struct, frozen=True):
    """A device node that ROCm opens, and whether this process may read and write it."""

    path: str
    usable: bool = False


class RocmFacts(Struct, frozen=True):
    """The AMD side of the machine.

    `rocm_version` is that of /opt/rocm (`7.2.4`); absent with ROCm from wheels. `driver_version` is the amdgpu kernel
    module's, absent with the one of the kernel itself. `pci` are all AMD GPUs on the bus, display adapters too.
    """

    rocm_version: Fact[str] = Fact()
    driver_version: Fact[str] = Fact()
    driver_loaded: bool = False
    pci: Fact[tuple[PciGpu, ...]] = Fact()
    devices: Fact[tuple[AmdDevice, ...]] = Fact()
    kfd: Fact[AccelNode] = Fact()
    render_nodes: Fact[tuple[AccelNode, ...]] = Fact()
