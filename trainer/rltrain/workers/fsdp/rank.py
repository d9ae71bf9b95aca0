"""One training rank: who it is, its process group, its device, its random numbers."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import datetime
import hashlib
import random
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from rltrain.core.errors import UserError, first_line
from rltrain.workers.fsdp.mesh import Mesh


@dataclass(frozen=True)
class RankInfo:
    """Where one training rank stands. `device`: "cpu", or "cuda:N" among the devices that this process sees."""

    rank: int
    world_size: int
    master_addr: str
    master_port: int
    device: str

    @property
    def device_type(self) -> str:
        """ "cpu" or "cuda"."""
        return torch.device(self.device).type


def connect(info: RankInfo, timeout_s: float) -> Mesh:
    """Join the process group of all training ranks, and return how they are arranged.

    Addresses come from INFO alone: no environment variable is read or written. On CUDA the group has gloo beside
    NCCL, for tensors that live on the host (offloaded weights, checkpoint plans).

    Raises:
        UserError: the other ranks were not there in TIMEOUT_S seconds.
    """
    if info.device_type == "cuda":
        torch.cuda.init()  # Else the mesh would choose a device of its own, by rank or by LOCAL_RANK.
        torch.cuda.set_device(torch.device(info.device))
    timeout = datetime.timedelta(seconds=timeout_s)
    backend = "gloo" if info.device_type == "cpu" else "cpu:gloo,cuda:nccl"
    where = f"{info.master_addr}:{info.master_port}"
    try:
        store = TCPStore(info.master_addr, info.master_port, info.world_size, info.rank == 0, timeout)
        dist.init_process_group(backend, store=store, rank=info.rank, world_size=info.world_size, timeout=timeout)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise UserError(
            f"training rank {info.rank} of {info.world_size} could not meet the others at {where} in {timeout_s:g} s"
            f" ({first_line(error)}): check that the port is free and the hosts reach each other"
            " (actor_rollout_ref.nccl_timeout sets the wait)"
        ) from error
    return Mesh(info.device_type, info.world_size, timeout)


def disconnect() -> None:
    """Leave the process group. Twice is no harm: a rank that leaves without this may abort at exit."""
    if dist.is_initialized():
        dist.destroy_process_group()


def kernels(device: str) -> dict[str, str]:
    """What decides which kernels compute on DEVICE, and so the bits: CUDA and driver; or processor and threads."""
    on_gpu = device.startswith("cuda")
    place, pattern = "/proc/cpuinfo", r"model name\s*:\s*(.+)"
    if on_gpu:
        place, pattern = "/proc/driver/nvidia/version", r"\s(\d+(?:\.\d+)+)\s"
    found = None
    with suppress(OSError):
        found = re.search(pattern, Path(place).read_text(encoding="utf-8"))
    told = found[1] if found else "unknown"
    if on_gpu:
        return {"cuda": str(torch.version.cuda), "driver": told}
    capability = torch.backends.cpu.get_cpu_capability()
    return {"cpu": f"{told}, {capability}", "threads": str(torch.get_num_threads())}


def derive_seed(seed: int, *words: str | int) -> int:
    """A seed for one purpose, named by WORDS: the same in every process, and unlike that of any other purpose."""
    text = "/".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def seed_everything(seed: int) -> None:
    """Seed torch (every device), NumPy and Python. SEED: 32 bits."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def fail_together(problem: str | None) -> None:
    """Compare notes with all ranks (collective): if one has a problem, every one raises it, and none waits in vain.

    Raises:
        UserError: the first rank's PROBLEM.
    """
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    for found in problems:
        if found is not None:
            raise UserError(found)


def free_port() -> int:
    """Return a TCP port of this machine that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
