"""Which nodes are paired in which round: a tournament by the circle method, and new partners for suspects. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Pair = tuple[str, str]


def tournament(nodes: Sequence[str]) -> tuple[tuple[Pair, ...], ...]:
    """Rounds in which every node meets every other one once, and nobody twice in a round.

    n - 1 rounds for an even number of nodes, n for an odd one (each node sits out once). Two rounds in a row, taken
    together, are one ring through all nodes.
    """
    seats: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    fixed, circle = seats[:1], seats[1:]
    rounds: list[tuple[Pair, ...]] = []
    for turn in range(len(circle)):
        order = fixed + circle[turn:] + circle[:turn]
        facing = [(order[i], order[-1 - i]) for i in range(len(order) // 2)]
        rounds.append(tuple((a, b) for a, b in facing if a is not None and b is not None))
    return tuple(rounds)


def quick(nodes: Sequence[str]) -> tuple[tuple[Pair, ...], ...]:
    """Rounds after which every node has met two partners, or all others where there are fewer."""
    rounds = tournament(nodes)
    chosen, rest = list(rounds[:2]), rounds[2:]
    if len(nodes) % 2 and rest:
        # Who sat out once meets somebody of a later round; the others have their two partners already.
        short = {node for node in nodes if sum(node in pair for pairs in chosen for pair in pairs) < 2}
        chosen += _until_met(short, rest)
    return tuple(pairs for pairs in chosen if pairs)


def _until_met(short: set[str], rounds: Sequence[tuple[Pair, ...]]) -> list[tuple[Pair, ...]]:
    found: list[tuple[Pair, ...]] = []
    missing = set(short)
    for pairs in rounds:
        useful = tuple(pair for pair in pairs if missing & set(pair))
        if useful:
            found.append(useful)
            missing -= {node for pair in useful for node in pair}
        if not missing:
            break
    return found


def disjoint(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """As many of the pairs as fit into one round, the first ones first."""
    busy: set[str] = set()
    chosen: list[Pair] = []
    for pair in pairs:
        if not busy & set(pair):
            busy.update(pair)
            chosen.append(pair)
    return tuple(chosen)


def again(suspects: Collection[str], good: Sequence[str], met: Collection[Pair]) -> tuple[Pair, ...]:
    """One round that pairs each suspect with a known-good node, one that it has not met if there is any.

    A suspect for whom no good node is left is not paired.
    """
    known = {frozenset(pair) for pair in met}
    free = list(good)
    pairs: list[Pair] = []
    for suspect in sorted(suspects):
        others = [node for node in free if node != suspect]
        new = [node for node in others if frozenset((suspect, node)) not in known]
        if others:
            partner = (new or others)[0]
            free.remove(partner)
            pairs.append((suspect, partner))
    return tuple(pairs)
