"""Network cards and limits of the nodes, compared."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.cluster.nodes import by_name, differing, gib, machines, minority
from rlcheck.facts.cluster import RdmaCard
from rlcheck.facts.document import Facts

_UNLIMITED = -1


def _rdma_text(cards: tuple[RdmaCard, ...]) -> str:
    """`8 × InfiniBand 400 Gb/s`, and what is not active."""
    active = [card for card in cards if card.state.upper() == "ACTIVE"]
    kinds: dict[str, int] = {}
    for card in active:
        kind = f"{card.link_layer or 'RDMA'} {card.rate_gbps:.0f} Gb/s"
        kinds[kind] = kinds.get(kind, 0) + 1
    parts = [f"{number} × {kind}" for kind, number in sorted(kinds.items())]
    down = sorted(f"{card.name} {card.state or '?'}" for card in cards if card not in active)
    return ", ".join([*parts, *down]) or "no RDMA card"


@check("RAY060", "The nodes' network cards are alike", needs=("cluster",), playbook="cards-differ-across-nodes")
def cards(facts: Facts) -> Verdict:
    """Compares RDMA ports (number, state, link layer, rate) and the MTU of each node's own interface.

    What it does:
        Looks at all nodes with GPUs, or at all when none has any. The interface is the one that carries the address by
        which the node is known.

    Why it matters:
        Collectives go at the speed of the slowest card; a rail that one node lacks makes NCCL wait on channels without
        an answer. With mixed MTUs small messages pass and large ones hang.
    """
    found = machines(facts)
    with_gpus = {node: machine for node, machine in found.items() if machine.gpus.value}
    looked_at = with_gpus if len(with_gpus) > 1 else found
    if len(looked_at) < 2:
        return skip("fewer than two nodes answered")
    rdma = {node: _rdma_text(machine.rdma) for node, machine in looked_at.items()}
    members = by_name(facts)
    mtus = {
        node: f"MTU {card.mtu}"
        for node, machine in looked_at.items()
        for card in machine.cards
        if card.address == members[node].address and card.mtu
    }
    odd = [text for values in (rdma, mtus) if (text := differing(values))]
    if not odd:
        return passed(f"{next(iter(rdma.values()))} on each of {len(rdma)} nodes")
    nodes = [*minority(rdma), *minority(mtus)] or list(looked_at)
    return warn(
        "the same cards, rates and MTU on all nodes",
        "; ".join(odd),
        evidence=tuple(evidence(f"cluster.members[{node}].machine.rdma", rdma[node], "/sys/class/infiniband")
                       for node in nodes[:8]),
        params={"node": nodes[0]},
    )  # fmt: skip


@check("RAY061", "The nodes' limits are alike", needs=("cluster",), playbook="environment-differs",
       problem="The nodes' limits differ")  # fmt: skip
def limits(facts: Facts) -> Verdict:
    """Compares locked memory and open files, as the processes of the node have them.

    What it does:
        Warns when locked memory is unlimited on some nodes and not on others that have RDMA cards, or when open files
        differ more than twofold. Other differences are noted.

    Why it matters:
        Limits come from how the daemon on that node was started (Ray, sshd, slurmd), not from your shell. A node with
        less locked memory stops with "ibv_reg_mr failed with error Cannot allocate memory" while all others run.
    """
    found = machines(facts)
    if len(found) < 2:
        return skip("fewer than two nodes answered")
    memlock = {node: _size(machine.memlock_bytes) for node, machine in found.items() if machine.memlock_bytes}
    files = {node: _count(machine.nofile) for node, machine in found.items() if machine.nofile}
    texts = {"locked memory": differing(memlock), "open files": differing(files)}
    odd = [f"{name}: {text}" for name, text in texts.items() if text]
    if not odd:
        return passed(f"the same on {len(found)} nodes")
    pinned = any(machine.rdma and machine.memlock_bytes > 0 for machine in found.values()) and texts["locked memory"]
    numbers = [machine.nofile for machine in found.values() if machine.nofile > 0]
    few = texts["open files"] and numbers and max(numbers) > 2 * min(numbers)
    nodes = [*minority(memlock), *minority(files)] or list(found)
    proof = tuple(evidence(f"cluster.members[{node}].machine", f"{memlock.get(node, '?')}, {files.get(node, '?')}",
                           "getrlimit") for node in nodes[:8])  # fmt: skip
    if pinned or few:
        return warn("the same limits on all nodes", "; ".join(odd), evidence=proof, params={"node": nodes[0]})
    return info(f"nodes differ in {'; '.join(odd)}", evidence=proof)


def _size(value: int) -> str:
    return "unlimited" if value == _UNLIMITED else gib(value)


def _count(value: int) -> str:
    return "unlimited" if value == _UNLIMITED else str(value)
