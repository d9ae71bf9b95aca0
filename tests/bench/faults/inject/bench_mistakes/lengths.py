"""No mistake: answers of drawn lengths, as of a model that ends some soon and some late. For measuring alone."""

from __future__ import annotations

import math
import random
from typing import Any

from bench_mistakes.registry import mistake, wrap

_KEY = 0xFFFF
"""The bits of a request's seed that its length is drawn from. What follows a part of an answer keeps them."""


def drawn(seed: int, mean: float, sigma: float, most: int) -> int:
    """Tokens of the answer with SEED: log-normal with MEAN before it is cut at MOST, and SIGMA of its logarithm."""
    chance = random.Random(seed & _KEY)
    return min(most, max(1, round(chance.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))


@mistake("rltrain.workers.rollout.unfinished", part_of="lengths")
def same_length(module: Any, **_: Any) -> None:
    """An answer that goes on with other weights keeps the length that it was to have."""
    wrap(module, "seed_behind", lambda real, seed, done: (real(seed, done) & ~_KEY) | (seed & _KEY))


@mistake("rltrain.workers.rollout.vllm.answers", part_of="lengths")
def limits(module: Any, mean: float = 512.0, sigma: float = 1.0, most: int = 4096) -> None:
    """Each request ends at its own length. MOST: `data.max_response_length`; less is left of answers that go on."""

    def maker(real: Any, sampling: Any) -> Any:
        make = real(sampling)

        def made(request: Any) -> Any:
            params = make(request)
            params.max_tokens = max(1, drawn(request.seed, mean, sigma, most) - (most - sampling.max_tokens))
            return params

        return made

    wrap(module, "params_maker", maker)
