"""Keys and values that several query heads share are not copied for each of them where the kernel needs no copies."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from rltrain.workers.fsdp import attention

HEADS, KV_HEADS, TOKENS, SIZE = 14, 2, 11, 8
BORDERS = torch.tensor([0, 4, 11], dtype=torch.int32)


class Kernel:
    """In the place of the kernel, which needs a GPU: the same, sequence by sequence, in torch's SDPA."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Of the keys and values that it was given."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, borders: Tensor, *_: Any, enable_gqa: bool = False, **__: Any
    ) -> Tensor:
        assert enable_gqa or query.shape[1] == key.shape[1], "torch refuses it"
        self.num_bytes = key.nbytes + value.nbytes
        found: list[Tensor] = []
        for start, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            q, k, v = (one[start:end].transpose(0, 1)[None] for one in (query, key, value))
            found.append(
                scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=enable_gqa)[0].transpose(0, 1)
            )
        return torch.cat(found)


def passed(monkeypatch: pytest.MonkeyPatch, takes_groups: bool) -> tuple[Tensor, list[Tensor], int]:
    """What comes out, the gradients of query, key and value, and the bytes that the kernel was given."""
    kernel = Kernel()
    monkeypatch.setattr(attention, "varlen_attn", kernel)
    monkeypatch.setattr(attention, "_takes_groups", takes_groups)
    torch.manual_seed(0)
    given = [torch.randn(1, heads, TOKENS, SIZE, requires_grad=True) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    out = attention.varlen(given[0], given[1], given[2], BORDERS, 7, None, None)
    out.square().sum().backward()
    return out.detach(), [one.grad for one in given if one.grad is not None], kernel.num_bytes


def test_a_kernel_that_takes_groups_is_given_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    copied, grouped = (passed(monkeypatch, takes) for takes in (False, True))
    assert copied[2] == HEADS // KV_HEADS * grouped[2] == HEADS * TOKENS * SIZE * 4 * 2
    torch.testing.assert_close(grouped[0], copied[0], atol=1e-6, rtol=1e-6)
    for one, other in zip(grouped[1], copied[1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_torch_says_whether_its_kernel_takes_groups() -> None:
    assert attention._takes_groups == ("enable_gqa" in signature(varlen_attn).parameters)
    if attention._takes_groups:
        query, key = torch.randn(4, 4, 8), torch.randn(4, 2, 8)
        borders = torch.tensor([0, 4], dtype=torch.int32)
        with pytest.raises(ValueError, match="enable_gqa=True"):
            varlen_attn(query, key, key, borders, borders, 4, 4)
