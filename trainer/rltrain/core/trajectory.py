"""What one row of training is made of: the tokens behind a prompt, and which of them the policy chose."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
Spans = tuple[tuple[int, int], ...]
"""`(first token, version)` of each run of tokens that one version of the weights made, in order."""


def int_array(values: object = ()) -> IntArray:
    """VALUES as `[N]` int32."""
    return np.asarray(values, dtype=np.int32)


def float_array(values: object = ()) -> FloatArray:
    """VALUES as `[N]` float32."""
    return np.asarray(values, dtype=np.float32)


def id_tuple(ids: IntArray) -> tuple[int, ...]:
    """IDS as plain numbers."""
    return tuple(ids.tolist())


@dataclass(frozen=True, eq=False)
class Trajectory:
    """All that follows one prompt, N tokens in any number of turns.

    A turn is what the policy sampled; between turns stand the tokens of tools or users, which are read and not learnt
    from. Answers of one turn are the case in which LOSS_MASK is true everywhere.
    """

    token_ids: IntArray
    """`[N]`: every turn of the policy, and what came between."""
    loss_mask: BoolArray
    """`[N]`: sampled by the policy, so that the loss counts it. The attention mask is true for all N."""
    log_probs: FloatArray | None
    """`[N]`, the engine's, 0 where the loss mask is false; None: they were not asked for."""
    versions: Spans
    """Of the weights that sampled."""
    truncated: bool
    """The last turn ended at a limit, not by itself."""
    prompt_ids: IntArray = field(default_factory=int_array)
    """The first prompt as the engine read it; empty where the engine does not say."""

    @property
    def oldest_version(self) -> int:
        """Of the weights that sampled any of it; -1: nothing says."""
        return min((version for _, version in self.versions), default=-1)
