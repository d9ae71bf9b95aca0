"""Metrics as they are read, piece by piece, and the curves that they make."""

from __future__ import annotations

import gc
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from rlcheck.errors import UserError
from rlcheck.facts.run import Curve

_LARGEST_STEP = 2**53


class CurveError(UserError):
    """What cannot be read as a run at all. One line: what, where, what to give instead."""


class Piece(NamedTuple):
    """Values of one metric in the order in which they were written.

    `orders`: the place of each in the whole, ascending, to set pieces of one metric side by side. A value may be NaN
    or infinite. Pieces of several metrics share `steps` and `orders` where these are the same objects.
    """

    steps: Sequence[int]
    orders: Sequence[int]
    values: Sequence[float]


class _Plan(NamedTuple):
    """How pieces become a curve: its steps, and what picks its values out of theirs (None: all, as they are)."""

    steps: tuple[int, ...]
    pick: Callable[[Sequence[float]], tuple[float, ...]] | None


class Series:
    """Collects pieces by the metric's name."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[Piece]] = {}
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._restarts: list[tuple[int, int]] = []
        self._next = 0

    def places(self, count: int) -> range:
        """The next COUNT places of the whole, for `Piece.orders`."""
        start, self._next = self._next, self._next + count
        return range(start, self._next)

    def add(self, name: str, piece: Piece) -> None:
        """File PIECE under NAME."""
        if piece.steps:
            self.pieces.setdefault(name, []).append(piece)

    def rename(self, new_name: Callable[[str], str]) -> None:
        """File every metric under NEW_NAME of its name; those that have the same one then are one metric."""
        pieces, self.pieces = self.pieces, {}
        for name, found in pieces.items():
            self.pieces.setdefault(new_name(name), []).extend(found)

    def restart(self, step: int, order: int) -> None:
        """What comes before ORDER for STEP and later ones no longer counts: a run went on from there."""
        self._restarts.append((order, step))

    def curves(self) -> dict[str, Curve]:
        """A curve for each name, in the order of names.

        Steps are put in order. Where a step comes again, a run went on from there, and what was written earlier for
        this step and for later ones counts no more.
        """
        curves = {name: self._curve(self.pieces[name]) for name in sorted(self.pieces)}
        return {name: curve for name, curve in curves.items() if curve.steps or curve.nonfinite}

    def _curve(self, pieces: list[Piece]) -> Curve:
        plan = self._plan(pieces)
        values: Sequence[float] = pieces[0].values
        if len(pieces) > 1:
            values = list(chain.from_iterable(piece.values for piece in pieces))
        picked = tuple(values) if plan.pick is None else plan.pick(values)
        if math.isfinite(sum(picked)):
            return Curve(steps=plan.steps, values=picked)
        points = list(zip(plan.steps, picked, strict=True))
        return Curve(
            steps=tuple(step for step, value in points if math.isfinite(value)),
            values=tuple(value for _, value in points if math.isfinite(value)),
            nonfinite=tuple(step for step, value in points if not math.isfinite(value)),
        )

    def _plan(self, pieces: list[Piece]) -> _Plan:
        key = tuple(id(part) for piece in pieces for part in (piece.steps, piece.orders))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _planned(pieces, self._restarts)
        return plan


def _planned(pieces: list[Piece], restarts: list[tuple[int, int]]) -> _Plan:
    steps = [step for piece in pieces for step in piece.steps]
    places: Sequence[int] = range(len(steps))
    if len(pieces) > 1 or restarts:
        orders = [order for piece in pieces for order in piece.orders]
        places = sorted(places, key=orders.__getitem__)
        for order, step in restarts:
            places = [place for place in places if orders[place] > order or steps[place] < step]
    chosen = _chosen(steps, places)
    if chosen == list(range(len(steps))):
        return _Plan(tuple(steps), None)
    if not chosen:
        return _Plan((), _none)
    if len(chosen) == 1:
        return _Plan((steps[chosen[0]],), partial(_one, chosen[0]))
    pick: Callable[[Sequence[int]], tuple[int, ...]] = itemgetter(*chosen)
    return _Plan(pick(steps), itemgetter(*chosen))


def _none(_: Sequence[float]) -> tuple[float, ...]:
    return ()


def _one(place: int, values: Sequence[float]) -> tuple[float, ...]:
    return (values[place],)


def _chosen(steps: Sequence[int], places: Sequence[int]) -> list[int]:
    """Of PLACES, in the order of writing, those that count, ascending by step."""
    if len({steps[place] for place in places}) == len(places):
        return sorted(places, key=steps.__getitem__)
    kept: list[int] = []
    at: dict[int, int] = {}
    for place in places:
        step = steps[place]
        if step in at:
            low = bisect_left(kept, step)
            for gone in kept[low:]:
                del at[gone]
            del kept[low:]
        at[step] = place
        insort(kept, step)
    return [at[step] for step in kept]


def as_step(value: object) -> int | None:
    """VALUE as a step: a whole number, as int or float; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST_STEP < value < _LARGEST_STEP:
        return None
    return int(value) if value == int(value) else None


def as_steps(values: Sequence[Any]) -> list[int | None]:
    """Each of VALUES as a step, None where it is none."""
    if values and set(map(type, values)) <= {int, float}:
        try:
            whole = list(map(int, values))
        except (ValueError, OverflowError):
            whole = []
        if whole == list(values) and max(map(abs, whole)) < _LARGEST_STEP:
            return [*whole]
    return [as_step(value) for value in values]


def known_only(steps: Sequence[int], orders: Sequence[int], values: Iterable[float | None]) -> Piece:
    """A piece of those VALUES that are not None, with their STEPS and ORDERS."""
    rows = [row for row in zip(steps, orders, values, strict=True) if row[2] is not None]
    return Piece([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows if row[2] is not None])


@contextmanager
def without_collector() -> Generator[None]:
    """In the block, Python does not look for garbage: it would do so for each few thousand numbers that are read."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
