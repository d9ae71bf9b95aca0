"""The NVIDIA driver: loaded, handed to this container, of one version, and answering."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.gpu.devices import OTHER_OWNERS, environ, has_word, in_container, numbers, torch_kind
from rlcheck.checks.gpu.tables import tables
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import DriverLibrary, NvidiaFacts
from rlcheck.text import listed


def _grave(facts: Facts) -> bool:
    """Whether a run from this environment needs the GPU: its torch is a CUDA build."""
    return torch_kind(facts) == "cuda"


@check("GPU001", "The NVIDIA driver is loaded", needs=("nvidia.pci",), playbook="nvidia-driver-not-loaded")
def driver_loaded(facts: Facts) -> Verdict:
    """Looks for the NVIDIA kernel driver when there is an NVIDIA GPU on the PCI bus.

    What it does:
        Compares the GPUs on the PCI bus with the driver bound to each, and with /proc/driver/nvidia. Cards given to a
        virtual machine (vfio-pci) are left out.

    Why it matters:
        Without the kernel driver no program can use the GPU, however complete CUDA and torch are. A kernel upgrade, a
        failed DKMS build, Secure Boot or the nouveau driver are the usual reasons.
    """
    nvidia = need(facts.nvidia)
    gpus = [gpu for gpu in need(nvidia.pci) if gpu.driver not in OTHER_OWNERS]
    if not gpus:
        return skip("no NVIDIA GPU on the PCI bus is meant for this system")
    if nvidia.kernel_module.value is not None or nvidia.nodes.numbers or any(gpu.driver == "nvidia" for gpu in gpus):
        version = nvidia.kernel_module.value.version if nvidia.kernel_module.value else "of unknown version"
        return passed(f"driver {version} is loaded for {len(gpus)} GPU(s)")
    others = sorted({gpu.driver for gpu in gpus if gpu.driver})
    problem = fail if _grave(facts) else warn
    return problem(
        "the NVIDIA kernel driver to be loaded",
        f"{len(gpus)} NVIDIA GPU(s) on the PCI bus and no NVIDIA driver"
        + (f" (bound to {', '.join(others)})" if others else ""),
        details=tuple(f"{gpu.bus_id}: PCI ID 10de:{gpu.device_id}, driver {gpu.driver or 'none'}" for gpu in gpus[:16]),
        evidence=(evidence("nvidia.pci", len(gpus), "/sys/bus/pci/devices"),),
    )


@check("GPU002", "The GPU device nodes exist", needs=("nvidia",), playbook="gpu-device-nodes",
       problem="The GPU device nodes are missing")  # fmt: skip
def device_nodes(facts: Facts) -> Verdict:
    """Looks for the device nodes in /dev that CUDA opens, when the driver is loaded.

    What it does:
        Looks for /dev/nvidia0 and its siblings, /dev/nvidiactl and /dev/nvidia-uvm.

    Why it matters:
        A container that was started without its GPUs sees the host's driver in /proc but has no device to open, and
        torch then reports that no CUDA GPU is available.
    """
    nvidia = need(facts.nvidia)
    nodes = nvidia.nodes
    if nvidia.kernel_module.value is None and not nodes.numbers:
        return skip("the NVIDIA driver is not loaded")
    asked = value_or(facts.environ, {}).get("NVIDIA_VISIBLE_DEVICES")
    details = () if asked is None else (f"NVIDIA_VISIBLE_DEVICES is {asked[:80]!r}",)
    # void and none are how a container says that it was meant to have no GPU: a head or data-loading pod.
    problem = fail if _grave(facts) and asked not in ("void", "none") else warn
    seen = evidence("nvidia.nodes.numbers", len(nodes.numbers), "/dev")
    if not nodes.numbers or not nodes.control:
        found = "no GPU device node" if not nodes.numbers else "no /dev/nvidiactl"
        return problem("/dev/nvidia0, … and /dev/nvidiactl", found, details=details, evidence=(seen,))
    if nodes.uvm or (nodes.can_create and not in_container(facts)):
        return passed(f"{len(nodes.numbers)} GPU device node(s) and the control nodes are there")
    problem = fail if _grave(facts) and in_container(facts) else warn
    return problem("/dev/nvidia-uvm, which CUDA needs", "no such node", details=details, evidence=(seen,))


@check(
    "GPU003",
    "Kernel driver and driver libraries are of one version",
    needs=("nvidia.kernel_module",),
    playbook="driver-library-version-mismatch",
)
def one_driver_version(facts: Facts) -> Verdict:
    """Compares the loaded kernel module's version with that of libnvidia-ml and libcuda.

    What it does:
        Reads the module's version from /proc/driver/nvidia/version and the libraries' versions from their file names,
        in the order in which the dynamic linker finds them. NVIDIA's forward-compatibility libraries are left out.

    Why it matters:
        After a driver upgrade without a reboot, or in an image that brings its own driver libraries, CUDA refuses to
        start (error 803) and nvidia-smi prints "Driver/library version mismatch".
    """
    nvidia = need(facts.nvidia)
    module = need(nvidia.kernel_module).version
    wrong: list[DriverLibrary] = []
    certain = nvidia.init_error == "LIB_RM_VERSION_MISMATCH"
    for name in ("libnvidia-ml.so", "libcuda.so"):
        found = [lib for lib in nvidia.libraries if lib.name == name and lib.kind == "system" and lib.version]
        working_nvml = name == "libnvidia-ml.so" and nvidia.source == "nvml"
        if found and found[0].version != module and not working_nvml:
            wrong.append(found[0])
            certain = certain or all(lib.version != module for lib in found)
    if not wrong:
        if not any(lib.version for lib in nvidia.libraries):
            return skip("no driver library with a version in its name was found")
        return passed(f"kernel module and libraries are {module}")
    problem = fail if certain else warn
    return problem(
        f"driver libraries of the kernel module's version {module}",
        listed(f"{lib.name} {lib.version} in {lib.directory}" for lib in wrong),
        evidence=tuple(evidence("nvidia.libraries", f"{lib.name}.{lib.version}", lib.directory) for lib in wrong),
        params={"module": module, "library": wrong[0].version},
    )


_SOFT_ERRORS = ("TIMEOUT", "CRASHED", "NO_PERMISSION", "LIBRARY_NOT_FOUND")


@check(
    "GPU004",
    "NVML starts",
    needs=("nvidia",),
    playbook="nvml-does-not-start",
    caused_by=("GPU001", "GPU002", "GPU003", "GPU035", "SYS033"),
)
def nvml_starts(facts: Facts) -> Verdict:
    """Starts NVML, the driver's own interface for its state, as nvidia-smi, NCCL and vLLM do.

    What it does:
        Calls nvmlInit in a process of its own and names the error if it fails.

    Why it matters:
        NCCL and the rollout engines ask NVML about the GPUs when they start, so an NVML that fails stops them. Its
        error is also the clearest statement of what is wrong with the driver.
    """
    nvidia = need(facts.nvidia)
    error = nvidia.init_error
    if not error:
        if not nvidia.source:
            return skip("the NVIDIA driver is not there to be asked")
        return passed(f"{nvidia.source} answers")
    if error == "NO_BINDINGS":
        return unknown("nvidia-ml-py cannot be imported and nvidia-smi did not answer either")
    problem = warn if error in _SOFT_ERRORS else fail
    return problem(
        "NVML to start",
        f"NVML error {error}: {tables().nvml_errors.get(error, 'see NVIDIA’s list of NVML errors')}",
        evidence=(evidence("nvidia.init_error", error, "nvmlInit"),),
    )


@check("GPU005", "Every GPU answers", needs=("nvidia.devices",), playbook="gpu-lost", caused_by=("GPU004", "SYS033"),
       problem="A GPU does not answer")  # fmt: skip
def every_gpu_answers(facts: Facts) -> Verdict:
    """Asks the driver for a handle of every GPU that it counts.

    What it does:
        Calls nvmlDeviceGetHandleByIndex for each GPU and names the error of those that refuse. GPUs that this user may
        not open beside others that answer are taken for GPUs of other jobs.

    Why it matters:
        A GPU that is lost or waits for a reset cannot be used, and a job that counts on it stops when it starts. Its
        neighbours often go on working, so that it is easily overlooked.
    """
    devices = need(need(facts.nvidia).devices)
    silent = [device for device in devices if device.handle_error]
    if not devices:
        return skip("the driver counts no GPU here")
    if not silent:
        return passed(f"all {len(devices)} GPU(s) answer")
    errors = sorted({device.handle_error for device in silent})
    if errors == ["NO_PERMISSION"] and len(silent) < len(devices):
        return info(f"{len(devices) - len(silent)} GPU(s) answer; {len(silent)} more are not open to this user")
    problem = warn if set(errors) <= {"NO_ANSWER", "NO_PERMISSION"} else fail
    return problem(
        f"{len(devices)} GPU(s) that answer",
        listed(f"GPU {device.index}: {device.handle_error}" for device in silent),
        details=tuple(f"{error}: {tables().nvml_errors.get(error, 'no explanation known')}" for error in errors),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}]", d.handle_error, "NVML") for d in silent[:16]),
        params={"index": str(silent[0].index)},
    )


def _first_libcuda(nvidia: NvidiaFacts) -> DriverLibrary | None:
    return next((library for library in nvidia.libraries if library.name == "libcuda.so"), None)


@check("GPU006", "libcuda is found", needs=("nvidia.devices",), playbook="libcuda-not-found", caused_by=("GPU035",))
def libcuda_found(facts: Facts) -> Verdict:
    """Looks for libcuda.so.1, the driver's CUDA library, where the dynamic linker looks.

    What it does:
        Takes NVML's word when it read the driver's CUDA version; else searches LD_LIBRARY_PATH, the linker's cache and
        the usual directories. A stub, which is only for linking, does not count.

    Why it matters:
        torch and Triton load libcuda.so.1 from the driver; no wheel brings it. A container without the `compute`
        driver capability has nvidia-smi but not this library.
    """
    nvidia = need(facts.nvidia)
    if not need(nvidia.devices):
        return skip("the driver counts no GPU here")
    library = _first_libcuda(nvidia)
    if library is not None and library.kind == "stub":
        return fail(
            "the driver's own libcuda.so.1",
            f"the stub in {library.directory} comes first",
            evidence=(evidence("nvidia.libraries", library.directory, "LD_LIBRARY_PATH"),),
            params={"directory": library.directory},
        )
    if nvidia.cuda_driver.value is not None or library is not None:
        return passed(f"libcuda.so.1 is in {library.directory}" if library else "the driver found libcuda.so.1")
    refused = nvidia.cuda_driver.missing
    certain = refused is not None and "LIBRARY_NOT_FOUND" in refused.reason
    capabilities = value_or(facts.environ, {}).get("NVIDIA_DRIVER_CAPABILITIES", "")
    return (fail if certain else warn)(
        "libcuda.so.1 where the dynamic linker looks",
        "none",
        details=(f"NVIDIA_DRIVER_CAPABILITIES is {capabilities[:80]!r}",) if capabilities else (),
        evidence=(evidence("nvidia.libraries", "none", "ld.so.cache, LD_LIBRARY_PATH"),),
        params={"directory": "/usr/local/cuda/lib64/stubs"},
    )


@check(
    "GPU007", "A forward-compatibility libcuda fits", needs=("nvidia.kernel_module",), playbook="cuda-compat-misused"
)
def compat_fits(facts: Facts) -> Verdict:
    """Judges NVIDIA's forward-compatibility libcuda when it is the one that programs will load.

    What it does:
        When the first libcuda is from a `compat` directory, compares its version with the kernel driver's and looks
        whether the GPUs are consumer models. Of professional RTX cards some are served, so these are only told.

    Why it matters:
        The compatibility library serves data-center GPUs (and a few server RTX cards) with an older driver: on GeForce
        cards CUDA stops with error 804, and beside a newer driver it takes CUDA a step back.
    """
    nvidia = need(facts.nvidia)
    module = need(nvidia.kernel_module).version
    library = _first_libcuda(nvidia)
    if library is None or library.kind != "compat":
        return skip("programs load the driver's own libcuda")
    params = {"directory": library.directory}
    seen = (evidence("nvidia.libraries", f"{library.directory}/libcuda.so.{library.version}", "LD_LIBRARY_PATH"),)
    consumer = [d for d in value_or(nvidia.devices, ()) if has_word(d.name.value or "", ("GeForce", "TITAN"))]
    if consumer:
        found = f"{listed(sorted({d.name.value or '' for d in consumer}))} with {library.directory}/libcuda.so.1"
        return fail("forward compatibility only on data-center GPUs", found, evidence=seen, params=params)
    if library.version and numbers(library.version)[:1] < numbers(module)[:1]:
        found = f"version {library.version} beside driver {module}"
        return warn("a compatibility libcuda newer than the driver", found, evidence=seen, params=params)
    shown = library.version or "of unknown version"
    return info(f"programs use the forward-compatibility libcuda {shown} with driver {module}", evidence=seen)


@check("GPU035", "The driver gives this container compute", needs=("environ", "nvidia"), playbook="libcuda-not-found",
       problem="The driver gives this container no compute")  # fmt: skip
def driver_capabilities(facts: Facts) -> Verdict:
    """Reads NVIDIA_DRIVER_CAPABILITIES, which decides what the container runtime mounts from the host's driver.

    What it does:
        In a container, looks for `compute` (CUDA) and `utility` (NVML, nvidia-smi) in the variable, or `all`.

    Why it matters:
        Without `compute` the container has no libcuda and CUDA does not start; without `utility` there is no NVML,
        which NCCL and vLLM ask for the topology.
    """
    text = environ(facts).get("NVIDIA_DRIVER_CAPABILITIES", "").strip()
    if not text or not in_container(facts):
        return skip("NVIDIA_DRIVER_CAPABILITIES is not set for a container")
    given = {part.strip() for part in text.split(",")}
    lacking = [] if "all" in given else sorted({"compute", "utility"} - given)
    if not lacking:
        return passed("the container has the driver's compute and utility parts")
    return warn(
        "compute and utility (or all) in NVIDIA_DRIVER_CAPABILITIES",
        f"{text[:80]!r}, without {' and '.join(lacking)}",
        evidence=(evidence("environ.NVIDIA_DRIVER_CAPABILITIES", text[:80], "environment"),),
        params={"directory": "/usr/local/cuda/lib64/stubs"},
    )
