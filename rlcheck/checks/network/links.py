"""Ordinary network cards: MTU and links."""

from __future__ import annotations

from collections import Counter

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import has_address, network, usable
from rlcheck.facts.network import Interface


def _cards(facts: Facts) -> list[Interface]:
    return [i for i in need(network(facts).interfaces) if i.pci and i.kind in ("ethernet", "infiniband")]


@check("NET020", "Equal network cards have equal MTU", needs=("network.interfaces",), playbook="mtu",
       problem="Equal network cards have different MTUs")  # fmt: skip
def equal_mtu(facts: Facts) -> Verdict:
    """Compares the MTU of network cards of the same driver and speed.

    What it does:
        Takes cards that are up and have an address, and reports those whose MTU differs from that of most cards of the
        same driver and speed. The card of the default route is left out: it serves another network.

    Why it matters:
        One card left at 1500 among cards at 9000 is slow at best; when the switches drop what it or its peers send,
        small messages pass and the first large one hangs.
    """
    groups: dict[tuple[str, int], list[Interface]] = {}
    general = {route.interface for route in value_or(network(facts).default_routes, ())}
    for card in _cards(facts):
        if usable(card) and card.name not in general and card.mtu > 0 and card.speed_mbps > 0:
            groups.setdefault((card.driver, card.speed_mbps), []).append(card)
    compared = [group for group in groups.values() if len(group) > 1]
    if not compared:
        return skip("fewer than two network cards of the same speed in use")
    odd: list[tuple[Interface, int]] = []
    unclear: list[Interface] = []
    for group in compared:
        usual, count = max(Counter(card.mtu for card in group).items(), key=lambda item: (item[1], item[0]))
        if 2 * count > len(group):
            odd += [(card, usual) for card in group if card.mtu != usual]
        else:
            unclear += group
    if unclear and not odd:
        shown = ", ".join(f"{card.mtu} on {card.name}" for card in unclear[:8])
        return info(f"{shown}: right if these are cards of different networks")
    if not odd:
        return passed(f"MTU {', '.join(str(group[0].mtu) for group in compared)} on cards of equal speed")
    card, usual = odd[0]
    return warn(
        f"MTU {usual} as on the other cards of this kind",
        ", ".join(f"{card.mtu} on {card.name}" for card, _ in odd[:8]),
        evidence=tuple(
            evidence(f"network.interfaces.{c.name}", c.mtu, f"/sys/class/net/{c.name}/mtu") for c, _ in odd[:8]
        ),
        params={"interface": card.name, "mtu": str(usual)},
    )


@check("NET021", "Network cards with an address have a link", needs=("network.interfaces",), playbook="rdma-link-down",
       problem="A configured network card has no link")  # fmt: skip
def cards_with_link(facts: Facts) -> Verdict:
    """Finds network cards that are configured but have no link.

    What it does:
        A card that has an address and is switched on, but whose link is down. Cards without an address are taken for
        unused.

    Why it matters:
        Programs that choose by address or by name pick such a card and then wait for connections that never come.
    """
    cards = [card for card in _cards(facts) if card.up and has_address(card)]
    if not cards:
        return skip("no network card with an address")
    down = [card for card in cards if card.operstate in ("down", "lowerlayerdown")]
    if not down:
        return passed(f"{len(cards)} configured network cards, all with a link")
    return warn(
        "a link on every configured network card",
        "none on " + ", ".join(f"{card.name} ({card.ipv4 or card.ipv6[0]})" for card in down[:8]),
        evidence=tuple(evidence(f"network.interfaces.{c.name}", c.operstate, f"/sys/class/net/{c.name}/operstate")
                       for c in down[:8]),
        params={"interface": down[0].name},
    )  # fmt: skip
