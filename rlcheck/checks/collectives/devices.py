"""Settings that name something outside NCCL: plug-ins, files, RDMA devices, traffic classes."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.collectives.settings import number_of, settings, settings_evidence, show, value_of
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import active_fabric
from rlcheck.facts.nccl import NcclPlugin
from rlcheck.text import several

_OWN_NETWORKS = ("ib", "socket", "networkdirect")
_PLUGIN_KINDS = ("net", "tuner", "profiler", "env", "gin", "rma")


@check("NCL028", "The NCCL plug-ins that variables name exist", needs=("environ", "nccl"),
       playbook="nccl-plugin-missing",
       problem="An NCCL plug-in that a variable names does not exist")  # fmt: skip
def plugins(facts: Facts) -> Verdict:
    """Looks for the libraries that NCCL_NET_PLUGIN and its sisters name, and for the network that NCCL_NET names.

    What it does:
        `foo` stands for the file foo or libnccl-net-foo.so on LD_LIBRARY_PATH or in the system's directories. NCCL_NET
        other than IB and Socket is a network that some plug-in must bring.

    Why it matters:
        When NCCL_NET names a network that no plug-in brings, NCCL stops at start; a missing NCCL_NET_PLUGIN alone makes
        it fall back, often to TCP. Images for one cloud carry such settings to machines of another.
    """
    found = settings(facts)
    here = need(facts.nccl).plugins
    missing = [
        found[name]
        for kind in _PLUGIN_KINDS
        if (text := value_of(found, name := f"NCCL_{kind.upper()}_PLUGIN"))
        and not all(_found(kind, part.strip(), here) for part in text.split(","))
    ]
    network = value_of(found, "NCCL_NET").lower()
    no_network = bool(network) and network not in _OWN_NETWORKS and not any(p.kind == "net" for p in here)
    if no_network:
        missing.append(found["NCCL_NET"])
    if not missing:
        return passed(f"{len(here)} plug-ins found" if here else "no plug-in is asked for")
    verdict = fail if no_network else warn
    return verdict(
        "the named plug-in on LD_LIBRARY_PATH or in the system's directories",
        f"{', '.join(show(setting) for setting in missing)}; found here: {_listed(here)}",
        evidence=settings_evidence(missing),
        params={"names": several(setting.name for setting in missing)},
    )


def _found(kind: str, text: str, here: tuple[NcclPlugin, ...]) -> bool:
    if text.lower() in ("none", "static_plugin", "") or "/" in text:
        return True
    names = {plugin.path.rpartition("/")[2] for plugin in here}
    return text in names or any(plugin.kind in (kind, "net") and plugin.suffix == text for plugin in here)


def _listed(here: tuple[NcclPlugin, ...]) -> str:
    return ", ".join(plugin.path for plugin in here[:6]) or "none"


@check("NCL029", "The files that NCCL variables name exist", needs=("nccl",), playbook="nccl-plugin-missing",
       problem="A file that an NCCL variable names does not exist")  # fmt: skip
def named_files(facts: Facts) -> Verdict:
    """Looks for the files in NCCL_TOPO_FILE, NCCL_GRAPH_FILE, tuner settings and VLLM_NCCL_SO_PATH.

    What it does:
        Checks that each exists and can be read; `~` is not expanded by NCCL.

    Why it matters:
        A library path that is not there stops the engine at start; without its topology file NCCL pairs GPUs with the
        wrong network cards and is slow. Typical: the file exists on the host but not in the container.
    """
    files = [file for file in need(facts.nccl).named_files if file.variable != "NCCL_CONF_FILE"]
    if not files:
        return skip("no variable names a file")
    bad = [file for file in files if file.exists.value is False or (file.exists.value and not file.readable)]
    if not bad:
        unclear = [file.path for file in files if file.exists.value is None]
        return (
            info(f"could not be looked at: {', '.join(unclear)}")
            if unclear
            else passed(", ".join(f"{file.variable}={file.path}" for file in files))
        )
    stops = any(file.variable.endswith("_SO_PATH") for file in bad)
    return (fail if stops else warn)(
        "files that exist and can be read",
        ", ".join(f"{file.variable}={file.path}" + (" (`~` is not expanded)" if file.tilde else "") for file in bad),
        evidence=tuple(evidence(f"environ.{file.variable}", file.path, "environment") for file in bad),
        params={"name": bad[0].variable, "path": bad[0].path},
    )


@check("NCL030", "NCCL_IB_HCA selects a device", needs=("environ",), playbook="nccl-ib-hca")
def ib_hca(facts: Facts) -> Verdict:
    """Applies NCCL_IB_HCA to the RDMA devices of this machine.

    What it does:
        Understands `^` (exclude), `=` (exact names) and `name:port`. Reports a list that selects nothing, exact names
        that are not here, and prefixes that take more than they seem to (`mlx5_1` also means mlx5_10).

    Why it matters:
        When nothing is selected NCCL uses TCP without a word, and lists copied from another kind of machine leave some
        of the cards idle.
    """
    found = settings(facts)
    text = value_of(found, "NCCL_IB_HCA")
    if not text:
        return skip("NCCL_IB_HCA is not set: NCCL uses all cards")
    where = settings_evidence([found["NCCL_IB_HCA"]])
    devices = [device.name for device in value_or(facts.network.value.rdma, ())] if facts.network.value else []
    if not devices:
        return info(f"{show(found['NCCL_IB_HCA'])}, but there is no RDMA device here", evidence=where)
    exclude, exact, names = _hca_list(text)
    taken = [d for d in devices if any(d == n if exact else d.startswith(n) for n in names) != exclude]
    if not taken:
        return warn(f"NCCL_IB_HCA to select one of {', '.join(devices[:16])}", f"nothing: {text}", evidence=where,
                    params={"devices": ",".join(devices[:16])})  # fmt: skip
    absent = [n for n in names if exact and not exclude and n not in devices]
    unnamed = [d for d in devices if d not in names]
    wider = [n for n in names if not exact and n in devices and any(d.startswith(n) for d in unnamed)]
    if absent or wider:
        text = f"not here: {', '.join(absent)}" if absent else f"{', '.join(wider)} also selects longer names"
        return warn("exact names of devices that are here", text, evidence=where, params={"devices": ",".join(taken)})
    return passed(f"NCCL_IB_HCA selects {', '.join(taken[:16])}")


def _hca_list(text: str) -> tuple[bool, bool, list[str]]:
    """Whether the list excludes, whether its names are exact, and the names without their ports."""
    exclude = text.startswith("^")
    body = text[1:] if exclude else text
    exact = body.startswith("=")
    parts = (body[1:] if exact else body).split(",")
    return exclude, exact, [name for part in parts if (name := part.strip().partition(":")[0])]


@check("NCL031", "NCCL's control messages have a traffic class of their own", needs=("environ", "network.rdma"),
       playbook="nccl-traffic-class",
       problem="Control messages share the data's traffic class")  # fmt: skip
def traffic_class(facts: Facts) -> Verdict:
    """Reports NCCL_IB_TC without NCCL_IB_FIFO_TC on RoCE, and NCCL_IB_SL there.

    What it does:
        Decodes the traffic class: DSCP times four plus the ECN bits. The service level means nothing on RoCE v2
        networks that trust DSCP.

    Why it matters:
        The class must be the one that the switches carry without loss, or congestion makes NCCL retry and time out.
        Since NCCL 2.22 the small control messages can be given a class of their own, which large clouds do.
    """
    found = settings(facts)
    tc = number_of(found, "NCCL_IB_TC")
    if facts.network.value is None or not any(p.link_layer == "Ethernet" for _, p in active_fabric(facts)):
        return skip("no active RoCE port")
    if tc is None or tc < 0:
        return passed("NCCL_IB_TC is not set")
    decoded = f"{show(found['NCCL_IB_TC'])} is DSCP {tc // 4}, ECN bits {tc % 4}"
    if number_of(found, "NCCL_IB_FIFO_TC") is not None:
        return passed(f"{decoded}; NCCL_IB_FIFO_TC={value_of(found, 'NCCL_IB_FIFO_TC')}")
    return info(f"{decoded}; control messages use the same class", evidence=settings_evidence([found["NCCL_IB_TC"]]))


@check("NCL032", "NCCL_NET asks for a network that this machine has", needs=("environ", "network"),
       playbook="nccl-plugin-missing", caused_by=("NET001", "NCL028"),
       problem="NCCL_NET asks for a network that this machine does not have")  # fmt: skip
def network_exists(facts: Facts) -> Verdict:
    """Finds NCCL_NET=IB, or Google's gIB, on a machine without a usable RDMA port.

    What it does:
        Compares the setting, from the environment or from /etc/nccl.conf, with the active RDMA ports.

    Why it matters:
        NCCL_NET forbids every other network, so NCCL stops at start even for GPUs of one machine. An image made for
        cluster machines does this on a single virtual machine.
    """
    found = settings(facts)
    wanted = value_of(found, "NCCL_NET")
    if wanted.lower() not in ("ib", "gib"):
        return skip("NCCL_NET does not ask for RDMA")
    rdma = need(facts.network).rdma
    if active_fabric(facts):
        return passed(f"NCCL_NET={wanted} and {len(active_fabric(facts))} active RDMA ports")
    if rdma.value is None and rdma.missing is not None and rdma.missing.kind.value != "absent":
        return unknown(f"the RDMA devices could not be read: {rdma.missing.reason}")
    return fail(
        "an active RDMA port, which NCCL_NET asks for",
        f"none, with {show(found['NCCL_NET'])}",
        evidence=settings_evidence([found["NCCL_NET"]]),
        params={"names": "NCCL_NET"},
    )
