"""What must hold of weight sync, whatever it travels by: one version of the weights after the other."""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.workers.rollout.protocol import Request
from rltrain.workers.sync import verify
from tests.trainer.workers.rollout.compare import requests
from tests.trainer.workers.rollout.pair import Pair

# Longer than a block of the KV cache, so that prefixes are cached, and stale ones would show.
LONG = [Request(tuple(2 + (5 * place) % 40 for place in range(160)), seed) for seed in range(4)]
STALE_FACTOR = 20.0


@dataclass(frozen=True)
class Limits:
    """Largest mean differences of the sampled tokens' log-probabilities and probabilities."""

    log_prob: float
    prob: float

    @property
    def worst(self) -> float:
        """Of one token's log-probability."""
        return 5 * self.log_prob


CPU_LIMITS = Limits(log_prob=1e-5, prob=5e-6)
"""In float32."""
GPU_LIMITS = Limits(log_prob=8e-2, prob=1.5e-2)
"""In bfloat16."""


def cycle(
    crew: Pair, limits: Limits, *, sleeps: bool = False, versions: int = 3
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Sync, compare, change the actor, see that the engine is stale, again; differences when fresh, and when stale.

    SLEEPS: the engine gives its memory back in between, and forgets its weights.
    """
    fresh: list[tuple[float, float]] = []
    stale: list[tuple[float, float]] = []
    asked = [*requests(20), *LONG]
    for version in range(1, versions + 1):
        crew.engine.call("wake", "weights")
        crew.sync.sync(version)
        crew.engine.call("wake", "kv_cache")
        assert crew.engine.call("has_weights")
        published = crew.published()
        assert len(published) >= 2 * 8  # two layers: none was left out
        assert verify(published, crew.engine.call("checksums", list(published))) is None
        fresh.append(crew.differences(asked))
        assert fresh[-1][0] <= limits.log_prob, fresh
        assert fresh[-1][1] <= limits.prob, fresh
        crew.change(version)
        now = crew.published()
        assert f"{len(now)} of {len(now)} weights differ" in (
            verify(now, crew.engine.call("checksums", list(now))) or ""
        )
        stale.append(crew.differences(asked))
        assert stale[-1][0] >= STALE_FACTOR * fresh[-1][0], (fresh, stale)
        assert crew.engine.call("sleep") is sleeps
    return fresh, stale
