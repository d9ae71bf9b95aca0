"""Who computes beside whom."""

from __future__ import annotations

import pytest

from rlcheck.remote.collectives.work import TURNS, pair_of


@pytest.mark.parametrize("size", range(2, 17))
def test_each_rank_computes_beside_two_others(size: int) -> None:
    partners: dict[int, set[int]] = {rank: set() for rank in range(size)}
    for turn in range(TURNS):
        pairs = [[rank for rank in range(size) if pair_of(rank, size, turn) == pair] for pair in range((size + 1) // 2)]
        assert sorted(rank for pair in pairs for rank in pair) == list(range(size))
        assert all(len(pair) == 2 for pair in pairs) or (size % 2 and sorted(map(len, pairs))[:2] in ([1], [1, 2]))
        for pair in pairs:
            for rank in pair:
                partners[rank] |= set(pair) - {rank}
    most = 1 if size == 2 else 2
    assert all(1 <= len(found) <= most for found in partners.values())
    if size % 2 == 0 and size > 2:
        assert all(len(found) == 2 for found in partners.values())
