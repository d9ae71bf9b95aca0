"""What slows a GPU down: throttling, power limits, a narrow PCIe link."""

from __future__ import annotations

from collections import defaultdict

from rlcheck.check import Verdict, check, evidence, info, skip, warn
from rlcheck.checks.gpu.devices import is_datacenter, label, readings
from rlcheck.checks.gpu.tables import tables
from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice
from rlcheck.text import listed

_LOWERED = 0.95
_NO_PCIE_NEEDED = ("GH200", "GB200", "GB300", "GB10")


@check("GPU021", "No GPU protects itself by slowing down", needs=("nvidia.devices",), playbook="gpu-throttled")
def throttled(facts: Facts) -> Verdict:
    """Reads why the GPUs' clocks are lowered and looks for the reasons that mean trouble.

    What it does:
        Reads NVML's bit mask. Idle, the configured clocks and the software power cap are normal; hardware slowdown,
        thermal slowdown and power brake are not.

    Why it matters:
        In synchronous training all GPUs wait for the slowest one, so that a single hot GPU slows the whole job by as
        much as it is slowed itself. Heat and failing power supplies also precede failures.
    """
    found = readings(facts, lambda device: device.clock_events)
    bad: list[tuple[NvidiaDevice, list[str]]] = []
    for device, mask in found.items:
        reasons = [event.name for event in tables().clock_events if event.bad and mask & event.bit]
        if reasons:
            bad.append((device, reasons))
    if not bad:
        return found.fine("no GPU is slowed down by heat or power")
    return warn(
        "clocks lowered for no reason but idleness or the power cap",
        listed(f"{label(device)}: {' and '.join(reasons)}" for device, reasons in bad),
        details=tuple(
            f"{label(d)}: {value_or(d.temperature_c, 0)} °C" for d, _ in bad[:16] if d.temperature_c.value is not None
        ),
        evidence=tuple(
            evidence(f"nvidia.devices[{d.index}].clock_events", hex(value_or(d.clock_events, 0)), "NVML")
            for d, _ in bad[:16]
        ),
        params={"index": str(bad[0][0].index)},
    )


@check(
    "GPU022", "The GPUs' power limits are not lowered", needs=("nvidia.devices",), playbook="gpu-power-limit-lowered"
)
def power_limit(facts: Facts) -> Verdict:
    """Compares each GPU's power limit with its default and with its siblings' limits.

    What it does:
        Reads the limit that is set and the card's default; less than 95 % of the default counts, and so does a
        difference between cards of one model (consumer cards: with the same default).

    Why it matters:
        A limit that was set with nvidia-smi stays until the next reboot and makes that GPU the slow one that all others
        wait for. Nothing in a training log shows it.
    """
    found = readings(facts, lambda device: device.power_limit_w)
    low: list[str] = []
    by_model: dict[tuple[str, int], set[float]] = defaultdict(set)
    default_w = 0.0
    group: list[int] = []
    for device, limit in found.items:
        default = value_or(device.power_default_w, 0.0)
        # Consumer cards of one model from different makers have different defaults.
        by_model[value_or(device.name, ""), 0 if is_datacenter(device) else round(default)].add(round(limit))
        if 0 < limit < _LOWERED * default:
            low.append(f"{label(device)}: {limit:.0f} of {default:.0f} W")
            default_w = default_w or default
            group += [device.index] if default == default_w else []
    uneven = [f"{model or 'GPUs'}: {listed(f'{w:.0f} W' for w in sorted(ws))}" for (model, _), ws in by_model.items()
              if len(ws) > 1]  # fmt: skip
    if not low and not uneven:
        return found.fine("every GPU has its default power limit")
    return warn(
        "the default power limit on every GPU",
        listed(low or uneven),
        details=tuple(uneven[:8]),
        evidence=tuple(
            evidence(f"nvidia.devices[{d.index}].power_limit_w", f"{limit:.0f}", "NVML")
            for d, limit in found.items[:16]
        ),
        params={
            "watts": f"{default_w:.0f}" if default_w else f"{max(limit for _, limit in found.items):.0f}",
            "indices": ",".join(map(str, group or [device.index for device, _ in found.items])),
        },
    )


@check("GPU023", "The PCIe links have their full width", needs=("nvidia.devices",), playbook="pcie-link-narrow")
def pcie_width(facts: Facts) -> Verdict:
    """Compares the width of each GPU's PCIe link with the most that the card and the slot can do.

    What it does:
        Reads the current and the maximum number of lanes. The speed (generation) is left alone: it drops when a GPU is
        idle, the width does not. Workstation boards split a slot's lanes among cards, and virtual machines show links
        that are not theirs: there fewer lanes are only told, unless one data-center card has fewer than its like.

    Why it matters:
        Offloading, weight transfer between trainer and engine, and GPUDirect RDMA all go over this link. One GPU at
        half its lanes halves that for every rank that waits for it.
    """
    found = readings(facts, lambda device: device.pcie_width)
    bad: list[tuple[NvidiaDevice, int, int]] = []
    judged = 0
    for device, width in found.items:
        most = value_or(device.pcie_width_max, 0)
        if width <= 0 or most <= 0 or any(model in value_or(device.name, "") for model in _NO_PCIE_NEEDED):
            continue
        judged += 1
        if width < most:
            bad.append((device, width, most))
    if not judged:
        return skip("these GPUs do not depend on a PCIe link, or do not show it")
    if not bad:
        return found.fine(f"{judged} PCIe link(s) run at full width")
    text = listed(f"{label(device)}: x{width} of x{most}" for device, width, most in bad)
    if not _is_fault(facts, found.items, bad):
        return info(f"{text}: how this kind of machine is built, as a rule")
    return warn(
        f"PCIe links of x{bad[0][2]}",
        text,
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].pcie_width", width, "NVML") for d, width, _ in bad[:16]),
        params={"bus_id": value_or(bad[0][0].bus_id, "0000:00:00.0")},
    )


def _is_fault(
    facts: Facts, widths: tuple[tuple[NvidiaDevice, int], ...], bad: list[tuple[NvidiaDevice, int, int]]
) -> bool:
    """Whether a narrow link is more than the way in which the machine is wired or shown."""
    is_virtual = facts.platform.value is not None and bool(facts.platform.value.virtualization)
    judged = [(device, width) for device, width, _ in bad if is_datacenter(device)]
    like = {device.name.value: {w for d, w in widths if d.name.value == device.name.value} for device, _ in judged}
    return any(not is_virtual or len(like[device.name.value]) > 1 for device, _ in judged)


@check(
    "GPU032",
    "The driver stays loaded between programs",
    needs=("nvidia.devices",),
    playbook="persistence-mode-off",
)
def persistence(facts: Facts) -> Verdict:
    """Looks for persistence mode, which keeps the driver's state while no program uses the GPU.

    What it does:
        Reads the mode of each GPU.

    Why it matters:
        Without persistence mode the driver restarts every GPU for each program: seconds at every start, and settings
        such as power limits are lost in between.
    """
    found = readings(facts, lambda device: device.persistence)
    off = [device for device, on in found.items if not on]
    if not off:
        return found.fine("persistence mode is on")
    return Verdict(
        status="info",
        message=f"persistence mode is off on {listed(label(device) for device in off)}: every start takes longer",
        expected="persistence mode on",
        found=f"off on {len(off)} GPU(s)",
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].persistence", False, "NVML") for d in off[:16]),
    )
