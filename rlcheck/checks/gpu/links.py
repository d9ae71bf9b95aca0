"""How the GPUs of one machine reach each other: NVLink, the NVSwitch fabric, multi-node NVLink."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, skip, warn
from rlcheck.checks.gpu.devices import is_datacenter, is_sxm, label, readings
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice
from rlcheck.text import listed


def _plain(device: NvidiaDevice) -> bool:
    """MIG switches NVLink off by design."""
    return not value_or(device.mig_enabled, False)


@check("GPU024", "No NVLink port is down", needs=("nvidia.devices",), playbook="nvlink-down", caused_by=("GPU025",))
def nvlink_ports(facts: Facts) -> Verdict:
    """Counts the NVLink ports of each GPU that are up and compares the GPUs with each other.

    What it does:
        Looks for a GPU with fewer ports up than its siblings. GPUs in MIG mode are left out, and so are bridges that
        link only some PCIe cards.

    Why it matters:
        A GPU with a dead port has less bandwidth in every collective, and on machines with NVSwitch the fabric can shut
        it out of peer-to-peer traffic altogether, so that NCCL falls back or hangs.
    """
    found = readings(facts, lambda device: device.nvlinks)
    linked = [(device, links) for device, links in found.items if _plain(device) and is_sxm(device)]
    most = max((links.num_active for _, links in linked), default=0)
    if not most:
        return skip("these GPUs have no NVLink in use")
    # Export variants of a model (A800, H800) have fewer ports in use on every card: only a difference is a fault.
    bad = [(device, links.num_active) for device, links in linked if links.num_active < most]
    if not bad:
        return found.fine(f"all {most} NVLink ports of {len(linked)} GPU(s) are up")
    problem = fail if any(active == 0 for _, active in bad) else warn
    return problem(
        f"{most} NVLink ports up on every GPU",
        listed(f"{label(device)}: {active}" for device, active in bad),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].nvlinks", n, "NVML") for d, n in bad[:16]),
        params={"index": str(bad[0][0].index)},
    )


@check(
    "GPU025", "The GPUs are registered with the NVSwitch fabric", needs=("nvidia.devices",), playbook="fabric-not-ready"
)
def fabric(facts: Facts) -> Verdict:
    """Reads the fabric state of GPUs behind NVSwitches (Hopper and newer).

    What it does:
        Expects the state "completed" with status success on every GPU that has a fabric; GPUs without one, and those in
        MIG mode, are left out.

    Why it matters:
        Until the fabric manager has registered a GPU, CUDA stops with error 802 "system not yet initialized", though
        nvidia-smi lists the GPU as if all were well.
    """
    found = readings(facts, lambda device: device.fabric)
    judged = [(d, state) for d, state in found.items if _plain(d) and state.state != "not_supported"]
    if not judged:
        return skip("these GPUs are not behind an NVSwitch fabric")
    bad = [(device, state) for device, state in judged if state.state != "completed" or state.status != 0]
    if not bad:
        return found.fine(f"{len(judged)} GPU(s) are registered with the fabric")
    # A single GPU may have been handed out without its fabric on purpose.
    problem = fail if len(found.items) > 1 else warn
    return problem(
        "fabric state completed, status success",
        listed(f"{label(d)}: {s.state}" + (f", status {s.status}" if s.status else "") for d, s in bad),
        evidence=tuple(evidence(f"nvidia.devices[{d.index}].fabric", s.state, "NVML") for d, s in bad[:16]),
        params={"driver": value_or(need(facts.nvidia).driver_version, "")},
    )


@check("GPU026", "GPUs that work together are joined by NVLink", needs=("nvidia.devices",), playbook="nvlink-absent",
       caused_by=("GPU025",),
       problem="The GPUs are not joined by NVLink")  # fmt: skip
def nvlink_present(facts: Facts) -> Verdict:
    """Looks for several data-center GPUs without any NVLink between them.

    What it does:
        Counts active NVLink ports over all GPUs. SXM models without any are a warning, PCIe models are a remark.

    Why it matters:
        Without NVLink all-reduce and weight transfer go over PCIe, ten times slower or more, so tensor parallelism
        within an engine and large FSDP groups lose much of their speed.
    """
    found = readings(facts, lambda device: device.nvlinks)
    judged = [(device, links) for device, links in found.items if is_datacenter(device) and _plain(device)]
    if len(judged) < 2:
        return skip("there are not several data-center GPUs")
    active = sum(links.num_active > 0 for _, links in judged)
    if active:
        return found.fine(f"{active} of {len(judged)} GPUs have NVLink")
    sxm = [device for device, _ in judged if is_sxm(device)]
    seen = (evidence("nvidia.devices.nvlinks", 0, "NVML"),)
    if not sxm:
        names = listed(sorted({value_or(device.name, "") for device, _ in judged}))
        return info(f"{len(judged)} GPUs ({names}) talk over PCIe only: there is no NVLink", evidence=seen)
    return warn(
        f"NVLink between {len(sxm)} SXM GPUs",
        f"no active NVLink port on {listed(label(device) for device in sxm)}",
        evidence=seen,
    )


@check(
    "GPU027",
    "A multi-node NVLink machine has its IMEX channel",
    needs=("nvidia.devices",),
    playbook="imex-channel-missing",
    problem="The IMEX channel of a multi-node NVLink machine is missing",
)
def imex_channel(facts: Facts) -> Verdict:
    """Looks for an IMEX channel device where GPUs belong to a multi-node NVLink domain (GB200 NVL72 and the like).

    What it does:
        When a GPU's fabric has a cluster and the host processor is an ARM one (Grace), looks for a channel below
        /dev/nvidia-caps-imex-channels. x86 machines with NVSwitches name a cluster, too, but reach no machine outside.

    Why it matters:
        Without the channel a process cannot share GPU memory with other nodes over NVLink, and NCCL goes over the much
        slower network, or fails when multi-node NVLink is demanded.
    """
    found = readings(facts, lambda device: device.fabric)
    clustered = [device for device, state in found.items if state.cluster and state.state == "completed"]
    if not clustered or (facts.platform.value is not None and facts.platform.value.machine == "x86_64"):
        return skip("the GPUs belong to no multi-node NVLink domain")
    channels = need(facts.nvidia).nodes.imex_channels
    if channels:
        return found.fine(f"{channels} IMEX channel(s) are there")
    return warn(
        "a channel in /dev/nvidia-caps-imex-channels",
        f"none, with {len(clustered)} GPU(s) in a multi-node NVLink domain",
        evidence=(evidence("nvidia.nodes.imex_channels", 0, "/dev/nvidia-caps-imex-channels"),),
    )
