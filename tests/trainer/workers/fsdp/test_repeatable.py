"""Gradients of packed attention are asked for bit by bit only where a step may be run again."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltrain.workers.fsdp import attention


class Heard(torch.autograd.Function):
    """In the place of the kernel, which needs a GPU: notes whether its backward runs deterministically."""

    flags: list[bool] = []

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query + key + value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        Heard.flags.append(torch.are_deterministic_algorithms_enabled())
        return gradient, gradient, gradient


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Generator[list[bool]]:
    monkeypatch.setattr(attention, "varlen_attn", lambda q, k, v, *_, **__: Heard.apply(q, k, v))
    Heard.flags = []
    yield Heard.flags
    attention.repeatable(False)


def gradients(layers: int = 2) -> list[Tensor]:
    torch.manual_seed(0)
    states = [torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3)]
    query, key, value = states
    for _ in range(layers):
        out = attention.varlen(query, key, value, torch.tensor([0, 5]), 5, None, None)
        query = out.transpose(1, 2)
    query.square().sum().backward()
    return [state.grad for state in states if state.grad is not None]


def test_only_the_kernels_backward_is_deterministic_and_only_if_asked(heard: list[bool]) -> None:
    plain = gradients()
    assert heard == [False, False]
    attention.repeatable(True)
    found = gradients()
    assert heard == [False, False, True, True]
    assert not torch.are_deterministic_algorithms_enabled(), "what comes after may use what is fast"
    assert len(found) == 3
    assert all(torch.equal(one, other) for one, other in zip(plain, found, strict=True))


def test_what_the_user_has_asked_for_stays(heard: list[bool]) -> None:
    attention.repeatable(True)
    torch.use_deterministic_algorithms(True)
    try:
        gradients(1)
        assert heard == [True]
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
