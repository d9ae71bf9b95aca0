"""What NCCL used between the ranks, by its own log, against what the machines have."""

from __future__ import annotations

from collections.abc import Iterable

from rlcheck.check import Verdict, check, fail, info, passed, skip, warn
from rlcheck.checks.collectives.common import (
    fact,
    group_name,
    has_model,
    inside,
    measured,
    peers_linked,
    set_on,
    setting_params,
    several,
    transports,
)
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Transport
from rlcheck.facts.document import Facts
from rlcheck.measure.collectives.expect import active_rates, is_rdma, table
from rlcheck.text import listed

_NEEDS = ("collectives",)
_NO_LOG = "no log of NCCL was read"
_NOT_PEER = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
_NOT_RDMA = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA")
_NVLS = ("NCCL_NVLS_ENABLE", "NCCL_ALGO")


def _because(settings: list[str]) -> str:
    return f" ({', '.join(settings)} is set)" if settings else ""


@check("NCL045", "RDMA is used where there are cards for it", needs=_NEEDS, playbook="nccl-sockets-instead-of-rdma")
def rdma_used(facts: Facts) -> Verdict:
    """Compares the network that NCCL chose with the RDMA ports that are active.

    What it does:
        Reads `Using network` from NCCL's log of groups over several nodes. When it says Socket and a node has active
        InfiniBand, RoCE or EFA ports, it names the ports and the settings that explain it.

    Why it matters:
        NCCL falls back to TCP without a word: a step between nodes takes many times as long, and the processors are
        busy with it.
    """
    run = measured(facts)
    read = transports(several(run))
    if not read:
        return skip("no group of several nodes with a log of NCCL")
    slow = [group for group, transport in read if transport.network and not is_rdma(transport.network)]
    if not slow:
        return passed(
            "used between nodes: " + ", ".join(sorted({t.network for _, t in read if t.network}) or ["nothing"])
        )
    nodes = sorted({node for group in slow for node in group.nodes})
    rates = {node: active_rates(facts, node) for node in nodes}
    with_cards = {node: found for node, found in rates.items() if found}
    if not with_cards:
        return skip("sockets are used; no active RDMA port is known on these nodes")
    settings = set_on(run, _NOT_RDMA, nodes)
    cards = [f"{node} has {len(found)} × {found[0][1]:g} Gb/s {found[0][0]}" for node, found in with_cards.items()]
    return fail(
        f"RDMA between the nodes ({listed(cards)})",
        f"sockets{_because(settings)}",
        details=tuple(cards),
        evidence=fact("groups.transport.network", "Socket", "NCCL's log"),
        params=setting_params(settings),
    )


@check("NCL046", "GPUs that are linked talk to each other directly", needs=_NEEDS, playbook="nccl-no-peer-access",
       problem="GPUs of one node do not talk to each other directly")  # fmt: skip
def peer_access_used(facts: Facts) -> Verdict:
    """Looks at how NCCL connected the GPUs inside machines whose GPUs are joined by NVLink or XGMI.

    What it does:
        Counts the connections in NCCL's log: P2P is direct, SHM goes through host memory, NET through a network card.
        Settings that forbid the direct way are named.

    Why it matters:
        Through host memory eight H200 do 12 GB/s instead of 366.
    """
    run = measured(facts)
    read = [(group, transport) for group, transport in transports(inside(run)) if transport.links]
    linked = [(group, transport) for group, transport in read if peers_linked(run, group)]
    if not linked:
        return skip("no GPUs here that are known to be linked" if read else _NO_LOG)
    bad = [(group, _indirect(transport)) for group, transport in linked if _indirect(transport)]
    if not bad:
        kinds = sorted({kind for _, transport in linked for kind in transport.links})
        return passed(f"{', '.join(kinds)} inside {len(linked)} nodes")
    settings = set_on(run, _NOT_PEER, [group.nodes[0] for group, _ in bad])
    return fail(
        "direct connections (P2P) between the GPUs of a node",
        f"{bad[0][1]} on {listed([group_name(group) for group, _ in bad])}{_because(settings)}",
        details=tuple(f"{group_name(group)}: {_counts(group.transport.value)}" for group, _ in bad),
        evidence=fact("groups.transport.links", _counts(bad[0][0].transport.value), "NCCL's log"),
        params=setting_params(settings),
    )


def _indirect(transport: Transport) -> str:
    """The ways past P2P that were used, "" for none."""
    return ", ".join(kind for kind in transport.links if not kind.startswith("P2P"))


def _counts(transport: Transport | None) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in transport.links.items()) if transport is not None else ""


@check("NCL047", "No traffic inside a node goes through the network", needs=_NEEDS, playbook="nccl-no-peer-access",
       problem="Traffic inside a node goes through the network")  # fmt: skip
def no_network_inside(facts: Facts) -> Verdict:
    """Looks for network connections between GPUs of one machine that are joined by PCIe alone.

    What it does:
        Where P2P is not possible, NCCL should use shared memory. NET in the log of a group inside one node means that
        this is switched off or does not work.

    Why it matters:
        Data goes out of a network card, or through the loopback, and back in again.
    """
    run = measured(facts)
    read = [(g, t) for g, t in transports(inside(run)) if t.links and not peers_linked(run, g)]
    if not read:
        return skip(_NO_LOG)
    bad = [(group, transport) for group, transport in read if any(kind.startswith("NET/") for kind in transport.links)]
    if not bad:
        return passed(", ".join(sorted({kind for _, transport in read for kind in transport.links})))
    settings = set_on(run, _NOT_PEER, [group.nodes[0] for group, _ in bad])
    return warn(
        "P2P or SHM between the GPUs of a node",
        f"{_counts(bad[0][1])} on {listed([group_name(group) for group, _ in bad])}{_because(settings)}",
        evidence=fact("groups.transport.links", _counts(bad[0][1]), "NCCL's log"),
        params=setting_params(settings),
    )


@check("NCL048", "NVLink SHARP is used on whole nodes", needs=_NEEDS, playbook="nccl-nvls-unused")
def nvls_used(facts: Facts) -> Verdict:
    """Says when eight Hopper or Blackwell GPUs sum without the help of their switches.

    What it does:
        Looks for NVLS channels in NCCL's log of groups of eight GPUs, and for a setting that switches them off. It is
        information: in many virtual machines and containers it must be off.

    Why it matters:
        All-reduce on eight H200 does 368 GB/s without and 482 GB/s with it; other collectives are the same.
    """
    run = measured(facts)
    able = [(group, transport) for group, transport in transports(inside(run))
            if len(group.ranks) >= 8 and has_model(run, group, table().nvls_models)]  # fmt: skip
    if not able:
        return skip("no whole node of eight Hopper or Blackwell GPUs with a log of NCCL")
    without = [group for group, transport in able if not transport.nvls]
    if not without:
        return passed(f"in use on {len(able)} nodes")
    settings = set_on(run, _NVLS, [group.nodes[0] for group in without])
    why = _because(settings) or _said(able, "NVLS")
    return info(
        f"not in use on {listed([group_name(group) for group in without])}{why}: all-reduce is about a quarter slower",
        evidence=fact("groups.transport.nvls", "False", "NCCL's log"),
        params=setting_params(settings),
    )


def _said(read: Iterable[tuple[GroupRun, Transport]], word: str) -> str:
    lines = [line for _, transport in read for line in transport.warnings if word in line]
    return f" ({lines[0]})" if lines else ""


@check("NCL049", "All network cards of a node are used", needs=_NEEDS, playbook="nccl-rail-missing",
       caused_by=("NCL045",))  # fmt: skip
def all_rails_used(facts: Facts) -> Verdict:
    """Counts the RDMA devices that each node's channels went through.

    What it does:
        Compares nodes with each other, and each node with its active ports when it has a rank for each of them. A list
        in NCCL_IB_HCA may be meant: then only a difference between nodes counts.

    Why it matters:
        Seven of eight cards carry seven eighths at best, and a rank whose own card is missing shares another's.
    """
    run = measured(facts)
    used = _devices_used(run)
    if not used:
        return skip("no log of an RDMA connection between nodes")
    most = max(len(found) for found in used.values())
    everything = set[str]().union(*used.values())
    details: list[str] = []
    for node, found in sorted(used.items()):
        ranks = sum(rank.node == node for rank in run.ranks)
        ports = len(active_rates(facts, node))
        restricted = bool(set_on(run, ("NCCL_IB_HCA",), [node]))
        if len(found) < most and ranks >= most:
            details.append(f"{node} used {len(found)}, others {most}; not used: {listed(sorted(everything - found))}")
        elif len(found) < ports <= ranks and not restricted:
            details.append(f"{node} used {len(found)} of {ports} active ports: {listed(sorted(found))}")
    if not details:
        return passed(f"{most} on each of {len(used)} nodes")
    return warn(
        "every node to use all of its network cards",
        f"{len(details)} of {len(used)} nodes that do not: {details[0]}",
        details=tuple(details),
        evidence=fact("groups.transport.rank_nics", details[0], "NCCL's log"),
        params={"node": details[0].partition(" ")[0]},
    )


def _devices_used(run: CollectiveFacts) -> dict[str, set[str]]:
    """Node to the devices that any of its ranks' connections to other nodes went through."""
    node_of = {str(rank.rank): rank.node for rank in run.ranks}
    used: dict[str, set[str]] = {}
    for _, transport in transports(several(run)):
        if is_rdma(transport.network):
            for rank, nics in transport.rank_nics.items():
                used.setdefault(node_of.get(rank, ""), set()).update(nic for name in nics for nic in name.split("+"))
    return {node: found for node, found in used.items() if node and found}


@check("NCL050", "Network cards reach GPU memory directly", needs=_NEEDS, playbook="gpudirect-rdma",
       caused_by=("NCL045",),
       problem="Network cards do not reach GPU memory directly")  # fmt: skip
def gdr_used(facts: Facts) -> Verdict:
    """Looks for GDRDMA in the RDMA connections of NCCL's log.

    What it does:
        Connections `via NET/IB/…/GDRDMA` go from card to GPU, those without it through host memory. It warns on GPUs
        with NVLink, whose machines have a card beside each GPU; elsewhere the way through host memory is often right,
        and it is only told.

    Why it matters:
        Through host memory all cards of a node share the processors' memory bandwidth, and each message takes longer.
    """
    run = measured(facts)
    read = [(g, t) for g, t in transports(several(run)) if is_rdma(t.network) and _net_links(t)]
    if not read:
        return skip("no log of an RDMA connection between nodes")
    without = [(g, t) for g, t in read if any("GDRDMA" not in kind for kind in _net_links(t))]
    if not without:
        return passed(", ".join(sorted({kind for _, transport in read for kind in _net_links(transport)})))
    group, transport = without[0]
    settings = set_on(run, ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE"), group.nodes)
    found = f"{_counts(transport)} in {listed([group_name(g) for g, _ in without])}{_because(settings)}"
    if not peers_linked(run, group):
        return info(f"not everywhere: {found}")
    return warn(
        "GDRDMA in all connections between nodes",
        found,
        evidence=fact("groups.transport.links", _counts(transport), "NCCL's log"),
        params=setting_params(settings),
    )


def _net_links(transport: Transport) -> list[str]:
    return [kind for kind in transport.links if kind.startswith("NET/")]
