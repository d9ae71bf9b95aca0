"""Numbers of the memory model that no formula gives: measured, in `rlcheck/data/memory.json`."""

from __future__ import annotations

from rlcheck.facts.base import Struct
from rlcheck.tables import table


class Constants(Struct, frozen=True):
    """All in bytes but the two slacks.

    `context_bytes`: CUDA, NCCL and kernels of a training rank; `workspace_bytes`: of cuBLAS. `slack_per_root`: what the
    allocator holds for nobody in an update, in sizes of FSDP's last group in float32; `fixed_segments_slack`: as a
    share of what is allocated, where segments do not grow (verl). `*_host_bytes`: of a process on the host.
    """

    source: str
    driver_bytes: int
    """Of each GPU, that the driver keeps: what NVML calls total is more than what CUDA offers."""
    context_bytes: int
    loading_context_bytes: int
    """Of a training rank before its first collective."""
    context_per_peer_bytes: int
    workspace_bytes: int
    slack_per_root: float
    slack_idle_bytes: int
    fixed_segments_slack: float
    engine_context_bytes: int
    engine_asleep_bytes: int
    engine_graph_bytes_per_layer: int
    rank_host_bytes: int
    engine_host_bytes: int
    controller_host_bytes: int


CONSTANTS = table("memory", Constants)
