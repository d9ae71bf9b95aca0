"""Which of some thousand texts are in a block of a log: exact, and fast enough for gigabytes.

An automaton of all texts (Aho and Corasick 1975, of the Rust library aho-corasick) reads 100 MB/s, and lets other
threads run meanwhile. Where its package is not installed, sets of numbers tell which texts may be there, more slowly.
"""

from __future__ import annotations

import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from rlcheck.diagnose.blocks import Block
from rlcheck.diagnose.clean import strip_escapes
from rlcheck.diagnose.needed import rarity

# How failures begin whatever the software: they keep the lines that no playbook knows.
MARKERS = (
    "Traceback (most recent call last)",
    "During handling of the above exception",
    "was the direct cause of the following",
    "Error: ",
    "Exception:",
    "Failure:",
    "Interrupt",
    "ERROR",
    "CRITICAL",
    "FATAL",
    "Fatal Python error",
    "fatal error:",
    "panicked at",
    "terminate called",
    "Unhandled exception",
    "Exception in thread",
    "Segmentation fault",
    "Bus error",
    "Aborted",
    "core dumped",
    "Aborted (core dumped)",
    "Killed",
    "oom-kill",
    "exit code",
    "exitcode",
    "exit status",
    "exited with",
    "terminated with",
    "received signal",
    "SIGKILL",
    "SIGTERM",
    "SIGSEGV",
    "NCCL WARN",
    "CANCELLED AT",
    "DUE TO TIME LIMIT",
    "command not found",
    "No such file or directory",
    "level=error",
    "level=fatal",
)

_MOST_THREADS = 8
_DIGITS = b"0123456789"
_WINDOW = 4 << 10
"""Bytes looked at together by their grams: in more of them more meet by chance."""

Found = tuple[list[bytes], bytes]
"""The texts that are in a block, in their order, and the block without escapes."""


class Search:
    """Blocks go in and come out in their order, some of them later; a thread on each core looks through them."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._finder = Finder(texts)
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        self._most_ahead = min(cores, _MOST_THREADS) + 1
        self._threads = ThreadPoolExecutor(self._most_ahead - 1, "log")
        self._ahead: deque[tuple[Sequence[Block], Future[list[Found]]]] = deque()

    def push(self, blocks: Sequence[Block]) -> Iterator[tuple[Block, Found]]:
        """Take BLOCKS, which are looked through together; give those that are due."""
        self._ahead.append((blocks, self._threads.submit(self._look, blocks)))
        if len(self._ahead) > self._most_ahead:
            yield from self._first()

    def rest(self) -> Iterator[tuple[Block, Found]]:
        """Give every block that went in and did not come out yet."""
        while self._ahead:
            yield from self._first()

    def _first(self) -> Iterator[tuple[Block, Found]]:
        blocks, found = self._ahead.popleft()
        yield from zip(blocks, found.result(), strict=True)

    def _look(self, blocks: Sequence[Block]) -> list[Found]:
        return [self._finder.find(block.data) for block in blocks]


class Finder:
    """Finds texts in blocks of bytes; built once a log, in a tenth of a second for three thousand texts."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        """Prepare for `texts`."""
        wanted = sorted(set(texts))
        self._within = _by_automaton(wanted) or _by_grams(wanted)

    def find(self, block: bytes) -> Found:
        """The texts that are in `block`."""
        plain = strip_escapes(block)
        return sorted(self._within(plain)), plain


def _by_automaton(texts: list[bytes]) -> Callable[[bytes], set[bytes]] | None:
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ImportError:
        return None
    automaton = BytesAhoCorasick(texts, implementation=Implementation.DFA)

    def within(data: bytes) -> set[bytes]:
        return {texts[number] for number, _, _ in automaton.find_matches_as_indexes(data, overlapping=True)}

    return within


def _by_grams(texts: list[bytes]) -> Callable[[bytes], set[bytes]]:
    bare: dict[bytes, list[bytes]] = {}
    for text in texts:
        bare.setdefault(text.translate(None, _DIGITS), []).append(text)
    grids = [
        _Grid("d", [one for one in bare if len(one) >= 15]),
        _Grid("I", [one for one in bare if 7 <= len(one) < 15]),
    ]
    short = [one for one in bare if len(one) < 7]

    def within(data: bytes) -> set[bytes]:
        # Of lines that differ in their digits only, one is looked at.
        lines = b"\n".join(dict.fromkeys(data.translate(None, _DIGITS).split(b"\n")))
        found = {one for one in short if one in lines}.union(*(grid.within(lines) for grid in grids))
        return {text for one in found for text in bare[one] if text in data}

    return within


class _Grid:
    """Texts by some of their grams: what is searched is read as numbers of as many bytes, one after the other.

    Wherever a text of twice as many bytes less one stands, one of the numbers lies whole in it. Floats have eight bytes
    and are hashed faster than integers of that size; no text of UTF-8 is a NaN or the negative zero.
    """

    def __init__(self, kind: Literal["I", "d"], texts: Sequence[bytes]) -> None:
        self._kind: Literal["I", "d"] = kind
        self._width = struct.calcsize(kind)
        self._longest = max(map(len, texts), default=0)
        self._users: dict[float, list[tuple[frozenset[float], bytes]]] = {}
        for text in texts:
            for start in range(self._width):
                places = range(start, len(text) - self._width + 1, self._width)
                grams = sorted((text[at : at + self._width] for at in places), key=rarity, reverse=True)
                first, *others = (struct.unpack(kind, gram)[0] for gram in grams)
                self._users.setdefault(first, []).append((frozenset(others), text))
        self._grams = frozenset(self._users).union(*(others for users in self._users.values() for others, _ in users))

    def within(self, data: bytes) -> set[bytes]:
        """The texts that are in `data`."""
        found: set[bytes] = set()
        view = memoryview(data)
        for start in range(0, len(data), _WINDOW):
            end = start + _WINDOW + self._longest
            size = len(view[start:end]) // self._width * self._width
            seen = self._grams.intersection(view[start : start + size].cast(self._kind))
            for gram in seen & self._users.keys():
                for others, text in self._users[gram]:
                    if text not in found and others <= seen and data.find(text, start, end) >= 0:
                        found.add(text)
        return found
