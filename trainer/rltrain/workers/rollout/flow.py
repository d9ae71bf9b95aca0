"""How requests flow through one engine: how many run, wait and end, and how full its cache gets, in twenty slots."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

SLOTS = 20
_MOST_SAMPLES = 4096
_EVERY_S = 0.02
COUNTERS = ("running", "waiting", "kv_usage", "preemptions", "cached_tokens")
"""What an engine may say of itself (`counters`); `preemptions` and `cached_tokens` only grow."""


class Flow:
    """One round of an engine, from the first request to when nothing is under way."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._begun_at = time.time()
        self._samples: list[tuple[float, int, int, float, int]] = []
        """Seconds since the beginning, running, waiting, share of the cache, passes until then."""
        self._ended_s: list[float] = []
        self._steps = self._prompt_tokens = 0
        self._tokens: list[int] = []
        self._begun_tokens = 0
        """Of answers that had not ended when the round did."""
        self._every_s = _EVERY_S
        self._paces: dict[int, list[float]] = {}
        """Passes, seconds and the sum of running requests over passes, by the power of two that runs."""
        self._first_s = 0.0
        self._most = 0
        self._before: tuple[float, int] = (0.0, 0)
        self._first: Mapping[str, float] = {}
        self._last: Mapping[str, float] = {}
        self._asked = 0

    def asked(self, num_requests: int, prompt_tokens: int) -> None:
        """NUM_REQUESTS with PROMPT_TOKENS together have come in."""
        self._asked += num_requests
        self._prompt_tokens += prompt_tokens

    def due(self) -> bool:
        """Whether `sample` wants to be called now."""
        self._steps += 1
        return not self._samples or time.perf_counter() - self._begun - self._samples[-1][0] >= self._every_s

    def sample(self, under_way: int, counters: Mapping[str, float]) -> None:
        """The engine has UNDER_WAY requests, and says COUNTERS."""
        self._first = self._first or counters
        self._last = counters
        running = int(counters.get("running", under_way))
        waiting, usage = int(counters.get("waiting", 0)), float(counters.get("kv_usage", 0.0))
        self._most = max(self._most, running)
        now = time.perf_counter() - self._begun
        self._count(now, running)
        self._samples.append((now, running, waiting, usage, self._steps))
        if len(self._samples) >= _MOST_SAMPLES:
            self._samples, self._every_s = self._samples[::2], self._every_s * 2

    def _count(self, now: float, running: int) -> None:
        seconds, passes = now - self._before[0], self._steps - self._before[1]
        self._before = now, self._steps
        if not self._samples:
            self._first_s = now
            return
        # What ran until now was there at the last look: since then requests can only have ended, or come from waiting.
        ran = max(running, self._samples[-1][1]) if self._samples[-1][2] else self._samples[-1][1]
        kept = self._paces.setdefault(ran.bit_length(), [0.0, 0.0, 0.0])
        for place, value in enumerate((passes, seconds, passes * ran)):
            kept[place] += value

    def ended(self, num_tokens: int) -> None:
        """A request has ended with NUM_TOKENS."""
        self._ended_s.append(time.perf_counter() - self._begun)
        self._tokens.append(num_tokens)

    def interrupted(self, num_tokens: int) -> None:
        """The round ends, and what has not ended had NUM_TOKENS in it."""
        self._begun_tokens += num_tokens

    def note(self) -> dict[str, Any]:
        """The round in numbers; plain JSON.

        `slots`: for each twentieth of the time, requests that had not ended at its beginning, those that ran and waited
        (means), the fullest of the cache, and passes. `lengths`: answers' tokens at each twentieth, shortest first.
        `first_s`: until the first pass was done, prompts and all. `paces`: of the time after it, for each power of two
        of running requests: their mean, passes, seconds. `most`: requests that ran at once, at most.
        """
        whole = max(time.perf_counter() - self._begun, 1e-9)
        slots: list[list[float]] = []
        before, place = 0, 0
        last = [0.0, 0.0, 0.0]
        for number in range(SLOTS):
            low, high = whole * number / SLOTS, whole * (number + 1) / SLOTS
            there: list[tuple[float, int, int, float, int]] = []
            while place < len(self._samples) and (self._samples[place][0] < high or number == SLOTS - 1):
                there.append(self._samples[place])
                place += 1
            left = self._asked - sum(ended < low for ended in self._ended_s)
            passes = (there[-1][4] if there else before) - before
            before += passes
            if there:
                means = [round(sum(one[index] for one in there) / len(there), 1) for index in (1, 2)]
                last = [*means, round(max(one[3] for one in there), 4)]
            slots.append([left, *last, passes])
        lengths = sorted(self._tokens)
        quantiles = [lengths[round(part / SLOTS * (len(lengths) - 1))] for part in range(SLOTS + 1)] if lengths else []
        grown = {
            name: int(self._last.get(name, 0) - self._first.get(name, 0)) for name in COUNTERS[3:] if name in self._last
        }
        return {
            "begin": round(self._begun_at, 3),
            "wall_s": round(whole, 4),
            "requests": self._asked,
            "prompt_tokens": self._prompt_tokens,
            "tokens": sum(self._tokens) + self._begun_tokens,
            "passes": self._steps,
            "lengths": quantiles,
            "first_s": round(self._first_s, 4),
            "most": self._most,
            "paces": [
                [round(ran / passes, 1), int(passes), round(seconds, 4)]
                for _, (passes, seconds, ran) in sorted(self._paces.items())
                if passes
            ],
            "slots": slots,
            **grown,
        }
