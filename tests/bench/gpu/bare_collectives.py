"""Bus bandwidths of a bare torch.distributed loop, to hold `rlcheck nccl` against.

torchrun --nproc-per-node N tests/bench/gpu/bare_collectives.py OUT.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZES = [1 << n for n in (21, 24, 27, 30, 32)]
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n,
           "reduce_scatter": lambda n: (n - 1) / n, "broadcast": lambda n: 1.0}  # fmt: skip


def timed(call: Callable[[], object], budget_s: float = 0.4) -> float:
    """Seconds of one call: three batches, the median of their means."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = torch.tensor([max(5, min(200, int(budget_s / (time.perf_counter() - started))))], device="cuda")
    dist.broadcast(count, 0)
    batches = []
    for _ in range(3):
        dist.barrier()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(int(count)):
            call()
        torch.cuda.synchronize()
        batches.append((time.perf_counter() - started) / int(count))
    return sorted(batches)[1]


def calls(num_bytes: int) -> dict[str, Callable[[], object]]:
    """One call of each collective on `num_bytes` of float32 in all, as `rlcheck nccl` does it."""
    world = dist.get_world_size()
    whole = torch.ones(num_bytes // 4, device="cuda")
    part = torch.ones(num_bytes // 4 // world, device="cuda")
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }


def main() -> None:
    """Measures and writes the table of rank 0."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    world = dist.get_world_size()
    rows = []
    for num_bytes in SIZES:
        for name, call in calls(num_bytes).items():
            seconds = timed(call)
            rows.append({"collective": name, "bytes": num_bytes, "seconds": seconds,
                         "busbw": num_bytes / seconds * FACTORS[name](world)})  # fmt: skip
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump({"world": world, "rows": rows}, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
