"""What the clouds' fabrics need on top of NCCL."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import active_fabric, environ, network

_TCPX_DRIVER = "gve"


@check("NET022", "EFA devices have their NCCL plug-in", needs=("network.rdma", "nccl"), playbook="cloud-network-files",
       problem="EFA devices have no NCCL plug-in")  # fmt: skip
def efa_plugin(facts: Facts) -> Verdict:
    """On Amazon EC2: looks for the libfabric plug-in when the machine has EFA devices.

    What it does:
        Counts devices of the driver efa and looks for libnccl-net*.so on LD_LIBRARY_PATH, in the system's directories
        and where the EFA installer puts it.

    Why it matters:
        NCCL cannot use EFA by itself: without the aws-ofi-nccl plug-in it falls back to TCP over one interface.
    """
    efa = [device.name for device in need(network(facts).rdma) if device.driver == "efa"]
    if not efa:
        return skip("no EFA device")
    plugins = [plugin for plugin in need(facts.nccl).plugins if plugin.kind == "net"]
    if not plugins:
        return warn(
            "a libnccl-net library (aws-ofi-nccl) for the EFA devices",
            f"{len(efa)} EFA devices and no plug-in",
            evidence=(evidence("nccl.plugins", "none", "LD_LIBRARY_PATH, /etc/ld.so.conf, /opt/amazon"),),
        )
    listed = environ(facts).get("LD_LIBRARY_PATH", "").split(":")
    directory = plugins[0].path.rpartition("/")[0]
    if directory.startswith("/opt/") and directory not in [part.rstrip("/") for part in listed]:
        return info(
            f"{plugins[0].path} is there; NCCL finds it when {directory} is on LD_LIBRARY_PATH or in ld.so.conf"
        )
    return passed(f"{len(efa)} EFA devices, {plugins[0].path}")


@check("NET023", "The cloud's NCCL topology file is in place", needs=("platform", "network.rdma", "nccl"),
       playbook="cloud-network-files",
       problem="The cloud's NCCL topology file is missing")  # fmt: skip
def azure_topology(facts: Facts) -> Verdict:
    """On Azure machines with InfiniBand and eight GPUs: looks for the topology file.

    What it does:
        Needs cloud azure, an active InfiniBand port and eight or more NVIDIA GPUs on an x86 machine. Looks for
        NCCL_TOPO_FILE in the environment or in nccl.conf, or the file that NCCL loads unasked.

    Why it matters:
        The PCI tree inside these virtual machines is made up, so without the file NCCL pairs GPUs with far network
        cards and loses bandwidth between nodes.
    """
    platform, nccl = need(facts.platform), need(facts.nccl)
    gpus = network(facts).gpudirect.value
    ports = [port for _, port in active_fabric(facts) if port.link_layer == "InfiniBand"]
    if platform.cloud != "azure" or not ports or gpus is None or gpus.num_gpus < 8 or platform.machine != "x86_64":
        return skip("not an Azure machine with InfiniBand and eight GPUs")
    named = environ(facts).get("NCCL_TOPO_FILE", "") or next(
        (s.value for file in nccl.conf_files for s in value_or(file.settings, ()) if s.name == "NCCL_TOPO_FILE"), ""
    )
    if named or nccl.topology_file:
        return passed(f"topology file: {named or '/var/run/nvidia-topologyd/virtualTopology.xml'}")
    return warn(
        "NCCL_TOPO_FILE, in the environment or in /etc/nccl.conf",
        "none",
        evidence=(evidence("environ.NCCL_TOPO_FILE", "", "environment"),),
    )


@check("NET024", "Google Cloud's network plug-in is in place", needs=("platform", "network.interfaces", "nccl"),
       playbook="cloud-network-files",
       problem="Google Cloud's network plug-in is missing")  # fmt: skip
def gcp_plugin(facts: Facts) -> Verdict:
    """On Google Cloud GPU machines with several network cards: looks for an NCCL network plug-in.

    What it does:
        Counts gVNIC interfaces. Five or more beside eight GPUs are the sign of machine types (A3) whose GPU network
        works through GPUDirect-TCPX or -TCPXO, which come as plug-ins.

    Why it matters:
        Without the plug-in NCCL uses plain TCP over these cards and reaches a fraction of their bandwidth.
    """
    gpus = network(facts).gpudirect.value
    cards = [card.name for card in need(network(facts).interfaces) if card.driver == _TCPX_DRIVER]
    if need(facts.platform).cloud != "gcp" or len(cards) < 5 or gpus is None or gpus.num_gpus < 8:
        return skip("not a Google Cloud machine with eight GPUs and several GPU network cards")
    plugins = [plugin.path for plugin in need(facts.nccl).plugins if plugin.kind == "net"]
    if plugins:
        return passed(f"{len(cards)} gVNIC cards, {plugins[0]}")
    return warn(
        "an NCCL network plug-in for the GPU network cards",
        f"{len(cards)} gVNIC cards and no libnccl-net library",
        evidence=(evidence("nccl.plugins", "none", "LD_LIBRARY_PATH, /etc/ld.so.conf, /usr/local/nvidia/lib64"),),
    )
