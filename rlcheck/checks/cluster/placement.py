"""Whether demands fit into a cluster: by what its nodes have, and by what is free now. Plain arithmetic.

Source: https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlcheck.facts.reach import GcsNode, PendingGroup
from rlcheck.text import gib

Resources = Mapping[str, float]
_SLACK = 1e-6  # Ray counts in ten-thousandths; sums of floats here may be off by less


def fits(demand: Resources, room: Resources) -> bool:
    """Whether `room` has enough of everything in `demand`."""
    return all(room.get(name, 0.0) + _SLACK >= amount for name, amount in demand.items())


def total(demands: Sequence[Resources]) -> dict[str, float]:
    """The sum, by name."""
    names = dict.fromkeys(name for demand in demands for name in demand)
    return {name: sum(demand.get(name, 0.0) for demand in demands) for name in names}


def shown(resources: Resources) -> str:
    """Resources for a reader: `8 GPU, 16 CPU`, memory in GiB."""
    ordered = sorted(resources.items(), key=lambda item: (item[0] != "GPU", item[0] != "CPU", item[0]))
    return ", ".join(_amount(name, value) for name, value in ordered) or "nothing"


def _amount(name: str, value: float) -> str:
    return f"{gib(value)} {name}" if name.endswith("memory") else f"{value:g} {name}"


def why_infeasible(group: PendingGroup, nodes: Sequence[GcsNode]) -> str:
    """Why `group` cannot be placed on these nodes even when nothing else runs; "" when it can, as far as one sees."""
    rooms = [node.resources for node in nodes]
    for bundle in group.bundles:
        if not any(fits(bundle, room) for room in rooms):
            return f"a bundle needs {shown(bundle)} on one node, {_best(bundle, rooms)}"
    together = total(group.bundles)
    if group.strategy == "STRICT_PACK" and not any(fits(together, room) for room in rooms):
        return f"STRICT_PACK needs {shown(together)} on one node, {_best(together, rooms)}"
    if group.strategy == "STRICT_SPREAD" and len(group.bundles) > len(rooms):
        return f"STRICT_SPREAD needs {len(group.bundles)} nodes, the cluster has {len(rooms)}"
    whole = total(rooms)
    if not fits(together, whole):
        return f"it needs {shown(together)}, the whole cluster has {shown({n: whole.get(n, 0.0) for n in together})}"
    return ""


def _best(demand: Resources, rooms: Sequence[Resources]) -> str:
    """What the nodes have of the thing that is lacking most widely."""
    lacking = [name for name, amount in demand.items() if all(room.get(name, 0.0) + _SLACK < amount for room in rooms)]
    if not lacking:
        return "no node has all of it"
    name = lacking[0]
    most = max((room.get(name, 0.0) for room in rooms), default=0.0)
    return f"no node has more than {_amount(name, most)}" if most else f"no node has any {name}"


def num_fitting(demand: Resources, rooms: Sequence[Resources]) -> int:
    """On how many nodes `demand` fits."""
    return sum(fits(demand, room) for room in rooms)
