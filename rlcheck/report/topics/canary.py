"""What a live server computes beside a saved checkpoint, for a reader."""

from __future__ import annotations

from rlcheck.facts.canary import CanaryFacts, Distance
from rlcheck.facts.document import Facts
from rlcheck.finding import Exhibit


def headline(facts: Facts) -> str:
    """The server in a line."""
    canary = facts.canary.value
    if canary is None:
        return ""
    name = f"{canary.engine} {canary.version}".strip() or "server"
    direct = canary.direct.value
    apart = "" if direct is None else f", apart by {direct.mean:.2g} in the mean"
    return f"{name} at {canary.url}, {canary.model}{apart}"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """How far apart server and checkpoints are; nothing where they were not compared."""
    canary = facts.canary.value
    if canary is None or canary.direct.value is None:
        return ()
    rows = [_row("prompts, the checkpoint", canary.direct.value)]
    rows += [_row(f"prompts, {other.name}", other) for other in canary.others]
    if canary.cached.value is not None:
        rows.append(_row(f"behind {canary.prefix_tokens} cached tokens", canary.cached.value))
    if canary.rounding.value is not None:
        rows.append(_row(f"rounding: {canary.rounding.value.name}", canary.rounding.value))
    rows.append(("what rounding explains", f"{canary.bound_mean:.2g}", f"{canary.bound_largest:.2g}"))
    return (Exhibit(title="|difference of log-probabilities|", columns=("of", "mean", "largest"), rows=tuple(rows),
                    notes=(*_where(canary), *canary.notes)),)  # fmt: skip


def _row(name: str, distance: Distance) -> tuple[str, str, str]:
    return name, f"{distance.mean:.2g}", f"{distance.largest:.2g}"


def _where(canary: CanaryFacts) -> tuple[str, ...]:
    adapter = f" with {canary.adapter}" if canary.adapter else ""
    return (f"{canary.checkpoint}{adapter}",)
