"""What engines say of themselves: the text of `/metrics` of vLLM and SGLang, of one moment or of several in a row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rlcheck.facts.slow import EngineUse

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.{0,4096})\})?[ \t]+([-+]?[\w.+-]{1,32})(?:[ \t]+-?\d{1,20})?[ \t]*")
_LE = re.compile(r'(?:^|,)\s*le="([^"]{1,32})"')
_SIGN = re.compile(rb"^(?:vllm|sglang):\w+[ {]", re.MULTILINE)
_MOST_BYTES = 256 << 20
_MOST_SCRAPES = 100_000
_MOST = 1e15
"""No counter of an engine is negative, or reaches this."""
_SMALL = 8.0
"""A pass of so many tokens costs what one of a hundred does: it reads all weights."""

_SHARES = ("_perc", "_usage", "_rate")
"""Of several engines in one text the fullest counts; all else adds up."""

Scrape = dict[str, float]


def is_scrape(head: bytes) -> bool:
    """Whether HEAD, the beginning of a file, is of such text."""
    return _SIGN.search(head) is not None


def read_scrapes(path: Path) -> tuple[EngineUse, ...]:
    """The engine of PATH, which may hold many scrapes one after the other.

    Raises:
        ValueError: it is too large, or no metric of vLLM or SGLang is in it.
        OSError: it cannot be read.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"it is over {_MOST_BYTES >> 20} MiB; keep one scrape in a hundred")
    with path.open(encoding="utf-8", errors="replace") as file:
        scrapes = _scrapes(file)
    if not scrapes:
        raise ValueError("no metric of vLLM or SGLang is in it")
    engine = "vllm" if any(name.startswith("vllm:") for name in scrapes[-1]) else "sglang"
    return (_use(path.name, engine, scrapes),)


def _scrapes(lines: Iterable[str]) -> list[Scrape]:
    """Values by name, summed over labels; a new scrape begins where a series comes again."""
    found: list[Scrape] = []
    seen: set[str] = set()
    for line in lines:
        match = _LINE.fullmatch(line.rstrip("\n")) if line.startswith(("vllm:", "sglang:")) else None
        if match is None:
            continue
        name, labels, text = match[1], match[2] or "", match[3]
        try:
            value = float(text)
        except ValueError:
            continue
        if not math.isfinite(value) or not 0 <= value < _MOST:
            continue
        key = f"{name}{{{labels}"
        if not found or key in seen:
            if len(found) >= _MOST_SCRAPES:
                break
            found.append({})
            seen = set()
        seen.add(key)
        bucket = _LE.search(labels)
        where = f"{name}|{bucket[1]}" if bucket else name
        now = found[-1]
        before = now.get(where, 0.0)
        now[where] = max(before, value) if name.endswith(_SHARES) else before + value
    return found


def _use(source: str, engine: str, scrapes: Sequence[Scrape]) -> EngineUse:
    first, last = scrapes[0], scrapes[-1]

    def grown(*names: str) -> float:
        """Growth of a counter; of a single scrape, all since the engine began. A restart begins at 0 again."""
        name = next((f"{engine}:{name}" for name in names if f"{engine}:{name}" in last), "")
        if not name:
            return -1
        if len(scrapes) == 1:
            return last[name]
        values = [one[name] for one in scrapes if name in one]
        return sum(after - before if after >= before else after for before, after in pairwise(values))

    def gauge(*names: str, most: bool = False) -> float:
        name = next(
            (f"{engine}:{name}" for name in names if f"{engine}:{name}" in last or f"{engine}:{name}" in first), ""
        )
        values = [one[name] for one in scrapes if name in one]
        return -1 if not values else max(values) if most else sum(values) / len(values)

    requests = grown("request_success_total", "num_requests_total")
    queued, asked = grown("request_queue_time_seconds_sum"), grown("request_queue_time_seconds_count")
    ran = grown("request_inference_time_seconds_sum", "e2e_request_latency_seconds_sum")
    hits, looked = (
        grown("prefix_cache_hits_total", "gpu_prefix_cache_hits_total", "cached_tokens_total"),
        grown("prefix_cache_queries_total", "gpu_prefix_cache_queries_total", "prompt_tokens_total"),
    )
    small, passes = _buckets(engine, first if len(scrapes) > 1 else {}, last)
    return EngineUse(
        source=source,
        engine=engine,
        scrapes=len(scrapes),
        running=gauge("num_requests_running", "num_running_reqs"),
        waiting=gauge("num_requests_waiting", "num_queue_reqs"),
        kv_usage=gauge("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage", most=True),
        preemptions=grown("num_preemptions_total", "num_retracted_requests_total", "total_retracted_reqs"),
        requests=requests if requests >= 0 else asked,
        tokens=grown("generation_tokens_total"),
        cache_hits=hits / looked if looked > 0 and hits >= 0 else gauge("cache_hit_rate"),
        queue_s=queued / asked if asked > 0 and queued >= 0 else -1,
        run_s=ran / asked if asked > 0 and ran >= 0 else -1,
        small_passes=small / passes if passes > 0 else -1,
        small_tokens=_SMALL if passes > 0 else 0,
    )


def _buckets(engine: str, first: Mapping[str, float], last: Mapping[str, float]) -> tuple[float, float]:
    """Passes of the engine with few tokens, and all of them; (0, 0) where no histogram says it."""
    stem = f"{engine}:iteration_tokens_total"
    every = last.get(f"{stem}_count", 0.0) - first.get(f"{stem}_count", 0.0)
    name = next((name for name in (f"{stem}_bucket|8.0", f"{stem}_bucket|8") if name in last), "")
    return (last[name] - first.get(name, 0.0), every) if name and every > 0 else (0.0, 0.0)
