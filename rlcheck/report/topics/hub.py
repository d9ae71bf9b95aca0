"""The headline of a Hugging Face cache."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.report.topics.phrases import joined, why
from rlcheck.text import rough_gib


def headline(facts: Facts) -> str:
    """Return where the cache is, what it holds, the space left, in a line."""
    hub = facts.hub.value
    if hub is None:
        return why(facts.hub)
    cache = hub.cache.value
    space = rough_gib(cache.free_bytes) + " free" if cache is not None and cache.free_bytes >= 0 else ""
    contents = hub.contents.value
    models = f"{contents.num_models} models" if contents is not None and contents.num_models else ""
    there = "" if cache is None or cache.exists else "not made yet"
    return joined(hub.cache_dir, there, models, space, hub.fs_type.value or "")
