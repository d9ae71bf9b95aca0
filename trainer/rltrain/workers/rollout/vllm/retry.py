"""Requests that the engine gave up are asked again: one of thousands does not end a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rltrain.core.errors import RunFailure
from rltrain.workers.rollout.protocol import Completion, Request

_LOG = logging.getLogger(__name__)

Answer = Completion | str
"""What the engine sampled, or why it gave the request up."""


def answered(
    ask: Callable[[Sequence[Request]], list[Answer]], requests: Sequence[Request], max_retries: int
) -> list[Completion]:
    """One completion for each of REQUESTS, in their order; those that ASK gives up are asked MAX_RETRIES times again.

    A request keeps its seed, so an answer on a later try is the one that the first would have given.

    Raises:
        RunFailure: a request was given up each time.
    """
    found: dict[int, Completion] = {}
    left, why = list(range(len(requests))), ""
    for tries in range(max_retries + 1):
        answers = ask([requests[index] for index in left])
        found |= {index: one for index, one in zip(left, answers, strict=True) if isinstance(one, Completion)}
        why = next((one for one in answers if isinstance(one, str)), "")
        left = [index for index in left if index not in found]
        if not left:
            return [found[index] for index in range(len(requests))]
        _LOG.warning("%d of %d requests were given up on try %d: %s", len(left), len(requests), tries + 1, why)
    raise RunFailure(
        f"{why} in each of {max_retries + 1} tries (actor_rollout_ref.rollout.max_retries={max_retries}),"
        f" {len(left)} of {len(requests)} requests"
    )
