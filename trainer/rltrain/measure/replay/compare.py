"""Two capsules of one step, bit against bit, in the order of computation: the first quantity that differs."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.capsule import Capsule, MiniRecord
from rlcheck.facts.step import Link
from rltrain.measure.replay.read import Kept
from rltrain.workers.fsdp.outputs import NOT_FINITE

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SHOWN = 4
FORWARD = (
    ("outputs", "actor", ()),
    ("old-log-probs", "", ("old_log_probs", "entropys")),
    ("reference-log-probs", "", ("ref_log_probs",)),
    ("critic-outputs", "critic", ()),
    ("values", "", ("values",)),
    ("advantages", "", ("token_level_rewards", "rollout_is_weights", "rollout_rs_kept", "advantages", "returns")),
)
"""Links before the update: name, the role whose modules gave outputs, fields of the batch."""


@dataclass(frozen=True)
class Pair:
    """One quantity of both capsules. `place`: its name; `at`: words for an index of it."""

    place: str
    recorded: Tensor | None
    found: Tensor | None
    at: Callable[[Sequence[int]], str] = lambda index: f"{list(index)}"


def compare(recorded: Kept, found: Kept) -> tuple[Link, ...]:
    """Links in the order of computation; those that the step does not have are left out."""
    pairs = _Pairs(recorded, found)
    links = [_judged("weights", pairs.weights((".before/", "reference/")))]
    for name, role, fields in FORWARD:
        links.append(_outputs(name, recorded.head, found.head, role) if role else _judged(name, pairs.fields(fields)))
    for role, prefix in (("critic", "critic-"), ("actor", "")):
        links += _update(pairs, role, prefix, recorded.head, found.head)
    links.append(_answers(recorded, found))
    return tuple(link for link in links if link is not None)


def not_finite(kept: Kept) -> str:
    """The first quantity of the step that holds NaN or an infinity; "" where there is none."""
    pairs = _Pairs(kept, kept)
    if place := _bad(pairs.weights((".before/", "reference/"))):
        return place
    for _, role, fields in FORWARD:
        for record in kept.head.outputs:
            for name, digest in record.digests.items():
                if role == record.role and digest.endswith(NOT_FINITE):
                    return f"the output of {name} on rank {record.rank}"
        if place := _bad(pairs.fields(fields)):
            return place
    for role in ("critic", "actor"):
        minis: tuple[MiniRecord, ...] = getattr(kept.head, role)
        for number, mini in enumerate(minis):
            if place := _bad(pairs.readings(role, number)):
                return place
            for micro in mini.micro_batches:
                if any(value is None for value in micro.terms.values()):
                    return f"the loss of the {role}'s mini batch {number} on rank {micro.rank}"
            if number == 0 and (place := _bad(pairs.weights((f"{role}.gradient/",), backward=True))):
                return place
    return _bad(pairs.weights((".after/",)))


def _bad(pairs: Iterable[Pair]) -> str:
    return next((pair.place for pair in pairs if pair.recorded is not None and not pair.recorded.isfinite().all()), "")


class _Pairs:
    """Quantities of both capsules, in order."""

    def __init__(self, recorded: Kept, found: Kept) -> None:
        self._recorded, self._found = recorded, found
        names = [name for one in recorded.head.outputs if not one.rank for name in one.digests]
        self._order = {name: number for number, name in enumerate(dict.fromkeys(names))}

    def weights(self, marks: Sequence[str], backward: bool = False) -> Iterator[Pair]:
        """Tensors whose keys hold one of MARKS, in the order in which modules compute; BACKWARD: from the end."""
        ours, theirs = self._recorded.weights, self._found.weights
        keys = [key for key in ours.keys() | theirs.keys() if any(mark in key for mark in marks)]
        for key in sorted(keys, key=self._place, reverse=backward):
            moment, _, name = key.partition("/")
            yield Pair(f"{moment} of {name}", ours.get(key), theirs.get(key))

    def _place(self, key: str) -> tuple[int, int, list[int | str]]:
        moment, _, name = key.partition("/")
        modules = [module for module in self._order if name.startswith(f"{module}.")]
        first = self._order[max(modules, key=len)] if modules else len(self._order) * ("embed" not in name)
        words: list[int | str] = [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]
        return moment.startswith("critic"), first, [*words, moment]

    def fields(self, names: Sequence[str]) -> Iterator[Pair]:
        """Fields of the batch."""
        ours, theirs = self._recorded.batch, self._found.batch
        for name in names:
            if name in ours or name in theirs:
                yield Pair(name, ours.get(name), theirs.get(name), self._token)

    def readings(self, role: str, number: int) -> Iterator[Pair]:
        """What ROLE's mini batch NUMBER computed of each token."""
        ours, theirs = self._recorded.batch, self._found.batch
        for key in sorted(key for key in ours if key.startswith(f"{role}.{number}/")):
            name = key.partition("/")[2]
            place = f"{name} of the {role}'s mini batch {number}"
            yield Pair(place, ours[key], theirs.get(key), self._token)

    @staticmethod
    def _token(index: Sequence[int]) -> str:
        return f"row {index[0]}" + (f", token {index[1]}" if len(index) > 1 else "")


def _judged(name: str, pairs: Iterable[Pair]) -> Link | None:
    """The first of PAIRS whose bits differ, and how many do; None where there are none."""
    compared, differing, total, first = 0, 0, 0, None
    for pair in pairs:
        total += 1
        compared += max((one.numel() for one in (pair.recorded, pair.found) if one is not None), default=0)
        link = _differs(name, pair)
        differing += link is not None
        first = first or link
    if first is None:
        return Link(name=name, status="same", compared=compared) if total else None
    more = f"; {differing} of {total} tensors differ" if total > 1 else ""
    return Link(name=name, status="differs", said=first.said + more, compared=compared, largest=first.largest,
                where=first.where)  # fmt: skip


def _differs(name: str, pair: Pair) -> Link | None:
    ours, theirs = pair.recorded, pair.found
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        words = [("none" if one is None else f"{one.dtype} {list(one.shape)}") for one in (ours, theirs)]
        return Link(name=name, status="differs", said=f"{pair.place}: {words[0]} was recorded, {words[1]} comes now")
    bits = [one.contiguous().view(_BITS[one.element_size()]) for one in (ours, theirs)]
    wrong = (bits[0] != bits[1]).nonzero()
    if not len(wrong):
        return None
    places: list[list[int]] = wrong[:_SHOWN].tolist()
    at = wrong.unbind(1) if ours.ndim else ()
    gap = (ours[at].double() - theirs[at].double()).abs()
    finite = gap[gap.isfinite()]
    words = f"{pair.place}: {len(wrong)} of {ours.numel()} numbers differ"
    if ours.is_floating_point():
        ulps = int((bits[0].long()[at] - bits[1].long()[at]).abs().max())
        words += f", by {ulps} ulp at most" if ulps < 1 << 16 else ""
        words += "" if len(finite) == len(gap) else f", {len(gap) - len(finite)} of them not finite"
    return Link(name=name, status="differs", said=words, largest=float(finite.max()) if len(finite) else None,
                where=tuple(f"{pair.place}, {pair.at(place)}" for place in places))  # fmt: skip


def _outputs(name: str, recorded: Capsule, found: Capsule, role: str) -> Link | None:
    """The first module of ROLE's first pass that gives other numbers."""
    theirs = {one.rank: one.digests for one in found.outputs if one.role == role}
    ours = [one for one in recorded.outputs if one.role == role and one.digests]
    if not ours:
        return None
    first: list[tuple[int, str, int]] = []
    for one in ours:
        names = list(one.digests)
        wrong = [number for number, key in enumerate(names) if theirs.get(one.rank, {}).get(key) != one.digests[key]]
        if wrong:
            first.append((wrong[0], names[wrong[0]], one.rank))
    compared = sum(len(one.digests) for one in ours)
    if not first:
        return Link(name=name, status="same", compared=compared, unit="modules")
    number, module, rank = min(first)
    said = f"{module} gives other numbers on rank {rank}; the {number} modules before it give the same"
    where = tuple(f"rank {rank}: {module}" for _, module, rank in sorted(first, key=lambda each: each[2]))
    cause = f"its weights and what it read are those of the recorded step: {module} itself computes otherwise"
    return Link(name=name, status="differs", said=said, compared=compared, unit="modules", where=where, causes=(cause,))


def _update(pairs: _Pairs, role: str, prefix: str, recorded: Capsule, found: Capsule) -> Iterator[Link | None]:
    """The links of ROLE's update: its first mini batch, the others, what is left of it."""
    ours: tuple[MiniRecord, ...] = getattr(recorded, role)
    theirs: tuple[MiniRecord, ...] = getattr(found, role)
    if not ours:
        return
    yield _judged(f"{prefix}update", pairs.readings(role, 0))
    yield _records(f"{prefix}loss", role, ours[:1], theirs[:1], _terms)
    yield _judged(f"{prefix}gradient", pairs.weights((f"{role}.gradient/",), backward=True))
    yield _records(f"{prefix}norm", role, ours[:1], theirs[:1], _step)
    for number in range(1, len(ours)):
        links = (
            _judged(f"{prefix}further", pairs.readings(role, number)),
            _records(f"{prefix}further", role, ours, theirs, lambda mini: _terms(mini) | _step(mini), number),
        )
        if wrong := [link for link in links if link is not None and link.status == "differs"]:
            yield wrong[0]
            break
    else:
        if len(ours) > 1:
            yield Link(name=f"{prefix}further", status="same", compared=len(ours) - 1, unit="mini batches")
    marks = tuple(f"{role}.{kind}after/" for kind in ("", "exp_avg.", "exp_avg_sq."))
    yield _judged(f"{prefix}after", pairs.weights(marks))


def _terms(mini: MiniRecord) -> dict[str, Any]:
    return {
        f"{term} of pass {number} on rank {micro.rank}": value
        for number, micro in enumerate(mini.micro_batches)
        for term, value in micro.terms.items()
    }


def _step(mini: MiniRecord) -> dict[str, Any]:
    return {name: getattr(mini, name) for name in ("grad_norm", "applied", "lr", "optimizer_steps", "adam_steps")}


def _records(
    name: str,
    role: str,
    ours: Sequence[MiniRecord],
    theirs: Sequence[MiniRecord],
    read: Callable[[MiniRecord], dict[str, Any]],
    number: int = 0,
) -> Link:
    """Numbers of mini batch NUMBER, as READ gives them."""
    if number >= len(theirs):
        return Link(name=name, status="differs", said=f"the {role}'s mini batch {number} was not made")
    mine, other = read(ours[number]), read(theirs[number])
    wrong = [key for key, value in mine.items() if other.get(key) != value]
    if not wrong:
        return Link(name=name, status="same", compared=len(mine))
    key = wrong[0]
    was, now = mine[key], other.get(key)
    gap = abs(was - now) if isinstance(was, float) and isinstance(now, float) else None
    said = f"{key} of the {role}'s mini batch {number}: {was!r} was recorded, {now!r} comes now"
    return Link(name=name, status="differs", said=said, compared=len(mine), largest=gap)


def _answers(recorded: Kept, found: Kept) -> Link | None:
    """What the engine gave to the same prompts with the same seeds."""
    name, compared, wrong = "answers", 0, list[str]()
    again = {(row.uid, row.sample): row for row in found.rows}
    for number, row in enumerate(recorded.rows):
        other = again.get((row.uid, row.sample))
        if row.response_ids is None or other is None or other.response_ids is None:
            continue
        compared += len(row.response_ids)
        both = zip(row.response_ids, other.response_ids, strict=False)
        other_token = next((place for place, (a, b) in enumerate(both) if a != b), None)
        if other_token is None and len(row.response_ids) != len(other.response_ids):
            other_token = min(len(row.response_ids), len(other.response_ids))
        if other_token is not None:
            wrong.append(f"row {number}: another token at {other_token}")
        elif row.log_probs != other.log_probs:
            wrong.append(f"row {number}: the same tokens, other log-probabilities")
    if not compared:
        return None
    if not wrong:
        return Link(name=name, status="same", compared=compared)
    said = f"{len(wrong)} of {len(recorded.rows)} answers of the engine differ; the first: {wrong[0]}"
    return Link(name=name, status="differs", said=said, compared=compared, where=tuple(wrong[:_SHOWN]))
