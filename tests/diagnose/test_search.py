"""A large log is looked through by several processes: as one would, in order, whatever becomes of them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import psutil
import pytest

from rlcheck.diagnose import search
from rlcheck.diagnose.blocks import Block, Cutter
from rlcheck.diagnose.scan import Finder
from rlcheck.diagnose.search import Found, Search

TEXTS = [b"out of memory while", b"the rank that never came", b"Killed", b"ERROR", b"short on room"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """Twelve MiB of which a few lines hold a text, cut into blocks."""
    monkeypatch.setattr(search, "_ALONE", 2 << 20)
    monkeypatch.setattr(search, "_BATCH", 1 << 18)
    monkeypatch.setattr("threading.active_count", lambda: 1)  # those of pytest hold no lock that is asked for here
    rng = random.Random(5)
    words = [bytes(rng.choices(b"abcdefghijklmnop", k=rng.randrange(3, 9))) for _ in range(900)]
    lines = rng.choices([b" ".join(rng.choices(words, k=12)) for _ in range(60)], k=170_000)
    for at in range(0, len(lines), 9_000):
        lines[at] += b" \x1b[1m" + rng.choice(TEXTS) + b"\x1b[0m"
    return list(Cutter().feed(b"\n".join(lines) + b"\n"))


def of(search: Search, blocks: list[Block]) -> Iterator[Found]:
    for block in blocks:
        yield from search.push(block)
    yield from search.rest()


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def test_several_processes_find_what_one_does_in_order(log: list[Block]) -> None:
    alone = list(of(Search(Finder(TEXTS)), log))
    assert [block for block, _, _ in alone] == log
    assert {text for _, found, _ in alone for text in found} == set(TEXTS)
    before, together = children(), Search(Finder(TEXTS), 3)
    found, most = list[Found](), 0
    for one in of(together, log):
        found.append(one)
        most = max(most, len(children()) - len(before))
    assert (found, most) == (alone, 3)
    together.close()
    assert children() == before


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_process_that_is_killed_costs_nothing_but_time(log: list[Block], survivors: int) -> None:
    before = {child.pid for child in children()}
    together, found = Search(Finder(TEXTS), 2), list[Found]()
    for one in of(together, log):
        found.append(one)
        mine = [child.pid for child in children() if child.pid not in before]
        if len(found) > len(log) // 2 and len(mine) == 2:
            for pid in mine[survivors:]:
                os.kill(pid, signal.SIGKILL)
    together.close()
    assert found == list(of(Search(Finder(TEXTS)), log))


def test_beside_other_threads_nothing_is_forked(log: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    before, together = len(children()), Search(Finder(TEXTS), 2)
    monkeypatch.setattr("threading.active_count", lambda: 2)
    assert len(list(of(together, log))) == len(log)
    assert len(children()) == before
