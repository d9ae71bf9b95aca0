"""Interfaces, versions and settings of the nodes against each other, and what NCCL itself complains of."""

from __future__ import annotations

import re
from shlex import quote

from rlcheck.check import Verdict, check, fail, info, passed, skip, warn
from rlcheck.checks.collectives.common import fact, measured, rank_name, several, transports
from rlcheck.facts.base import why_missing
from rlcheck.facts.cluster import Card
from rlcheck.facts.collectives import CollectiveFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.collectives.expect import active_rates, is_rdma
from rlcheck.text import listed

_NEEDS = ("collectives",)
_VIRTUAL = re.compile(r"docker|br-|virbr|veth|cni|flannel|cali|lxc|podman|tun|tailscale|wg")
_OWN = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG_FILE", "NCCL_TOPO_FILE", "NCCL_HOSTID")
_SLOW_PART = 2.0
_MUST_AGREE = ("nccl",)
_SHOULD_AGREE = ("torch", "cuda", "hip", "driver", "python")


@check("NCL051", "The right network interface is used", needs=_NEEDS, playbook="socket-ifname",
       problem="Ranks meet over the wrong network interface")  # fmt: skip
def right_interface(facts: Facts) -> Verdict:
    """Looks at the interfaces that ranks of several nodes met over, or were told to use.

    What it does:
        Fails on the loopback and on names in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME that a node does not have; warns
        on bridges of containers and virtual machines, and on a slow card where sockets carry the data and the node
        has a card twice as fast.

    Why it matters:
        docker0 has an address everywhere and leads nowhere: ranks wait for each other until the time limit.
    """
    run = measured(facts)
    nodes = sorted({rank.node for rank in run.ranks})
    if len(nodes) < 2:
        return skip("one node alone needs no interface")
    cards = {node: _cards(facts, node) for node in nodes}
    bad = [*_told_wrong(run, cards), *_loopback(run)]
    odd = [*_virtual(run), *_slow_card(facts, run, cards)]
    if not bad and not odd:
        names = sorted({name for _, _, name in _chosen(run)})
        return passed(", ".join(names)) if names else skip("no log and no setting names an interface")
    found = (bad or odd)[0]
    verdict = fail if bad else warn
    return verdict(
        "the interface that leads to the other nodes",
        found,
        details=(*bad, *odd),
        evidence=fact("groups.transport.interface", found),
        params=_best_card(cards),
    )


def _cards(facts: Facts, node: str) -> tuple[Card, ...]:
    """The interfaces of a node, as the survey of the cluster saw them."""
    members = facts.cluster.value.members if facts.cluster.value is not None else ()
    return next((m.machine.value.cards for m in members if m.name == node and m.machine.value is not None), ())


def _chosen(run: CollectiveFacts) -> list[tuple[int, str, str]]:
    """(rank, node, interface) as NCCL's log says, for groups of several nodes."""
    node_of = {rank.rank: rank.node for rank in run.ranks}
    found = {
        (int(rank), node_of.get(int(rank), ""), name)
        for _, transport in transports(several(run))
        for rank, name in transport.rank_interfaces.items()
        if rank.isdecimal()
    }
    return sorted(found)


def _told_wrong(run: CollectiveFacts, cards: dict[str, tuple[Card, ...]]) -> list[str]:
    """Settings that name no interface of their node."""
    found: list[str] = []
    for node, mine in cards.items():
        names = [card.name for card in mine]
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            value = run.settings.get(node, {}).get(variable, "")
            wanted = [name for name in value.lstrip("=").split(",") if name.strip()]  # a space counts
            if not wanted or not names or (value.startswith("^") and variable.startswith("NCCL")):
                continue
            exact = variable.startswith("GLOO") or value.startswith("=")
            if not any(name == one if exact else name.startswith(one) for name in names for one in wanted):
                found.append(f"{variable}={quote(value)} on {node}, which has {listed(names)}")
    return found


def _loopback(run: CollectiveFacts) -> list[str]:
    return [f"{name} on {rank_name(run, rank)}" for rank, _, name in _chosen(run) if name == "lo"]


def _virtual(run: CollectiveFacts) -> list[str]:
    by_log = {f"{name} on {node}" for _, node, name in _chosen(run) if _VIRTUAL.match(name)}
    told = {
        f"{variable}={value} on {node}"
        for node, settings in run.settings.items()
        for variable, value in settings.items()
        if variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") and _VIRTUAL.match(value.lstrip("="))
    }
    return sorted(by_log) + sorted(told)


def _slow_card(facts: Facts, run: CollectiveFacts, cards: dict[str, tuple[Card, ...]]) -> list[str]:
    """Where sockets carry the data and should: a card that is much slower than another one of the node."""
    if not any(t.network and not is_rdma(t.network) for _, t in transports(several(run))):
        return []
    found: set[str] = set()
    for _, node, name in _chosen(run):
        speeds = {card.name: card.speed_mbps for card in cards.get(node, ()) if card.speed_mbps > 0}
        fastest = max(speeds, key=lambda card: speeds[card], default="")
        if name in speeds and speeds[fastest] >= _SLOW_PART * speeds[name] and not active_rates(facts, node):
            found.add(f"{name} ({speeds[name] / 1000:g} Gb/s) on {node}, where {fastest} has "
                      f"{speeds[fastest] / 1000:g} Gb/s")  # fmt: skip
    return sorted(found)


def _best_card(cards: dict[str, tuple[Card, ...]]) -> dict[str, str]:
    """The playbook's `interface`: one that all nodes have and that is neither loopback nor a bridge, the fastest."""
    common = set[str].intersection(*({card.name for card in mine} for mine in cards.values())) if cards else set[str]()
    speeds = {c.name: c.speed_mbps for mine in cards.values() for c in mine
              if c.name in common and c.name != "lo" and not _VIRTUAL.match(c.name)}  # fmt: skip
    best = max(speeds, key=lambda name: (speeds[name], name), default="")
    return {"interface": best} if best else {}


@check("NCL052", "All ranks run the same libraries", needs=_NEEDS, playbook="nccl-versions-differ",
       problem="Ranks run different libraries")  # fmt: skip
def same_versions(facts: Facts) -> Verdict:
    """Compares the versions that the ranks report.

    What it does:
        NCCL must be the same everywhere; torch, CUDA or ROCm, the driver and Python should be. The minority is named.

    Why it matters:
        Two versions of NCCL end in "Mismatched NCCL version detected", or in a hang with older ones; other differences
        give results that differ between nodes.
    """
    run = measured(facts)
    nodes = {rank.node for rank in run.ranks}
    if len(nodes) < 2:
        return skip("one node alone has nothing to agree with")
    bad, odd = _differing(run, _MUST_AGREE), _differing(run, _SHOULD_AGREE)
    if not bad and not odd:
        first = run.ranks[0].versions
        return passed(", ".join(f"{name} {first[name]}" for name in (*_MUST_AGREE, *_SHOULD_AGREE) if name in first))
    verdict = fail if bad else warn
    return verdict(
        f"the same versions on {len(nodes)} nodes",
        listed([*bad, *odd]),
        details=(*bad, *odd),
        evidence=fact("ranks.versions", (bad or odd)[0]),
    )


def _differing(run: CollectiveFacts, names: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for name in names:
        nodes: dict[str, set[str]] = {}
        for rank in run.ranks:
            if rank.versions.get(name):
                nodes.setdefault(rank.versions[name], set()).add(rank.node)
        if len(nodes) > 1:
            found.append(f"{name} " + ", ".join(_share(version, nodes[version]) for version in _by_size(nodes)))
    return found


def _by_size(nodes: dict[str, set[str]]) -> list[str]:
    return sorted(nodes, key=lambda value: (-len(nodes[value]), value))


def _share(value: str, nodes: set[str]) -> str:
    where = listed(sorted(nodes)) if len(nodes) <= 3 else f"{len(nodes)} nodes"
    return f"{value} on {where}"


@check("NCL053", "The nodes have the same settings", needs=_NEEDS, playbook="nccl-versions-differ",
       problem="The nodes have different settings")  # fmt: skip
def same_settings(facts: Facts) -> Verdict:
    """Compares the NCCL, gloo and torch variables in force on the nodes.

    What it does:
        A variable with different values, or set on some nodes only, is named with its minority. Names of interfaces,
        cards and files may differ: they are only told.

    Why it matters:
        Algorithm, protocol and channels must be chosen alike on all ranks; where they are not, ranks hang or get wrong
        results.
    """
    run = measured(facts)
    if len(run.settings) < 2:
        return skip("the settings of fewer than two nodes are known")
    names = sorted({name for settings in run.settings.values() for name in settings})
    differing: dict[str, str] = {}
    for name in names:
        nodes: dict[str, set[str]] = {}
        for node, settings in run.settings.items():
            nodes.setdefault(settings.get(name, "not set"), set()).add(node)
        if len(nodes) > 1:
            differing[name] = f"{name}: " + ", ".join(_share(value, nodes[value]) for value in _by_size(nodes))
    bad = [text for name, text in differing.items() if name not in _OWN]
    if bad:
        return warn(
            f"the same settings on {len(run.settings)} nodes",
            listed(bad),
            details=tuple(differing.values()),
            evidence=fact("settings", bad[0]),
        )
    if differing:
        return info(f"differ, as they may: {listed(list(differing.values()))}")
    return passed(f"{len(names)} variables, the same on {len(run.settings)} nodes")


@check("NCL054", "NCCL's RAS service reports no problem", needs=_NEEDS, playbook="nccl-ras-report",
       caused_by=("NCL033", "NCL034", "NCL035"),
       problem="NCCL's RAS service reports a problem")  # fmt: skip
def ras_is_quiet(facts: Facts) -> Verdict:
    """Reads the status that NCCL's own RAS service gives of the running ranks.

    What it does:
        Asks the service on localhost:28028 (NCCL 2.24 or later) while the ranks run: dead or silent processes, errors,
        ranks in different states. From 2.31 on it also compares GPUs, drivers, ECC counters, NVLinks and settings.

    Why it matters:
        NCCL knows which of its processes does not answer before any watchdog does.
    """
    ras = measured(facts).ras
    if ras.value is None:
        reason = why_missing(ras)
        return skip(f"RAS: {reason.reason}" if reason is not None else "RAS: no answer")
    if not ras.value.problems:
        return passed(f"NCCL {ras.value.version}: nothing reported")
    return warn(
        "a report without problems",
        listed(list(ras.value.problems)),
        details=ras.value.problems,
        evidence=fact("ras.problems", ras.value.problems[0], "NCCL RAS"),
    )


@check("NCL055", "NCCL wrote no warnings", needs=_NEEDS, playbook="nccl-ras-report",
       caused_by=("NCL034", "NCL035", "NCL044"),
       problem="NCCL wrote warnings")  # fmt: skip
def no_warnings(facts: Facts) -> Verdict:
    """Collects the WARN lines, and those of its active diagnostics, from NCCL's log of the measurement.

    What it does:
        Each line is shown once, with the rank that wrote it.

    Why it matters:
        NCCL warns of what will stop a longer run: link errors that it retried, memory that it could not register, P2P
        that it gave up.
    """
    run = measured(facts)
    read = transports(run.groups)
    if not read:
        return skip("no log of NCCL was read")
    lines = list(dict.fromkeys(line for _, transport in read for line in transport.warnings))
    if not lines:
        return passed(f"the logs of {len(read)} groups have none")
    return warn(
        "a log without warnings",
        f"{len(lines)} lines: {lines[0]}",
        details=tuple(lines[:40]),
        evidence=fact("groups.transport.warnings", lines[0], "NCCL's log"),
    )
