"""Ray, as this package uses it. Ray's own annotations are partial: here is the one place that says so."""

from __future__ import annotations

from typing import Any, cast

import ray as _ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray = cast(Any, _ray)


def actor_on(node_id: str, cls: type, num_gpus: int = 0) -> Any:
    """Start an actor on just that node. It is never restarted, and takes no CPU from anyone's account."""
    affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
    options = {"num_cpus": 0, "num_gpus": num_gpus, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(cls).options(scheduling_strategy=affinity, **options).remote()
