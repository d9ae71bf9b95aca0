"""The environment variables of the nodes: equal where they have to be, and interface names that fit each node."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.cluster.nodes import by_name, differing, machines, minority, names, tables
from rlcheck.facts.cluster import Card, MachineFacts
from rlcheck.facts.document import Facts

_LIMIT = 60
# Agents leave it out of the cards, since nobody else can use it; the variables can name it all the same.
_LOOPBACK = Card(name="lo", address="127.0.0.1")


def _matters(name: str) -> bool:
    rules = tables().environ
    if name in rules.own or name.endswith("_RANK"):
        return False
    return name in rules.matter_exact or name.startswith(rules.matter)


@check("RAY057", "The nodes' environment variables agree", needs=("cluster",), playbook="environment-differs",
       problem="The nodes run with different environment variables")  # fmt: skip
def environment(facts: Facts) -> Verdict:
    """Compares the variables that libraries act on over all nodes.

    What it does:
        Compares NCCL_*, GLOO_*, TORCH_NCCL_*, UCX_*, RAY_*, VLLM_* and the like, PYTHONPATH, LD_LIBRARY_PATH, the cache
        of Hugging Face and the proxies. Leaves out what has to differ: ranks, addresses, device lists, interface names.

    Why it matters:
        Most of these are read where a process runs, not where the run is started. One node that sets NCCL_IB_DISABLE or
        NCCL_ALGO while the others do not makes ranks wait for each other, without a message.
    """
    found = machines(facts)
    if len(found) < 2:
        return skip("fewer than two nodes answered")
    everything = sorted({name for machine in found.values() for name in machine.environ if _matters(name)})
    odd: dict[str, str] = {}
    for name in everything:
        values = {node: _shown(machine.environ.get(name)) for node, machine in found.items()}
        text = differing(values)
        if text:
            odd[name] = text
    if not odd:
        return passed(f"{len(everything)} variables that matter, the same on {len(found)} nodes")
    lines = tuple(f"{name}: {text}" for name, text in odd.items())
    first = next(iter(odd))
    values = {node: _shown(machine.environ.get(first)) for node, machine in found.items()}
    return warn(
        "the same value, or none, on all nodes",
        lines[0] if len(lines) == 1 else f"{len(lines)} variables that differ: {names(list(odd))}",
        details=lines if len(lines) > 1 else (),
        evidence=tuple(evidence(f"cluster.members[].machine.environ[{name}]", text) for name, text in odd.items()),
        params={"variable": first, "node": (minority(values) or list(values))[0]},
    )


def _shown(value: str | None) -> str:
    if value is None:
        return "none"
    return (value if len(value) <= _LIMIT else value[: _LIMIT - 1] + "…") or "an empty value"


def nccl_cards(pattern: str, cards: tuple[Card, ...]) -> list[Card]:
    """The cards that NCCL's syntax selects: `^` excludes, `=` asks for exact names, else prefixes."""
    exclude, body = pattern.startswith("^"), pattern.removeprefix("^")
    exact = body.startswith("=")
    tokens = [token.partition(":")[0] for token in body.removeprefix("=").split(",") if token]
    return [
        card
        for card in cards
        if any(card.name == token if exact else card.name.startswith(token) for token in tokens) != exclude
    ]


def gloo_cards(pattern: str, cards: tuple[Card, ...]) -> list[Card]:
    """The cards that Gloo selects: those whose whole name is in the list."""
    return [card for card in cards if card.name in pattern.split(",")]


def _interfaces(facts: Facts, variable: str) -> Verdict:
    """What both variables are asked: does each node have such a card, and does another node reach its address."""
    found = {node: machine for node, machine in machines(facts).items() if machine.environ.get(variable)}
    if not found:
        return skip(f"{variable} is set on no node")
    select = nccl_cards if variable.startswith("NCCL") else gloo_cards
    cards = {node: (*one.cards, _LOOPBACK) for node, one in found.items() if one.cards}
    chosen = {node: select(found[node].environ[variable], there) for node, there in cards.items()}
    where = tuple(evidence(f"cluster.members[{node}].machine.environ[{variable}]", machine.environ[variable])
                  for node, machine in list(found.items())[:8])  # fmt: skip
    without = [node for node, cards in chosen.items() if not cards]
    if without:
        has = ", ".join(card.name for card in found[without[0]].cards[:6])
        return fail(
            f"an interface named by {variable} on every node",
            f"none on {names(without)} ({without[0]}: {found[without[0]].environ[variable]}, and it has {has})",
            evidence=where,
            params=_params(facts, without[0]),
        )
    local = _unreachable(facts, chosen)
    if local:
        node, card = next(iter(local.items()))
        return fail(
            f"{variable} to name interfaces by which the nodes reach each other",
            f"{card.name} ({card.address}) on {names(list(local))}, {_why_local(card)}",
            evidence=where,
            params=_params(facts, node),
        )
    members = by_name(facts)
    off = [node for node, cards in chosen.items() if members[node].address not in {card.address for card in cards}]
    if off and len(off) < len(chosen):
        return warn(
            "the same network on every node",
            f"{variable} picks another network than that of the node's address on {names(off)}",
            evidence=where,
            params=_params(facts, off[0]),
        )
    if off:
        cards = sorted({card.name for node in off for card in chosen[node][:1]})
        return info(f"{variable} picks another network ({', '.join(cards[:4])}) than the one the nodes are known by")
    return passed(f"{variable} names an interface with the node's own address on {len(chosen)} nodes")


def _is_loopback(card: Card) -> bool:
    return card.name == "lo" or card.address.startswith("127.") or card.address == "::1"


def _unreachable(facts: Facts, chosen: dict[str, list[Card]]) -> dict[str, Card]:
    """Nodes on which all that is chosen has an address that cannot be that of one machine."""
    users: dict[str, int] = {}
    for machine in machines(facts).values():
        for address in {card.address for card in machine.cards}:
            users[address] = users.get(address, 0) + 1
    if len(machines(facts)) < 2:
        return {}
    # An address that two nodes have (docker0 is 172.17.0.1 everywhere) leads to neither from the other.
    return {
        node: cards[0]
        for node, cards in chosen.items()
        if all(_is_loopback(card) or users.get(card.address, 0) > 1 for card in cards)
    }


def _why_local(card: Card) -> str:
    return "the loopback interface" if _is_loopback(card) else "an address that several nodes have, such as docker0's"


def _params(facts: Facts, node: str) -> dict[str, str]:
    """The interface of that node which carries its address, or an honest blank."""
    address = by_name(facts)[node].address
    machine: MachineFacts = machines(facts)[node]
    right = [card.name for card in machine.cards if card.address == address]
    return {"node": node, **({"interface": right[0]} if right else {})}


@check("RAY058", "NCCL_SOCKET_IFNAME fits every node", needs=("cluster",), playbook="socket-ifname",
       problem="NCCL_SOCKET_IFNAME does not fit every node")  # fmt: skip
def nccl_interfaces(facts: Facts) -> Verdict:
    """Applies each node's NCCL_SOCKET_IFNAME to that node's interfaces, as NCCL does.

    What it does:
        Fails when nothing is selected on some node, or only loopback or an address that several nodes have (docker0).
        Warns when some nodes pick the network by which they are known and others a different one.

    Why it matters:
        Interface names differ between machines. NCCL stops with "Bootstrap : no socket interface found" on the node
        where nothing matches, and hangs where the interface leads nowhere.
    """
    return _interfaces(facts, "NCCL_SOCKET_IFNAME")


@check("RAY059", "GLOO_SOCKET_IFNAME fits every node", needs=("cluster",), playbook="socket-ifname",
       problem="GLOO_SOCKET_IFNAME does not fit every node")  # fmt: skip
def gloo_interfaces(facts: Facts) -> Verdict:
    """Looks for the interfaces of GLOO_SOCKET_IFNAME on each node, by their whole names.

    What it does:
        Fails when a node has none of them, or when they are loopback or have an address that several nodes have. Warns
        when some nodes pick the network by which they are known and others a different one.

    Why it matters:
        Gloo stops with "Unable to find address for" where the name does not exist, and ranks that announce loopback or
        docker0 wait until "connectFullMesh failed".
    """
    return _interfaces(facts, "GLOO_SOCKET_IFNAME")
