"""The GPUs' memory and hardware health, as the driver reports it."""

from __future__ import annotations

import math

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.gpu.devices import is_datacenter, label, not_there, readings
from rlcheck.checks.gpu.tables import tables
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice, Xid
from rlcheck.text import listed

_RECENT_S = 2 * 3600


@check("GPU014", "No GPU has uncorrectable memory errors", needs=("nvidia.devices",), playbook="gpu-memory-errors",
       caused_by=("GPU017", "GPU019"),
       problem="A GPU has an uncorrectable memory (ECC) error")  # fmt: skip
def ecc_uncorrected(facts: Facts) -> Verdict:
    """Reads the number of ECC errors that could not be corrected since the driver was loaded.

    What it does:
        Reads NVML's volatile count of uncorrected errors of each GPU, and the recovery action where the driver has one.

    Why it matters:
        The program that touched the bad memory was killed, or got wrong data on older GPUs. Such errors come again on
        the same GPU, and a run over many GPUs meets them sooner.
    """
    found = readings(facts, lambda device: device.ecc_uncorrected)
    bad = [(device, count) for device, count in found.items if count > 0]
    if not bad:
        return found.fine("no uncorrected ECC error since the driver was loaded")
    # An error that the driver has contained leaves the GPU usable; where it has not, it asks for an action.
    wanted = any(value_or(device.recovery_action, 0) != 0 for device, _ in bad)
    return (fail if wanted else warn)(
        "0 uncorrected ECC errors since the driver was loaded",
        listed(f"{label(device)}: {count}" for device, count in bad),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].ecc_uncorrected", n, "NVML") for d, n in bad[:16]),
        params={"index": str(bad[0][0].index)},
    )


@check("GPU015", "ECC is on", needs=("nvidia.devices",), playbook="ecc-off")
def ecc_on(facts: Facts) -> Verdict:
    """Looks whether data-center GPUs have their memory protection switched on.

    What it does:
        Reads the ECC mode of GPUs whose name is that of a data-center model; other cards often have none.

    Why it matters:
        Without ECC a flipped bit in the weights or the optimizer state is not noticed: no error is raised, and the
        model is quietly wrong from there on.
    """
    found = readings(facts, lambda device: device.ecc_enabled)
    judged = [(device, on) for device, on in found.items if is_datacenter(device)]
    if not judged:
        return skip("there is no data-center GPU with an ECC mode")
    off = [device for device, on in judged if not on]
    if not off:
        return found.fine(f"ECC is on on {len(judged)} GPU(s)")
    return warn(
        "ECC on",
        f"off on {listed(label(device) for device in off)}",
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].ecc_enabled", False, "NVML") for d in off[:16]),
        params={"index": str(off[0].index)},
    )


@check("GPU016", "No memory row waits to be remapped", needs=("nvidia.devices",), playbook="gpu-recovery-action",
       problem="The GPU waits for a reset to replace bad memory")  # fmt: skip
def remap_pending(facts: Facts) -> Verdict:
    """Looks for memory rows that the GPU will replace at its next reset.

    What it does:
        Reads the row-remapper's pending flag (Ampere and newer).

    Why it matters:
        A GPU with a bad memory row works correctly until its next reset, because the driver keeps programs off the row,
        but a second fault in its neighbourhood is more likely. The reset belongs before a long run, not into it.
    """
    found = readings(facts, lambda device: device.remapped_rows)
    bad = [device for device, rows in found.items if rows.pending]
    if not bad:
        return found.fine("no row remapping is pending")
    return warn(
        "no pending row remapping",
        f"pending on {listed(label(device) for device in bad)}",
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].remapped_rows", "pending", "NVML") for d in bad[:16]),
        params={"index": str(bad[0].index)},
    )


@check("GPU017", "Memory rows could be remapped", needs=("nvidia.devices",), playbook="gpu-memory-errors",
       problem="A bad memory row could not be replaced")  # fmt: skip
def remap_failed(facts: Facts) -> Verdict:
    """Looks for GPUs that have no spare memory row left where one was needed.

    What it does:
        Reads the row-remapper's failure flag (Ampere and newer).

    Why it matters:
        A bad memory row without a spare stays in use after every reset, and its errors go on killing programs. NVIDIA
        takes this flag as the reason to exchange the card.
    """
    found = readings(facts, lambda device: device.remapped_rows)
    bad = [(device, rows) for device, rows in found.items if rows.failed]
    if not bad:
        return found.fine("no row remapping has failed")
    return fail(
        "every bad memory row replaced by a spare one",
        listed(f"{label(device)}: failed ({rows.num_uncorrectable} rows remapped before)" for device, rows in bad),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].remapped_rows", "failed", "NVML") for d, _ in bad[:16]),
        params={"index": str(bad[0][0].index)},
    )


@check("GPU018", "No memory page waits to be retired", needs=("nvidia.devices",), playbook="gpu-recovery-action",
       problem="A GPU's memory page waits to be retired")  # fmt: skip
def pages_pending(facts: Facts) -> Verdict:
    """Looks for memory pages that older GPUs will take out of use at their next restart.

    What it does:
        Reads the page-retirement flag, which Volta and Turing have in the place of row remapping.

    Why it matters:
        Until the driver is reloaded a bad memory page can still be given to a program, which then dies of its error.
    """
    found = readings(facts, lambda device: device.retired_pages_pending)
    bad = [device for device, pending in found.items if pending]
    if not bad:
        return found.fine("no page retirement is pending")
    return warn(
        "no pending page retirement",
        f"pending on {listed(label(device) for device in bad)}",
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].retired_pages_pending", True, "NVML") for d in bad[:16]),
        params={"index": str(bad[0].index)},
    )


@check("GPU019", "The driver asks for no recovery", needs=("nvidia.devices",), playbook="gpu-recovery-action",
       problem="The driver wants the GPU reset or the machine rebooted")  # fmt: skip
def recovery_action(facts: Facts) -> Verdict:
    """Reads what the driver wants done with each GPU before it is used again.

    What it does:
        Reads NVML's recovery action: none, reset, reboot, drain, … (drivers from the 550s on).

    Why it matters:
        A GPU for which the driver wants a reset fails new programs, or hangs them in their first collective. The action
        is the driver's own conclusion from all errors so far.
    """
    found = readings(facts, lambda device: device.recovery_action)
    bad = [(device, action) for device, action in found.items if action != 0]
    if not bad:
        return found.fine("no GPU needs recovery")
    known = tables().recovery_actions
    names = {action: known[action].name if action in known else f"action {action}" for _, action in bad}
    grave = any(action not in known or known[action].severity == "fail" for _, action in bad)
    return (fail if grave else warn)(
        "no recovery action",
        listed(f"{label(device)}: {names[action]}" for device, action in bad),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].recovery_action", a, "NVML") for d, a in bad[:16]),
        params={"index": str(bad[0][0].index)},
    )


@check("GPU020", "The kernel log has no grave GPU error", needs=("nvidia.xids",), playbook="fatal-xid",
       caused_by=("GPU005", "GPU017", "GPU019"))  # fmt: skip
def xids(facts: Facts) -> Verdict:
    """Looks through the kernel log for Xid errors and names what NVIDIA's catalogue says to do.

    What it does:
        Takes the Xid errors since boot, leaves out those of GPUs that are not handed to this environment, and judges
        each by its action in the catalogue. Errors that call for a reset count as failures while they are recent (two
        hours) and the driver does not say that the GPU needs nothing.

    Why it matters:
        An Xid is the first and most exact trace of a hardware or driver fault; what torch reports afterwards ("unknown
        error", a hang in a collective) is only its consequence.
    """
    nvidia = need(facts.nvidia)
    devices = value_or(nvidia.devices, ())
    ours = [xid for xid in need(nvidia.xids) if _is_ours(xid, devices)]
    catalogue = tables().xids
    actions = tables().xid_actions
    severities = [(xid, actions[catalogue[xid.code].action].severity) for xid in ours if xid.code in catalogue]
    grave = [xid for xid, severity in severities if severity == "fail"]
    lines = tuple(_line(xid) for xid in (*grave, *(xid for xid in ours if xid not in grave)))[:16]
    seen = tuple(evidence("nvidia.xids", f"Xid {xid.code} {xid.text}"[:160], "dmesg") for xid in grave[:8])
    if not grave:
        mild = [xid for xid, severity in severities if severity]
        strange = [xid for xid in ours if xid.code not in catalogue]
        if mild or strange:
            counts = listed(f"Xid {xid.code} ({xid.count}x)" for xid in (*mild, *strange))
            what = "errors that need looking up" if strange else "only errors that programs cause themselves"
            return info(f"{what}: {counts}", details=lines)
        return passed(f"{len(ours)} Xid message(s), none grave" if ours else "no Xid error since boot")
    recent = any(_age_s(xid) <= _RECENT_S and not _recovered(xid, devices) for xid in grave)
    first = grave[0]
    return (fail if recent else warn)(
        "no Xid error that calls for a reset or more",
        listed(f"Xid {xid.code} ({xid.count}x) on {xid.bus_id}" for xid in grave),
        details=lines,
        evidence=seen,
        params={"code": str(first.code), "action": _action(first), **_ending(grave)},
    )


def _same_gpu(xid: Xid, device: NvidiaDevice) -> bool:
    # The kernel log leaves out the function number: 0000:10:1c for 0000:10:1c.0.
    return bool(device.bus_id.value) and (device.bus_id.value or "").split(".")[0] == xid.bus_id.split(".")[0]


def _address(xid: Xid) -> str:
    """The GPU as `nvidia-smi -i` takes it, with the function number that the kernel log leaves out."""
    return xid.bus_id if "." in xid.bus_id else f"{xid.bus_id}.0"


def _is_ours(xid: Xid, devices: tuple[NvidiaDevice, ...]) -> bool:
    # A GPU that is lost no longer tells its address, so then every Xid may be its own.
    return not devices or any(d.bus_id.value is None or _same_gpu(xid, d) for d in devices)


def _recovered(xid: Xid, devices: tuple[NvidiaDevice, ...]) -> bool:
    return any(_same_gpu(xid, device) and device.recovery_action.value == 0 for device in devices)


def _age_s(xid: Xid) -> float:
    # Without a time stamp it may be weeks old: told, but not taken for the state of now.
    return value_or(xid.last_age_s, math.inf)


def _ending(grave: list[Xid]) -> dict[str, str]:
    """The one act that ends all of it: no reset brings back what fell off the bus."""
    wanted = {xid.code: tables().xids[xid.code].action for xid in grave}
    power = next((code for code, action in wanted.items() if action == "power_cycle"), None)
    if power is not None:
        return {"power": str(power)}
    return {"reset": _address(grave[0])} if wanted[grave[0].code] == "reset_gpu" else {}


def _action(xid: Xid) -> str:
    entry = tables().xids.get(xid.code)
    return tables().xid_actions[entry.action].text if entry else "look the number up in NVIDIA’s catalogue"


def _line(xid: Xid) -> str:
    entry = tables().xids.get(xid.code)
    age = xid.last_age_s.value
    when = f", last {age / 3600:.1f} h ago" if age is not None else ""
    meaning = entry.meaning if entry else "not in our copy of the catalogue"
    return f"Xid {xid.code} on {xid.bus_id} ({xid.count}x{when}): {meaning}; to do: {_action(xid)}"


@check("GPU034", "GPU memory is not counted as main memory", needs=("nvidia.devices",), playbook="gpu-memory-numa-node")
def memory_as_numa(facts: Facts) -> Verdict:
    """Looks for GPUs whose memory the kernel shows as a NUMA node of its own (Grace Hopper, Grace Blackwell).

    What it does:
        Asks NVML for the NUMA node of each GPU's memory; there is one only on coherent platforms.

    Why it matters:
        The machine's total memory then includes GPU memory, so that sizes taken from MemTotal are too large, and page
        cache or a loader's buffers can land in GPU memory.
    """
    found = readings(facts, lambda device: device.numa_node)
    nodes = sorted({node for _, node in found.items if node >= 0})
    if not nodes:
        return not_there("no GPU's memory is a NUMA node")
    return info(
        f"GPU memory is NUMA node {listed(nodes)}: MemTotal counts it as main memory",
        evidence=(evidence("nvidia.devices.numa_node", listed(nodes), "NVML"),),
    )
