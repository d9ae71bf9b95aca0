"""Which engine gets which request. Pure: the same requests, dealt and finished in the same order, go the same ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from rltrain.workers.rollout.protocol import Request

AHEAD = 1.25
"""Requests in flight at an engine, for each that it runs at a time: it has the next at hand when one ends."""
PIECES_PER_ENGINE = 4
"""At least so many pieces of the requests for each engine, where there are so many requests."""


class _Load:
    """What one engine has in flight."""

    def __init__(self) -> None:
        self.total = 0
        """Tokens that its requests may take."""
        self._most: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._most)

    def __contains__(self, number: int) -> bool:
        return number in self._most

    def __iter__(self) -> Iterator[int]:
        return iter(self._most)

    def put(self, number: int, most: int) -> None:
        """NUMBER is there, for up to MOST tokens."""
        self._most[number] = most
        self.total += most

    def take(self, number: int) -> None:
        """NUMBER is not there any more."""
        self.total -= self._most.pop(number, 0)


class Dealing:
    """Deals numbered requests to engines: each piece to the one with the fewest tokens in flight.

    A piece is neighbours with one prompt (an engine computes it once), or a part of them where there are few. One
    engine gets everything at once. Of several, none has more in flight than it runs at a time and a little: what is
    left goes to whoever is free first.

    Args:
        engines: their ranks.
        max_num_seqs: how many requests an engine runs at a time.
    """

    def __init__(self, engines: Sequence[int], max_num_seqs: int) -> None:
        self._loads = {rank: _Load() for rank in engines}
        self._bound = max(int(max_num_seqs * AHEAD), 1) if len(engines) > 1 else None
        self._requests: dict[int, tuple[Request, int]] = {}
        self._waiting: deque[list[int]] = deque()

    @property
    def is_over(self) -> bool:
        """Nothing waits, nothing is in flight."""
        return not self._requests

    @property
    def engines(self) -> list[int]:
        """Those that take part."""
        return list(self._loads)

    def in_flight(self, rank: int) -> int:
        """Requests at engine RANK."""
        return len(self._loads[rank])

    def add(self, requests: Sequence[tuple[int, Request]], max_tokens: int) -> None:
        """Numbered REQUESTS, each for up to MAX_TOKENS."""
        self._requests |= {number: (request, max_tokens) for number, request in requests}
        most = max(-(-len(requests) // (PIECES_PER_ENGINE * len(self._loads))), 1)
        for _, group in groupby(requests, key=lambda pair: pair[1].prompt_ids):
            numbers = [number for number, _ in group]
            self._waiting.extend(numbers[at : at + most] for at in range(0, len(numbers), most))

    def hand_out(self) -> Mapping[int, list[int]]:
        """Numbers that go now, by engine; they are in flight."""
        handed: dict[int, list[int]] = {}
        while self._waiting and self._loads:
            piece = self._waiting[0]
            rank = min(self._loads, key=lambda one: (self._loads[one].total, one))
            held = self.in_flight(rank)
            if self._bound is not None and held and held + len(piece) > self._bound:
                free = [one for one in self._loads if self.in_flight(one) + len(piece) <= self._bound]
                if not free:
                    break
                rank = min(free, key=lambda one: (self._loads[one].total, one))
            self._waiting.popleft()
            for number in piece:
                request, max_tokens = self._requests[number]
                self._loads[rank].put(number, len(request.prompt_ids) + max_tokens)
            handed.setdefault(rank, []).extend(piece)
        return handed

    def request(self, number: int) -> Request:
        """Of that NUMBER."""
        return self._requests[number][0]

    def finished(self, rank: int, number: int) -> bool:
        """Engine RANK has answered NUMBER; whether that is news."""
        if rank in self._loads:
            self._loads[rank].take(number)
        return self._requests.pop(number, None) is not None

    def drop(self, numbers: Collection[int]) -> dict[int, list[int]]:
        """Forget NUMBERS; those in flight, by engine."""
        gone = set(numbers)
        self._waiting = deque(left for piece in self._waiting if (left := [one for one in piece if one not in gone]))
        found: dict[int, list[int]] = {}
        for rank, load in self._loads.items():
            if there := [number for number in load if number in gone]:
                found[rank] = there
                for number in there:
                    load.take(number)
        for number in gone:
            self._requests.pop(number, None)
        return found

    def lost(self, ranks: Iterable[int]) -> None:
        """Engines RANKS are gone: what they had in flight is dealt first, to the others."""
        for rank in ranks:
            load = self._loads.pop(rank, None)
            if load is not None:
                self._waiting.extendleft([number] for number in sorted(load, reverse=True))

    def back(self, ranks: Iterable[int]) -> None:
        """Engines RANKS take part, with nothing in flight."""
        for rank in ranks:
            self._loads.setdefault(rank, _Load())
        self._loads = dict(sorted(self._loads.items()))
