"""Whether the model states of a run alone are more than its devices have: what is certain without a measurement."""

# NVML's binding is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import psutil
import pynvml

from trainer.config.schema import RunConfig
from trainer.dry_run import ModelShape, RoleMemory, roles_memory, size

CHECK_ID = "MEM001"
"""To be waived with `--ignore`."""


def floor_bytes(roles: list[RoleMemory]) -> float:
    """The least that a device holds while the greediest of ROLES works and the others wait, in bytes.

    A role that waits keeps its weights and optimizer states unless they are offloaded; it has no gradients.
    """
    working = [role.total_bytes if role.where != "host" else 0.0 for role in roles]
    waiting = [_resident_bytes(role) for role in roles]
    return max((one + sum(waiting) - rest for one, rest in zip(working, waiting, strict=True)), default=0.0)


def _resident_bytes(role: RoleMemory) -> float:
    if role.where.startswith("host"):
        return 0.0
    weights = 0.0 if "weights" in role.where else role.weights_bytes
    return weights + (0.0 if "optimizer" in role.where else role.optimizer_bytes)


def complaint(config: RunConfig, shape: ModelShape | None, capacity_bytes: int) -> str | None:
    """What is wrong with the memory of CONFIG (resolved), in one line; None where the states fit.

    Args:
        config: of the run.
        shape: of the actor's model; None where it is not known.
        capacity_bytes: of one device of this machine; 0 where it has none of the kind that the run uses.
    """
    if shape is None or not capacity_bytes:
        return None
    roles = roles_memory(config, shape)
    ranks = config.trainer.n_gpus_per_node or 1
    floor, device = floor_bytes(roles), "each GPU"
    if config.trainer.device == "cpu":
        floor, device = sum(role.total_bytes for role in roles) * ranks, "this machine"
    if floor <= capacity_bytes:
        return None
    who = ", ".join(f"{role.role} {size(role.total_bytes)}" for role in roles)
    return (
        f"{CHECK_ID}: weights, gradients and optimizer states need {size(floor)}, but {device} has "
        f"{size(capacity_bytes)} ({who} a rank): use more GPUs, or fsdp_config.param_offload and optimizer_offload, "
        "or a smaller model"
    )


def device_bytes(device: str) -> int:
    """Memory of this machine's smallest GPU, or its RAM where DEVICE is "cpu"; 0 where there is no such device."""
    if device == "cpu":
        return psutil.virtual_memory().total
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return min((int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles), default=0)
    finally:
        pynvml.nvmlShutdown()
