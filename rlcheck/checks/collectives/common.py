"""Words and small questions that the checks of a measurement share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlcheck.check import Evidence, evidence
from rlcheck.facts.base import need
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Transport
from rlcheck.facts.document import Facts
from rlcheck.measure.collectives.expect import model_of, table


def measured(facts: Facts) -> CollectiveFacts:
    """The measurement, which must be there."""
    return need(facts.collectives)


def several(run: CollectiveFacts) -> list[GroupRun]:
    """The groups over more than one machine."""
    return [group for group in run.groups if len(group.nodes) > 1]


def inside(run: CollectiveFacts) -> list[GroupRun]:
    """The groups within one machine that have something to tell each other."""
    return [group for group in run.groups if len(group.nodes) == 1 and len(group.ranks) > 1]


def transports(groups: Iterable[GroupRun]) -> list[tuple[GroupRun, Transport]]:
    """The groups whose log was read, with what it says."""
    return [(group, group.transport.value) for group in groups if group.transport.value is not None]


def group_name(group: GroupRun) -> str:
    """`node3`, `node1 ↔ node2`, `all 8 nodes`."""
    if len(group.nodes) == 1:
        return group.nodes[0]
    return " ↔ ".join(group.nodes) if len(group.nodes) == 2 else f"all {len(group.nodes)} nodes"


def rank_name(run: CollectiveFacts, rank: int) -> str:
    """`rank 5 on node2`."""
    node = next((r.node for r in run.ranks if r.rank == rank), "")
    return f"rank {rank} on {node}" if node else f"rank {rank}"


def speed_text(bytes_per_s: float) -> str:
    """`366 GB/s`, `1.2 GB/s`, `35 MB/s`."""
    giga = bytes_per_s / 1e9
    if giga < 0.1:
        return f"{bytes_per_s / 1e6:.3g} MB/s"
    return f"{giga:.0f} GB/s" if giga >= 10 else f"{giga:.2g} GB/s"


def has_model(run: CollectiveFacts, group: GroupRun, models: Iterable[str]) -> bool:
    """Whether every device of the group is one of these models of the table."""
    found = {model_of(rank.device) for rank in run.ranks if rank.rank in group.ranks}
    return bool(found) and found <= set(models)


def peers_linked(run: CollectiveFacts, group: GroupRun) -> bool:
    """Whether the group's GPUs are of a kind that is always joined by NVLink or XGMI."""
    return has_model(run, group, table().peer_models)


def set_on(run: CollectiveFacts, names: Iterable[str], nodes: Iterable[str]) -> list[str]:
    """`NAME=value` of the variables that are set on any of the nodes, each once."""
    wanted = set(names)
    return sorted({f"{name}={value}" for node in nodes for name, value in run.settings.get(node, {}).items()
                   if name in wanted})  # fmt: skip


def setting_params(texts: Sequence[str]) -> dict[str, str]:
    """The playbook's `variable`, when a setting is the cause."""
    return {"variable": texts[0].partition("=")[0]} if texts else {}


def fact(where: str, value: object, source: str = "rlcheck nccl") -> tuple[Evidence, ...]:
    """One piece of evidence from the measurement."""
    return (evidence(f"collectives.{where}", value, source),)
