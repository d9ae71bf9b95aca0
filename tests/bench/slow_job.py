"""What `bench_slow` traces: a training loop over slow data, or ranks that reduce gradients over a network.

slow_job.py data SECONDS_A_ROW TRACE
slow_job.py link ADDRESS RANK TRACE
"""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

STEPS = 6
WIDE = 768


class Rows(Dataset[Tensor]):
    """Rows that take SECONDS each to be made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.spent_s = 0.0

    def __len__(self) -> int:
        return 16 * (STEPS + 2)

    def __getitem__(self, index: int) -> Tensor:
        begun = time.perf_counter()
        time.sleep(self._seconds)
        self.spent_s += time.perf_counter() - begun
        return torch.full((WIDE,), float(index))


def train(batches: Iterable[Any], trace: str, *, reduces: bool) -> None:
    """Train on BATCHES, and write what torch's profiler saw of all steps but the first two to TRACE."""
    layers = [torch.nn.Linear(WIDE, WIDE) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    plan = schedule(wait=1, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as seen:
        for rows in batches:
            for _ in range(2 if reduces else 8):
                model(rows).square().mean().backward()
            if reduces:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            seen.step()
    seen.export_chrome_trace(trace)


def main() -> None:
    """Run it."""
    torch.set_num_threads(1)
    kind, *words = sys.argv[1:]
    if kind == "data":
        rows = Rows(float(words[0]))
        train(DataLoader(rows, batch_size=16), words[1], reduces=False)
        print(rows.spent_s / (STEPS + 2))
        return
    address, rank, trace = words
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29512", rank=int(rank), world_size=2)
    train((torch.randn(64, WIDE) for _ in range(STEPS + 2)), trace, reduces=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
