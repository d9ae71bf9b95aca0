"""The audit of packing reads rows that others can leak into, whatever the ranks and the cut."""

from __future__ import annotations

import random

import pytest

from rltrain.controller.audited import choose, places
from rltrain.workers.fsdp.micro import MicroSize

STEPS = 1000
ROWS = 64


def lengths(generator: random.Random) -> list[int]:
    """Tokens of prompts with answers, of which a few are long."""
    return [min(8192, 60 + int(generator.lognormvariate(6.3, 0.9))) for _ in range(ROWS)]


@pytest.mark.parametrize("size", [MicroSize(8, None), MicroSize(2, None), MicroSize(None, 16384)], ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_a_leak_into_rows_that_follow_others_is_found(world_size: int, size: MicroSize) -> None:
    """The real deal and cut; what leaks reaches every row of a micro batch but its first."""
    generator, found, possible = random.Random(7), 0, 0
    drawn: set[tuple[int, int]] = set()
    for step in range(STEPS):
        read = places(lengths(generator), world_size, size, balance=True)
        leaked = {place.row for rank in read for place in rank if place.position > 0}
        audited = choose(read, step)
        assert len(audited) == world_size
        assert choose(read, step) == audited
        possible += bool(leaked)
        found += any(place.row in leaked for place in audited)
        drawn |= {(place.micro_batch, place.position) for place in audited}
    assert possible > 0.99 * STEPS
    assert found >= 0.99 * possible
    assert len(drawn) > 1, "always the same place"


def test_a_row_is_read_where_the_passes_read_it() -> None:
    read = places([3, 9, 4, 8], 2, MicroSize(1, None), balance=True)
    assert sorted(place.row for rank in read for place in rank) == [0, 1, 2, 3]
    assert {place.position for rank in read for place in rank} == {0}
    assert len(choose(read, 1)) == 2, "rows alone are audited too"
    packed = places([3, 9, 4, 8], 2, MicroSize(2, None), balance=True)
    assert [[place.row for place in rank] for rank in packed] == [[0, 1], [2, 3]]
    assert {place.position for place in choose(packed, 1)} == {1}
