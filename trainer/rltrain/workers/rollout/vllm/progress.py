"""A progress bar that draws nothing: vLLM's `generate` drives it as it would drive tqdm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rltrain.workers.rollout.protocol import OnProgress


class Progress:
    """What `LLM.generate(use_tqdm=...)` uses of a tqdm bar."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self._on_progress = on_progress
        self._total = total
        self._begun = time.perf_counter()
        self.n = 0
        self.postfix = ""

    @classmethod
    def factory(cls, on_progress: OnProgress) -> Callable[..., Any]:
        """What vLLM calls with tqdm's arguments: prompts to walk through, or a total to count up to."""

        def make(iterable: Any = None, *, total: int = 0, **_: Any) -> Any:
            return cls(on_progress, total) if iterable is None else iterable

        return make

    @property
    def format_dict(self) -> dict[str, float]:
        """Seconds since the start; never 0, vLLM divides by it."""
        return {"elapsed": max(time.perf_counter() - self._begun, 1e-6)}

    def update(self, n: int) -> None:
        """N more requests are done."""
        self.n += n
        self._on_progress(self.n, self._total)

    def refresh(self) -> None:
        """Nothing to draw."""

    def close(self) -> None:
        """Nothing to close."""
