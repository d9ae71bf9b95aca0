"""Packing named tensors into buckets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rltrain.workers.sync.bucket import ALIGNMENT_BYTES, largest_bytes, plan, store, take, unpack

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 5), min_size=0, max_size=3).map(tuple)


@given(st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=12), st.integers(1, 3000))
def test_what_is_packed_is_unpacked(kinds: list[tuple[tuple[int, ...], torch.dtype]], bucket_bytes: int) -> None:
    # Transposed: not contiguous, as a view of a larger weight may be.
    weights = [
        (f"w{number}", torch.randn(shape).mul(50).to(dtype).mT)
        if len(shape) > 1
        else (f"w{number}", torch.randn(shape).mul(50).to(dtype))
        for number, (shape, dtype) in enumerate(kinds)
    ]
    buckets = plan([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in weights], bucket_bytes)
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
    assert [bucket.is_last for bucket in buckets] == [False] * (len(buckets) - 1) + [True]
    buffer = torch.full((max(1, largest_bytes(buckets)),), 0xAB, dtype=torch.uint8)
    stream, arrived = iter(weights), []
    for bucket in buckets:
        assert bucket.num_bytes <= bucket_bytes or len(bucket.entries) == 1
        for entry, tensor in take(bucket, stream):
            assert entry.offset_bytes % ALIGNMENT_BYTES == 0
            store(entry, tensor, buffer)
        arrived += [(name, tensor.clone()) for name, tensor in unpack(bucket, buffer)]
    assert [name for name, _ in arrived] == [name for name, _ in weights]
    for (_, tensor), (_, expected) in zip(arrived, weights, strict=True):
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected)


def test_unpacked_tensors_are_views() -> None:
    (bucket,) = plan([("a", (2, 2), torch.float32)], 100)
    buffer = torch.zeros(16, dtype=torch.uint8)
    unpack(bucket, buffer)[0][1].fill_(1.0)
    assert buffer.any()


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([], "'b' .* should come, got 'nothing more'"),
        ([("c", torch.zeros(3))], r"'b' \[3\] torch.float32 should come, got 'c'"),
        ([("b", torch.zeros(4))], r"got 'b' \[4\]"),
        ([("b", torch.zeros(3, dtype=torch.float16))], "torch.float16"),
    ],
)
def test_another_weight_than_planned_is_named(weights: list[tuple[str, torch.Tensor]], words: str) -> None:
    (bucket,) = plan([("b", (3,), torch.float32)], 100)
    with pytest.raises(ValueError, match=words):
        list(take(bucket, iter(weights)))


def test_a_plan_needs_names_and_each_once() -> None:
    for manifest in ([], [("a", (1,), torch.float32), ("a", (2,), torch.float32)]):
        with pytest.raises(ValueError, match="manifest"):
            plan(manifest, 100)
