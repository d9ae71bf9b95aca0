"""What a change costs in time, by the estimates of `data/slowdowns.json`: for ranking, not for planning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlcheck import tables
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import MemoryProfile

RARE = {"more_gpus": 1.0, "lora": 2.0}
"""What is not asked of somebody lightly comes after everything that only costs time."""
_WAYS = 2
"""States that are moved go to the host and come back, once a step."""


class Priced(Protocol):
    """A change as far as its price goes."""

    @property
    def kind(self) -> str:
        """Name of its price."""
        ...

    @property
    def times(self) -> int:
        """How often it is paid."""
        ...

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """Spec fields with their new values."""
        ...


def table() -> dict[str, Any]:
    """Return the estimates."""
    return tables.table("slowdowns", dict[str, Any])


def slowdown(run: ConfigFacts, memory: MemoryProfile, steps: Sequence[Priced]) -> float:
    """Time of a step with all of these changes over that of today (1.0: the same)."""
    data = table()
    parts: dict[str, float] = dict.fromkeys(data["shares"], 1.0)
    moved = 0.0
    for step in steps:
        if step.kind.endswith("_transfer"):
            moved += _transfer(run, memory, step)
        else:
            price = data["changes"][step.kind]
            parts[price["part"]] *= price["factor"] ** step.times
    return sum(share * parts[part] for part, share in data["shares"].items()) + moved


def rank(run: ConfigFacts, memory: MemoryProfile, steps: Sequence[Priced]) -> float:
    """`slowdown`, with what needs more machines or trains something else at the end."""
    return slowdown(run, memory, steps) + sum(1 + RARE[step.kind] for step in steps if step.kind in RARE)


def _transfer(run: ConfigFacts, memory: MemoryProfile, step: Priced) -> float:
    """Moving a role's states over PCIe, as part of a step's time."""
    role = step.settings[0][0].partition(".")[0]
    gpus = max(1, memory.num_nodes * memory.gpus_per_node)
    # AdamW keeps two float32 numbers for each parameter, the weights are one.
    num_bytes = memory.parameters.get(role, memory.parameters.get("actor", 0)) / gpus
    num_bytes *= 8 if step.kind == "optimizer_transfer" else 4
    return _WAYS * num_bytes / table()["transfer"]["bytes_per_s"] / _step_s(run, memory, gpus)


def _step_s(run: ConfigFacts, memory: MemoryProfile, gpus: int) -> float:
    """A step's time in seconds from its tokens: 8 operations a parameter and token for the update with recomputation,
    2 for each model that only looks, and rollout as its share says."""
    data, rate = run.spec.data, table()["transfer"]["flops_per_s"]
    tokens = data.train_batch_size * run.spec.rollout.n * (data.max_prompt_length + data.max_response_length) / gpus
    flops = tokens * sum(memory.parameters.values()) * 8
    return max(1.0, flops / rate / table()["shares"]["update"])
