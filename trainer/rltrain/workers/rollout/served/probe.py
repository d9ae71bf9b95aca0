"""What a server that somebody else started does with seeds and log-probabilities: tried, not taken from its word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rltrain.workers.rollout.protocol import Completion, Request, Sampling

_PLAIN = Sampling(1.0, 1.0, -1, 0, 8, (), (), ignore_eos=True)
_SEED = 20_117
NEARLY_0 = 1e-4
Generate = Callable[[Sequence[Request], Sampling], list[Completion]]


@dataclass(frozen=True)
class Habits:
    """`seeds`: a request's seed decides its draws. `cuts`: log-probabilities are of what top-k and top-p leave."""

    seeds: bool
    cuts: bool


def habits(generate: Generate) -> Habits:
    """Ask three requests of GENERATE."""
    request = Request((1, 2, 3), _SEED, log_probs=False)
    first, again = (generate([request], _PLAIN)[0].token_ids.tolist() for _ in range(2))
    # One token is left: whoever draws from what is left draws it with probability 1.
    # By top-p: SGLang takes a top-k of 1 for greedy, which is no draw.
    [only] = generate([replace(request, log_probs=True)], replace(_PLAIN, top_p=1e-6, max_tokens=4))
    assert only.log_probs is not None
    return Habits(seeds=first == again, cuts=bool(abs(only.log_probs).max() < NEARLY_0))
