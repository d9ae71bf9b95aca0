"""Compares what was recorded with what the reference finds, and says where the two differ."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rlcheck.facts.capsule import CapsuleRow
from rlcheck.facts.step import Link

FACTOR = 20.0
"""A difference of so many times what rounding did to the same numbers here is none of rounding. Rounding is measured
on the spot, by the reference in the run's format against float64."""
SPREAD = 4.0
"""The same for the root mean square in formats below float32, where single numbers are too coarse to judge by."""
EPS = float(torch.finfo(torch.float32).eps)
GONE = 0.05
"""A cause explains a difference if it leaves no more than this share of it."""
_MOST_PLACES = 5


class Unknown(Exception):
    """Why a link cannot be recomputed."""


def same(name: str, compared: int, said: str = "") -> Link:
    """A link without a difference."""
    return Link(name=name, status="same", said=said, compared=compared)


def absent(name: str, said: str) -> Link:
    """A link that this step has not: SAID why."""
    return Link(name=name, status="absent", said=said)


def differs(name: str, said: str, compared: int, where: Iterable[str] = (), causes: Iterable[str] = ()) -> Link:
    """A link with a difference of things that are no numbers: ids, texts, names."""
    places = tuple(where)[:_MOST_PLACES]
    return Link(name=name, status="differs", said=said, compared=compared, where=places, causes=tuple(causes))


def each(name: str, what: Iterable[tuple[str, Callable[[], Link]]]) -> Link:
    """The links of parts, each by its words: one that cannot be recomputed hides no other.

    Raises:
        Unknown: none can be.
    """
    links: list[Link] = []
    for words, make in what:
        try:
            links.append(make())
        except Unknown as error:
            links.append(Link(name=name, status="unknown", said=f"{words}: {error}"))
    if not links:
        raise Unknown("nothing was kept of it")
    return mixed(name, links)


def mixed(name: str, links: Sequence[Link]) -> Link:
    """LINKS that are parts of one, in order: the first that differs, or all together."""
    rank = {"differs": 3, "unknown": 2, "same": 1, "absent": 0}
    worst = max(links, key=lambda link: rank[link.status])
    status: Literal["same", "differs", "unknown", "absent"] = worst.status
    if status == "unknown" and any(link.status == "same" and link.compared for link in links):
        status = "same"
    number = max((link for link in links if link.bound), key=lambda link: (link.largest or 0) / (link.bound or 1),
                 default=worst) if status == "same" else worst  # fmt: skip
    said = "; ".join(dict.fromkeys(link.said for link in ([worst] if status == "differs" else links) if link.said))
    return Link(
        name=name,
        status=status,
        said=said,
        compared=sum(link.compared for link in links),
        largest=number.largest,
        bound=number.bound,
        unit=number.unit,
        where=worst.where,
        causes=worst.causes,
    )


@dataclass(frozen=True)
class Numbers:
    """FOUND in the capsule, WANTED by the reference, both `[B, R]` under MASK; NOISE: what rounding does to them."""

    found: Tensor
    wanted: Tensor
    noise: Tensor
    mask: Tensor
    coarse: bool = False
    """Of a format below float32."""
    usual: float | None = None
    """Root mean square of what rounding does to them; None: as NOISE has it."""

    @property
    def gaps(self) -> Tensor:
        """|found - wanted|, 0 outside the mask, infinite where found is not finite."""
        gap = (self.found.double() - self.wanted.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        return torch.where(self.mask, gap, torch.zeros_like(gap))

    @property
    def bounds(self) -> Tensor:
        """What rounding explains at most, of each number."""
        sizes = torch.where(self.mask & self.wanted.isfinite(), self.wanted, 0).abs().double()
        floor = 4 * EPS * (sizes.amax() if sizes.numel() else torch.tensor(0.0)).clamp(min=1e-9)
        return torch.maximum(FACTOR * self.noise.double(), floor).expand(self.gaps.shape)

    @property
    def wrong(self) -> Tensor:
        """Where rounding does not explain it, bool `[B, R]`."""
        gaps, bounds = self.gaps, self.bounds
        wrong = ~(gaps <= bounds) & self.mask
        usual = rms(self.noise.expand_as(gaps)[self.mask]) if self.usual is None else self.usual
        if self.coarse and not bool(wrong.any()) and rms(gaps[self.mask]) > SPREAD * usual:
            return gaps > gaps[self.mask].quantile(0.5)
        return wrong


def rms(values: Tensor) -> float:
    """Root mean square; 0 of nothing."""
    return float(values.double().square().mean().sqrt()) if values.numel() else 0.0


def judged(
    name: str, numbers: Numbers, unit: str, what: str, where: Sequence[str] = (), causes: Sequence[str] = ()
) -> Link:
    """NUMBERS as a link; WHAT they are, in the plural."""
    compared, gaps, bounds, wrong = int(numbers.mask.sum()), numbers.gaps, numbers.bounds, numbers.wrong
    largest = float(gaps.max()) if gaps.numel() else 0.0
    count = int(wrong.sum())
    at = int(torch.where(wrong, gaps, -1.0).argmax()) if count else 0
    bound = float(bounds.reshape(-1)[at]) if count else float(bounds.max()) if compared else 0.0
    finite = largest if largest < torch.inf else None
    said = ""
    if count:
        said = (
            f"{count} of {compared} {what} differ, by up to {largest:.3g} {unit}".rstrip()
            + f"; rounding explains {bound:.2g}"
        )
        if finite is None:
            bad = int((gaps == torch.inf).sum())
            said = f"{bad} of {compared} {what} are not finite, in the capsule or by the reference"
    return Link(
        name=name,
        status="differs" if count else "same" if compared else "unknown",
        said=said if compared else f"no {what} were kept",
        compared=compared,
        largest=finite,
        bound=bound,
        unit=unit,
        where=tuple(where)[:_MOST_PLACES],
        causes=tuple(causes),
    )


def row_name(row: CapsuleRow, number: int) -> str:
    """How a row is named to a reader."""
    return f"row {number} ({row.uid}, sample {row.sample})"


def places(rows: Sequence[CapsuleRow], numbers: Numbers, ranks: Mapping[int, int], mask: Tensor) -> list[str]:
    """Where NUMBERS differ: the share of rows, ranks, positions in common, then the worst rows."""
    wrong, gaps = numbers.wrong, numbers.gaps
    bad: Any = wrong.any(-1).nonzero().flatten().tolist()
    if not bad:
        return []
    having: Any = mask.any(-1).nonzero().flatten().tolist()
    lines = [f"all {len(having)} rows" if len(bad) == len(having) else f"{len(bad)} of {len(having)} rows"]
    on = sorted({ranks[row] for row in bad if row in ranks})
    everyone = sorted(set(ranks.values()))
    if on and len(on) < len(everyone):
        lines.append(f"only on rank {', '.join(map(str, on))} of {len(everyone)}")
    lines += _positions(wrong, mask, bad)
    worst: Any = gaps.where(wrong, 0.0).amax(-1).sort(descending=True, stable=True).indices.tolist()
    for row in worst[: min(3, len(bad))]:
        token = int(gaps[row].where(wrong[row], 0.0).argmax())
        lines.append(f"{row_name(rows[row], row)}, token {token}: {float(numbers.found[row, token]):.6g}, "
                     f"the reference {float(numbers.wanted[row, token]):.6g}")  # fmt: skip
    return lines


def _positions(wrong: Tensor, mask: Tensor, bad: Sequence[int]) -> list[str]:
    at: Any = [wrong[row].nonzero().flatten().tolist() for row in bad]
    real: Any = [mask[row].nonzero().flatten().tolist() for row in bad]
    if any(len(tokens) > 1 for tokens in real):
        if all(places == tokens[-1:] for places, tokens in zip(at, real, strict=True)):
            return ["only at the last token of each"]
        if all(places == tokens[:1] for places, tokens in zip(at, real, strict=True)):
            return ["only at the first token of each"]
        if (first := min(places[0] for places in at)) > 0 and len(bad) > 2:
            return [f"only from token {first} on"]
    return []


def explained(numbers: Numbers, tries: Mapping[str, Tensor]) -> list[str]:
    """Those of TRIES, what the numbers would be by other causes, that make the difference go away."""
    where = numbers.wrong.any(-1, keepdim=True) & numbers.mask
    if not bool(where.any()):
        return []
    whole, allowed = rms(numbers.gaps[where].clamp(max=1e30)), float(numbers.bounds[where].max())
    left: dict[str, float] = {}
    for name, tried in tries.items():
        known = where & ~tried.isnan()
        if 2 * int(known.sum()) >= int(where.sum()):
            left[name] = rms((numbers.found.double() - tried.double())[known].nan_to_num(nan=1e30))
    good = [
        name
        for name, rest in sorted(left.items(), key=lambda one: one[1])
        if rest <= max(GONE * whole, allowed / FACTOR)
    ]
    best = left[good[0]] if good else 0.0
    return [name for name in good if left[name] <= 3 * best + allowed / 4]
