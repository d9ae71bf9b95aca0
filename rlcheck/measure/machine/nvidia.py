"""NVIDIA GPUs and driver: sysfs and /proc first, then NVML in a child process, then nvidia-smi."""

from __future__ import annotations

import re
import sys
from typing import Any

from rlcheck.facts.base import Fact, Missing, MissingKind, absent, known, missing
from rlcheck.facts.gpu import DeviceNodes, DriverLibrary, KernelModule, NvidiaFacts, Xid
from rlcheck.measure.machine import nvidia_smi
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.gpu_pci import NVIDIA, pci_gpus
from rlcheck.measure.machine.nvidia_devices import bus_id, read_devices, read_init, refused

_NVML_TIMEOUT_S = 5.0
_PROC = "/proc/driver/nvidia"
_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
_CACHED = re.compile(r"(/[^\0]{1,400}/)(libcuda|libnvidia-ml)\.so\.1\0")
_USUAL_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib",
)
_MODULE_VERSION = re.compile(r"\b(\d{3,4}\.\d+(?:\.\d+)*)\b")
_XID = re.compile(r"^(?:\[\s*(\d+\.\d+)\]\s*)?.{0,80}?NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), ?(.{0,160})")
_ASK_SMI = ("NO_BINDINGS", "LIBRARY_NOT_FOUND", "CRASHED")


def collect(ctx: ProbeContext) -> NvidiaFacts | Fact[Any]:
    """Everything about the NVIDIA side; absent, without starting a process, on a machine that has none."""
    nodes = _nodes(ctx)
    module = _kernel_module(ctx)
    pci = pci_gpus(ctx, NVIDIA)
    driver_seen = bool(nodes.numbers) or nodes.control or ctx.exists(_PROC) or ctx.exists("/dev/dxg")
    if not driver_seen and not pci.value:
        return absent("there is no NVIDIA GPU in this machine")
    found = NvidiaFacts(
        pci=pci,
        nodes=nodes,
        kernel_module=module,
        proc_gpus=_proc_gpus(ctx),
        libraries=_libraries(ctx),
        xids=_xids(ctx) if module.value else absent("the NVIDIA driver is not loaded"),
    )
    if not driver_seen:
        nothing = absent("the NVIDIA driver is not loaded")
        return _with(found, driver_version=nothing, cuda_driver=nothing, devices=nothing)
    if module.value and not nodes.numbers and not nodes.control:
        nothing = absent("the driver is loaded on the host, but no GPU is handed to this container")
        return _with(found, driver_version=known(module.value.version), cuda_driver=nothing, devices=nothing)
    return _ask(ctx, found)


def _with(found: NvidiaFacts, **changes: Any) -> NvidiaFacts:
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    return NvidiaFacts(**{**fields, **changes})


def _ask(ctx: ProbeContext, found: NvidiaFacts) -> NvidiaFacts:
    """Add what NVML says, or nvidia-smi when NVML cannot be used from Python."""
    started = ctx.now()
    lines = ctx.child("nvml_child.py", {"sys_path": sys.path}, timeout_s=_NVML_TIMEOUT_S)
    stuck = ctx.now() - started > _NVML_TIMEOUT_S - 0.5
    init = read_init(lines)
    error = ("TIMEOUT" if stuck else "CRASHED") if init is None else init.error
    version = known(found.kernel_module.value.version) if found.kernel_module.value else found.kernel_module
    if init is None or error:
        if error in _ASK_SMI:
            answer = nvidia_smi.query(ctx)
            if answer.value is not None:
                driver, devices = answer.value
                no_number = missing(MissingKind.UNSUPPORTED, "nvidia-smi does not give the driver's CUDA as a number")
                return _with(found, source="nvidia-smi", driver_version=known(driver), cuda_driver=no_number,
                             devices=known(devices))  # fmt: skip
        return _with(found, init_error=error, driver_version=version, cuda_driver=refused(error),
                     devices=refused(error))  # fmt: skip
    silent = (
        f"NVML did not answer within {_NVML_TIMEOUT_S:g} s" if stuck else "the NVML process died before it answered"
    )
    shown = read_devices(lines, max(0, min(init.count, 128)), silent)
    return _with(
        found,
        source="nvml",
        driver_version=known(init.driver_version) if init.driver_version else version,
        cuda_driver=refused(init.cuda_driver_error) if init.cuda_driver_error else known(init.cuda_driver),
        devices=refused(init.count_error) if init.count_error else known(shown),
    )


def _nodes(ctx: ProbeContext) -> DeviceNodes:
    names = ctx.list_dir("/dev").value or []
    ours = [name for name in names if name.startswith("nvidia")]
    if not ours:
        return DeviceNodes()
    channels = ctx.list_dir("/dev/nvidia-caps-imex-channels").value or []
    return DeviceNodes(
        numbers=tuple(sorted(int(name[6:]) for name in ours if name[6:].isdecimal() and len(name) < 12)),
        control="nvidiactl" in ours,
        uvm="nvidia-uvm" in ours,
        nvswitch=any(name.startswith("nvidia-nvswitch") for name in ours),
        imex_channels=len(channels),
        can_create=ctx.exists("/usr/bin/nvidia-modprobe"),
    )


def _kernel_module(ctx: ProbeContext) -> Fact[KernelModule]:
    text = ctx.read_text(f"{_PROC}/version", limit=4096)
    if text.value is None:
        return Fact(missing=text.missing)
    line = next((line for line in text.value.splitlines() if "NVRM" in line), "")
    match = _MODULE_VERSION.search(line)
    if match is None:
        return missing(MissingKind.ERROR, f"{_PROC}/version has no version in it")
    flavour = "open" if "Open Kernel Module" in line else "proprietary"
    return known(KernelModule(version=match.group(1), flavour=flavour))


def _proc_gpus(ctx: ProbeContext) -> Fact[tuple[str, ...]]:
    names = ctx.list_dir(f"{_PROC}/gpus")
    return Fact(missing=names.missing) if names.value is None else known(tuple(bus_id(name) for name in names.value))


def _libraries(ctx: ProbeContext) -> tuple[DriverLibrary, ...]:
    """libcuda and libnvidia-ml as the dynamic linker would find them: LD_LIBRARY_PATH, its cache, usual places."""
    cache = ctx.read_text("/etc/ld.so.cache").value or ""
    cached = [directory.rstrip("/") for directory, _ in _CACHED.findall(cache)]
    if any("64" in directory for directory in cached):
        # A 32-bit copy for games is listed beside the 64-bit one.
        cached = [d for d in cached if d not in ("/lib", "/usr/lib", "/usr/lib32") and "i386" not in d]
    searched = [d.rstrip("/") for d in ctx.environ.get("LD_LIBRARY_PATH", "").split(":") if d.startswith("/")]
    directories = dict.fromkeys([*searched, *cached, *_USUAL_DIRECTORIES])
    found = (_library(ctx, directory, name) for directory in list(directories)[:64] for name in _LIBRARIES)
    return tuple(library for library in found if library is not None)


def _library(ctx: ProbeContext, directory: str, name: str) -> DriverLibrary | None:
    path = f"{directory}/{name}.1"
    if not ctx.exists(path):
        return None
    version = _version_of(ctx.read_link(path).value or "", name)
    if not version:
        # Not a link: the numbered file is beside it.
        files = ctx.list_dir(directory).value or []
        versions = [found for file in files if (found := _version_of(file, name))]
        version = versions[0] if len(versions) == 1 else ""
    compat = re.search(r"[/-]compat(/|$)", directory)
    kind = "compat" if compat else "stub" if directory.endswith("/stubs") else "system"
    return DriverLibrary(name=name, directory=directory, version=version, kind=kind)


def _version_of(file: str, name: str) -> str:
    match = re.search(rf"{re.escape(name)}\.(\d{{3,4}}\.\d+(?:\.\d+)*)$", file)
    return match.group(1) if match else ""


def _xids(ctx: ProbeContext) -> Fact[tuple[Xid, ...]]:
    """The Xid errors in the kernel's log, one entry a kind and GPU, with how often and how long ago."""
    result = ctx.run(["dmesg"], timeout_s=2.0)
    if result.value is None:
        reason = result.missing or Missing(kind=MissingKind.ERROR, reason="dmesg did not run")
        # A machine without dmesg may well have Xid errors: not to be able to look is not the same as none.
        kind = MissingKind.UNSUPPORTED if reason.kind is MissingKind.ABSENT else reason.kind
        return missing(kind, f"the kernel log cannot be read: {reason.reason}")
    if result.value.returncode != 0 and not result.value.stdout.strip():
        return missing(MissingKind.PERMISSION, "the kernel log cannot be read without more rights (dmesg)")
    uptime = _uptime_s(ctx)
    found: dict[tuple[int, str], Xid] = {}
    for line in result.value.stdout.splitlines():
        match = _XID.match(line) if "NVRM: Xid" in line else None
        if match is None:
            continue
        stamp, bus, code, text = match.groups()
        key = (int(code[:6]), bus_id(bus))
        age: Fact[float] = missing(MissingKind.UNSUPPORTED, "the kernel log has no usable time stamps")
        if stamp and uptime is not None:
            age = known(round(max(0.0, uptime - float(stamp)), 1))
        count = found[key].count + 1 if key in found else 1
        found[key] = Xid(code=key[0], bus_id=key[1], count=count, last_age_s=age, text=text.strip())
    return known(tuple(found[key] for key in sorted(found)[:200]))


def _uptime_s(ctx: ProbeContext) -> float | None:
    try:
        return float((ctx.read_text("/proc/uptime", limit=64).value or "").split()[0])
    except (ValueError, IndexError):
        return None
