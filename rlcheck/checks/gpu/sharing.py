"""Who else uses the GPUs, and whether they can be used together: MIG, memory in use, compute mode, mixed models."""

from __future__ import annotations

from collections import Counter

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.gpu.devices import alive, in_container, is_datacenter, label, readings
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice
from rlcheck.text import GIB, gib, listed

_SMALL_BYTES = GIB
_SMALL_SHARE = 0.03
_RESERVED_GUESS_BYTES = GIB
_UNEQUAL = 0.02
_USUAL_COUNTS = (1, 2, 4, 6, 8, 10, 16)


@check("GPU028", "MIG is off", needs=("nvidia.devices",), playbook="gpu-partitioned",
       problem="MIG mode is on")  # fmt: skip
def mig_off(facts: Facts) -> Verdict:
    """Looks for GPUs that are cut into MIG slices.

    What it does:
        Reads the MIG mode of each GPU.

    Why it matters:
        A program sees a single slice, slices cannot talk to each other over NVLink or peer-to-peer, and NCCL refuses
        several of them: training on more than one GPU is not possible on slices.
    """
    found = readings(facts, lambda device: device.mig_enabled)
    bad = [device for device, on in found.items if on]
    if not bad:
        return found.fine("MIG is off")
    slices = sum(len(value_or(device.mig_uuids, ())) for device in bad)
    return warn(
        "MIG off",
        f"{slices} slices on {listed(label(device) for device in bad)}",
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].mig_enabled", True, "NVML") for d in bad[:16]),
        params={"index": str(bad[0].index)},
    )


def _in_use_bytes(device: NvidiaDevice, used: int) -> int:
    """What programs hold; older drivers count their own reserve as used."""
    return used if device.memory_reserved_bytes.value is not None else max(0, used - _RESERVED_GUESS_BYTES)


def _holders(device: NvidiaDevice) -> str:
    processes = value_or(device.processes, ())
    if not processes:
        return "by no process that can be seen from here"
    shown = (
        f"{p.name or 'a process'} (pid {p.pid}{', ' + gib(p.used_bytes.value) if p.used_bytes.value else ''})"
        for p in processes
    )
    return f"by {listed(shown)}"


@check("GPU029", "The GPUs' memory is free", needs=("nvidia.devices",), playbook="gpu-memory-in-use")
def memory_free(facts: Facts) -> Verdict:
    """Looks for memory that other programs hold, and names them.

    What it does:
        Compares the memory in use with the total; less than 1 GiB, or 3 %, is taken for driver contexts and desktops.
        Processes of other containers hold memory, too, but cannot be named.

    Why it matters:
        Rollout engines claim a share of the *total* memory, 90 % or so, and stop at once when others hold more than the
        rest. Left-over engine workers of a killed run are the usual holders.
    """
    found = readings(facts, lambda device: device.memory_used_bytes)
    busy: list[tuple[NvidiaDevice, int, int]] = []
    for device, used in found.items:
        total = value_or(device.memory_total_bytes, 0)
        held = _in_use_bytes(device, used)
        # On coherent platforms the page cache can live in GPU memory and goes when it is needed.
        if held > max(_SMALL_BYTES, int(_SMALL_SHARE * total)) and value_or(device.numa_node, -1) < 0:
            busy.append((device, held, total))
    if not busy:
        return found.fine("no other program holds GPU memory")
    # A process without a name is one of another container: its number means something else, or nothing, here.
    pids = [p.pid for device, _, _ in busy for p in value_or(device.processes, ()) if p.pid > 1 and p.name]
    return warn(
        "GPUs without other programs' memory",
        listed(f"{label(device)}: {gib(held)} of {gib(total)} in use" for device, held, total in busy),
        details=tuple(f"{label(device)}: held {_holders(device)}" for device, _, _ in busy[:16]),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].memory_used_bytes", n, "NVML") for d, n, _ in busy[:16]),
        params={"pid": str(pids[0]) if pids else "PID", "index": str(busy[0][0].index)},
    )


@check("GPU030", "All GPUs are of one model", needs=("nvidia.devices",), playbook="gpus-differ-across-nodes",
       problem="The GPUs are of different models or sizes")  # fmt: skip
def one_model(facts: Facts) -> Verdict:
    """Compares the GPUs' models and memory sizes.

    What it does:
        Groups the GPUs by name and by total memory (2 % of difference is allowed) and shows the minority.

    Why it matters:
        Sharded training gives every GPU the same share, so the smallest memory limits all and the slowest GPU sets the
        pace. Kernels chosen for one model may not run on the other.
    """
    found = readings(facts, lambda device: device.name)
    if len(found.items) < 2:
        return skip("there is only one GPU")
    names = Counter(name for _, name in found.items)
    sizes = [value_or(device.memory_total_bytes, 0) for device, _ in found.items]
    known = [size for size in sizes if size > 0]
    uneven = bool(known) and min(known) < (1 - _UNEQUAL) * max(known)
    if len(names) == 1 and not uneven:
        return found.fine(f"{len(found.items)} x {next(iter(names))}")
    common = names.most_common(1)[0][0]
    keep = [str(device.index) for device, name in found.items if name == common]
    shown = listed(f"{count} x {name}" for name, count in names.most_common())
    return warn(
        "GPUs of one model and memory size",
        shown if len(names) > 1 else f"{shown} with {gib(min(known))} to {gib(max(known))}",
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].name", name, "NVML") for d, name in found.items[:16]),
        params={"indices": ",".join(keep[:64])},
    )


@check("GPU031", "Several programs may use one GPU", needs=("nvidia.devices",), playbook="compute-mode-exclusive",
       problem="A GPU does not take several programs")  # fmt: skip
def compute_mode(facts: Facts) -> Verdict:
    """Reads the compute mode, which decides how many programs may open a GPU.

    What it does:
        Expects "default" on every GPU.

    Why it matters:
        An RL run puts the trainer and the rollout engine, two processes, on the same GPU. In exclusive mode the second
        one stops with "CUDA-capable device(s) is/are busy or unavailable"; in prohibited mode every one does.
    """
    found = readings(facts, lambda device: device.compute_mode)
    bad = [(device, mode) for device, mode in found.items if mode != "default"]
    if not bad:
        return found.fine("the compute mode is default")
    problem = fail if any(mode == "prohibited" for _, mode in bad) else warn
    return problem(
        "compute mode default",
        listed(f"{label(device)}: {mode}" for device, mode in bad),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].compute_mode", mode, "NVML") for d, mode in bad[:16]),
        params={"index": str(bad[0][0].index)},
    )


@check("GPU033", "No GPU is missing", needs=("nvidia.devices",), playbook="gpu-lost",
       problem="A GPU is missing")  # fmt: skip
def none_missing(facts: Facts) -> Verdict:
    """Compares the GPUs on the PCI bus with those that the driver started, and their number with the usual ones.

    What it does:
        Outside containers, looks for GPUs that are bound to the driver but not below /proc/driver/nvidia/gpus, and for
        a number of data-center GPUs that machines are not built with (3, 5, 7, …).

    Why it matters:
        A GPU that did not start is simply not listed, so nothing complains until a job that wants all GPUs of the
        machine waits forever or fails.
    """
    nvidia = need(facts.nvidia)
    devices = alive(facts)
    if in_container(facts) or value_or(facts.environ, {}).get("SLURM_JOB_ID"):
        return skip("only a part of the machine's GPUs may have been handed out here")
    started = value_or(nvidia.proc_gpus, ())
    lost = [gpu.bus_id for gpu in value_or(nvidia.pci, ()) if gpu.driver == "nvidia" and gpu.bus_id not in started]
    if lost and started:
        return fail(
            f"{len(lost) + len(started)} GPUs started by the driver",
            f"{len(started)}; not started: {listed(lost)}",
            evidence=(evidence("nvidia.proc_gpus", len(started), "/proc/driver/nvidia/gpus"),),
            params={"index": lost[0]},
        )
    count = len(devices)
    if count in _USUAL_COUNTS or not all(is_datacenter(device) for device in devices):
        return passed(f"{count} GPU(s), all started")
    return info(
        f"{count} data-center GPUs: machines usually have 1, 2, 4, 8 or 16, so one may be missing",
        evidence=(evidence("nvidia.devices", count, nvidia.source),),
    )
