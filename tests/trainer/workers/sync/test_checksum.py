"""Checksums: the same from shards and from the whole, different for any change."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rltrain.workers.sync.checksum import Part, checksum, combine, piece, pieces, verify

MASK = (1 << 64) - 1


def by_hand(tensor: torch.Tensor) -> int:
    """The definition in Python's unbounded integers, element by element."""
    bits = tensor.numpy().view(np.uint32).ravel()
    total = 0
    for place, value in enumerate(bits.tolist(), 1):
        signed = lambda number: number - (1 << 64) if number >> 63 else number  # noqa: E731
        mixed = (place * 0x9E3779B97F4A7C15) & MASK
        mixed = ((mixed ^ (signed(mixed) >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = (mixed ^ (signed(mixed) >> 27) | 1) & MASK
        total += value * mixed
    return total & MASK


def test_it_is_what_it_is_defined_to_be() -> None:
    tensor = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    assert checksum(tensor) == f"float32[7, 5]:{by_hand(tensor):016x}"


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1), st.data())
def test_shards_add_up_in_any_order(rows: int, columns: int, dim: int, data: st.DataObject) -> None:
    whole = torch.randn(rows, columns)
    size = whole.shape[dim]
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=3))})
    parts = [piece(whole.narrow(dim, start, stop - start), dim, start, size) for start, stop in pairwise(cuts)]
    shuffled = data.draw(st.permutations(parts + parts[:1]))
    assert combine(shuffled) == checksum(whole)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(50, 30)
    before = checksum(whole)
    monkeypatch.setattr(sys.modules[checksum.__module__], "_CHUNK_ELEMENTS", 64)
    assert checksum(whole) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_every_change_is_seen(dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 13).reshape(3, 4).to(dtype)
    swapped, changed = tensor.clone(), tensor.clone()
    swapped[0, 0], swapped[2, 3] = tensor[2, 3], tensor[0, 0]
    changed[1, 1] += 1
    different = [tensor, swapped, changed, tensor.t().contiguous(), tensor.reshape(4, 3), tensor.to(torch.float64)]
    assert len({checksum(one) for one in different}) == len(different)
    assert checksum(tensor.t().t()) == checksum(tensor)


def test_minus_zero_is_zero() -> None:
    assert checksum(torch.tensor([-0.0, 1.0])) == checksum(torch.tensor([0.0, 1.0]))


def test_scalars_and_empty_tensors() -> None:
    assert checksum(torch.tensor(2.0)) != checksum(torch.tensor(3.0))
    assert checksum(torch.empty(0, 4)).startswith("float32[0, 4]:")


def test_copies_that_differ_and_parts_that_miss_equal_nothing() -> None:
    whole = torch.randn(4, 2)
    top = piece(whole[:2], 0, 0, 4)
    assert combine([top, piece(whole[:2] + 1, 0, 0, 4)]) == "copies of [0:2] differ"
    assert combine([top]) == "parts [(0, 2)] do not make up 4"
    assert combine([top, piece(whole[1:], 0, 1, 4)]) == "parts [(0, 2), (1, 4)] do not make up 4"


def test_verify_names_the_first_and_counts() -> None:
    published = {"a": "1", "b": "2", "c": "3"}
    assert verify(published, dict(published)) is None
    assert verify(published, {"a": "1", "b": "9", "c": "8"}) == (
        "2 of 3 weights differ, the first is 'b': the actor has 2, the engine holds 9"
    )
    assert "nothing of that name" in (verify(published, {"a": "1", "b": "2"}) or "")


def test_pieces_of_many_parts_are_those_of_each() -> None:
    whole, other = torch.randn(37, 53), torch.arange(6)
    parts = [("a", Part(whole[5:20], 0, 5, 37)), ("b", Part(other)), ("a", Part(whole[:, 9:], 1, 9, 53))]
    expected = {"a": [piece(whole[5:20], 0, 5, 37), piece(whole[:, 9:], 1, 9, 53)], "b": [piece(other)]}
    assert pieces(parts) == expected
    assert pieces([]) == {}
