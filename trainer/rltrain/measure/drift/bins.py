"""Where the gap is: by position, by length, by size; and some tokens for a scatter plot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from rlcheck.facts.drift import Bin
from rltrain.core.tensors import floats

MOST_POINTS = 2000
_SIZES = (0.0, *(10.0**power for power in range(-9, 1)), 100.0)
"""Edges of the histogram: decades of |log-probability difference|."""


def binned(by: Tensor, edges: Sequence[float], train: Tensor, rollout: Tensor) -> tuple[Bin, ...]:
    """A bin for each interval between EDGES that holds tokens.

    Args:
        by: what decides on the bin of a token, `[N]`.
        edges: increasing; a bin goes up to, not including, the next edge.
        train: log-probabilities `[N]`; rollout: likewise.
        rollout: see train.
    """
    train, rollout = train.double(), rollout.double()
    probs, logs = (train.exp() - rollout.exp()).abs(), (train - rollout).abs()
    found: list[Bin] = []
    for low, high in pairwise(edges):
        inside = (by >= low) & (by < high)
        if bool(inside.any()):
            found.append(
                Bin(
                    low=float(low),
                    high=float(high),
                    num_tokens=int(inside.sum()),
                    probs_diff_mean=float(probs[inside].mean()),
                    log_probs_diff_mean=float(logs[inside].mean()),
                )
            )
    return tuple(found)


def doubling(largest: int) -> list[float]:
    """0, 1, 2, 4, … up to beyond LARGEST."""
    edges = [0.0, 1.0]
    while edges[-1] <= largest:
        edges.append(2 * edges[-1])
    return edges


def histogram(train: Tensor, rollout: Tensor) -> tuple[Bin, ...]:
    """Tokens by |log-probability difference|, in decades."""
    sizes = (train.double() - rollout.double()).abs().clamp(max=_SIZES[-1] / 2)
    return binned(sizes, _SIZES, train, rollout)


def points(train: Tensor, rollout: Tensor) -> tuple[tuple[float, float], ...]:
    """(engine, training) log-probabilities of at most `MOST_POINTS` tokens, evenly taken."""
    step = -(-len(train) // MOST_POINTS)
    chosen = torch.arange(0, len(train), max(step, 1))
    return tuple(zip(floats(rollout[chosen]), floats(train[chosen]), strict=True))
