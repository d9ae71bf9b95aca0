"""GPUDirect RDMA and what the PCI bus does to it."""

from __future__ import annotations

import re

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import network, run_fabric


@check("NET010", "Network cards can reach GPU memory", needs=("network.rdma", "network.gpudirect"),
       playbook="gpudirect-rdma",
       problem="Network cards cannot reach GPU memory")  # fmt: skip
def gpudirect(facts: Facts) -> Verdict:
    """Checks that one of the two ways to GPUDirect RDMA is open.

    What it does:
        Needs NVIDIA GPUs (GeForce cards lack the feature) and an active RDMA port. Either the module nvidia_peermem is
        loaded, or DMA-BUF can work: open GPU kernel modules and Linux 5.12 or newer. A missing nvidia_peermem alone is
        no fault.

    Why it matters:
        Without it every byte between nodes passes through host memory, which costs a large part of the bandwidth.
    """
    if not run_fabric(facts):
        return skip("no active RDMA port that a run would use")
    gpus = value_or(facts.nvidia.value.devices, ()) if facts.nvidia.value is not None else ()
    if gpus and all("GeForce" in value_or(gpu.name, "") for gpu in gpus):
        return skip("GeForce cards have no GPUDirect RDMA")
    state = need(network(facts).gpudirect)
    if state.peermem:
        return passed("nvidia_peermem is loaded")
    version = re.match(r"(\d{1,4})\.(\d{1,4})", state.kernel)
    kernel = (int(version[1]), int(version[2])) if version else None
    if state.module_flavour == "open" and kernel and kernel >= (5, 12):
        return passed(f"DMA-BUF can be used: open kernel modules, Linux {state.kernel}")
    flavour = state.module_flavour or "unknown"
    found = f"no nvidia_peermem, {flavour} kernel modules, Linux {state.kernel or '?'}"
    if not state.module_flavour or kernel is None:
        return info(f"GPUDirect RDMA cannot be judged: {found}")
    return warn(
        "nvidia_peermem, or open kernel modules with Linux 5.12 or newer",
        found,
        evidence=(
            evidence("network.gpudirect.peermem", False, "/proc/modules"),
            evidence("network.gpudirect.module_flavour", flavour, "/proc/driver/nvidia/version"),
        ),
    )


@check("NET011", "PCI bridges let GPUs and network cards talk directly", needs=("network", "platform"),
       playbook="pci-acs")  # fmt: skip
def acs(facts: Facts) -> Verdict:
    """Looks, on bare metal and with `--deep` only, for PCI bridges that send peer-to-peer traffic up to the CPU.

    What it does:
        Reads ACSCtl of every bridge with lspci, as root. SrcValid+ there means Access Control Services are on. In a
        virtual machine ACS is required and is not judged.

    Why it matters:
        With ACS on, traffic between a GPU and a network card of one switch goes to the root complex and back, which
        is slow and, with some platforms, hangs NCCL.
    """
    platform = need(facts.platform)
    if platform.virtualization:
        return skip(f"a virtual machine ({platform.virtualization}): ACS has to be on")
    if not facts.deep:
        return skip("looked at with --deep only, as root")
    bridges = need(network(facts).acs_bridges)
    if not bridges:
        return passed("no PCI bridge validates the source of peer-to-peer traffic")
    return warn(
        "ACS off on the PCI bridges of a bare-metal machine",
        f"SrcValid+ on {len(bridges)}: {', '.join(bridges[:8])}",
        evidence=(evidence("network.acs_bridges", ", ".join(bridges[:16]), "lspci -vvv"),),
        params={"bridge": bridges[0]},
    )
