"""What vLLM's scheduler says of itself, read where it runs: its own statistics are off, since they cost time."""

# vLLM has no stubs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any


class Watched:
    """Requests of one scheduler. A version of vLLM that keeps something elsewhere does not say it."""

    def __init__(self) -> None:
        self._requests: dict[str, Any] = {}
        self._before: dict[str, int] = {"preemptions": 0, "cached_tokens": 0}
        """Of requests that are gone."""

    def counters(self, llm: Any) -> dict[str, float]:
        """As `rltrain.workers.rollout.flow.COUNTERS` names them; empty where there is no scheduler to ask."""
        scheduler = getattr(getattr(llm.llm_engine.engine_core, "engine_core", None), "scheduler", None)
        if scheduler is None:
            return {}
        found: dict[str, float] = {"running": len(scheduler.running), "waiting": len(scheduler.waiting)}
        usage = getattr(getattr(scheduler, "kv_cache_manager", None), "usage", None)
        if usage is not None:
            found["kv_usage"] = float(usage)
        return found | self._grown(dict(scheduler.requests))

    def _grown(self, now: dict[str, Any]) -> dict[str, int]:
        for name in self._requests.keys() - now.keys():
            for kind, number in _of(self._requests[name]).items():
                self._before[kind] += number
        self._requests = now
        total = dict(self._before)
        for request in now.values():
            for kind, number in _of(request).items():
                total[kind] += number
        return total


def _of(request: Any) -> dict[str, int]:
    cached = int(getattr(request, "num_cached_tokens", 0) or 0)
    return {"preemptions": int(getattr(request, "num_preemptions", 0)), "cached_tokens": max(cached, 0)}
