"""Slow ranks on real GPUs: the fault moves between steps of one process. And a load on one GPU. For slow.sh.

    torchrun --nproc-per-node 2 tests/bench/gpu/slow_gpu.py ranks OUT [--windows 20] [--steps 8] [--percent 20]
    python tests/bench/gpu/slow_gpu.py load GPU            works on GPU until it is ended
    python tests/bench/gpu/slow_gpu.py weak RECORD GPU     whether the report RECORD names GPU, and it alone; -1: none

`ranks` trains a stack of wide layers under FSDP2 with rltrain's own clock around each step. In WINDOWS stretches of
STEPS steps one rank's layers take PERCENT longer, forward and backward (a kernel that spins); as many are healthy.
Order and rank are drawn, and a few steps lie between two windows. Each window's lines of clock.jsonl are judged alone,
as `rlcheck slow` does. Then every other step goes without the clock of weights' collectives, for what it costs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from rlcheck.measure.slow.answer import slow_rank
from rlcheck.measure.slow.clock import read_clock
from rltrain.core.spent import SPENT, Span
from rltrain.workers.fsdp.comm_timing import TimedAllGather, time_gradients, time_weights, together

GPU = torch.cuda.is_available()
WIDE, LAYERS, ROWS = (8192, 12, 8192) if GPU else (256, 4, 256)
COLUMNS = ("wall_s", "together_s", "cpu_s", "queued_s", "longest_s")
FIELDS = ("calls", *COLUMNS)


class Fault:
    """What the layers of this rank take longer, in cycles of the GPU a pass; `seconds` of a processor without one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._cycles_per_s = 1.0

    def calibrate(self) -> None:
        """Measure how long the kernel that spins takes."""
        if not GPU:
            return
        for _ in range(2):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            torch.cuda._sleep(50_000_000)  # pyright: ignore[reportPrivateUsage]
            torch.cuda.synchronize()
            self._cycles_per_s = 50_000_000 / (time.perf_counter() - begun)

    def __call__(self, *_: object) -> None:
        if self.seconds <= 0:
            return
        if GPU:
            torch.cuda._sleep(int(self.seconds * self._cycles_per_s))  # pyright: ignore[reportPrivateUsage]
            return
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass


class Job:
    """The model of one rank, and its clock's lines on rank 0."""

    def __init__(self, device: torch.device, clock: Path) -> None:
        dtype = torch.bfloat16 if GPU else torch.float32
        self.fault, self.clock, self.number = Fault(), clock, 0
        layers = [nn.Sequential(nn.Linear(WIDE, WIDE, bias=False), nn.GELU()) for _ in range(LAYERS)]
        model = nn.Sequential(*layers).to(device, dtype)
        for layer in model:
            layer.register_forward_hook(self.fault)
            layer.register_full_backward_hook(self.fault)
            fully_shard(layer)
        self.model = fully_shard(model)
        time_weights(self.model)
        time_gradients(self.model)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self._rows = torch.randn(ROWS, WIDE, device=device, dtype=dtype)

    def step(self) -> Span:
        """One step, by rltrain's clock; a line of it, on rank 0."""

        def act() -> float:
            loss: Tensor = self.model(self._rows).float().square().mean()
            loss.backward()
            # As rltrain's norm of all gradients does.
            with together(loss.detach()):
                dist.all_reduce(loss.detach().clone())
            self._optimizer.step()
            self._optimizer.zero_grad()
            return float(loss)

        _, span = SPENT.timed(act)
        self.number += 1
        all_spans: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_spans, [getattr(span, name) for name in FIELDS])
        if dist.get_rank() == 0:
            columns = {name: [one[place] for one in all_spans] for place, name in enumerate(FIELDS)}
            line = {"step": self.number, "train": {"update_actor": {"ranks": list(range(len(all_spans))), **columns}}}
            with self.clock.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return span

    def window(self, steps: int) -> tuple[int | None, list[float]]:
        """STEPS steps: who is named, and the ranks' paces; only on rank 0."""
        first = self.number
        for _ in range(steps):
            self.step()
        if dist.get_rank():
            return None, []
        lines = self.clock.read_text().splitlines(keepends=True)[first:]
        file = self.clock.with_name("window.jsonl")
        file.write_text("".join(lines))
        ranks = read_clock(file, warm=True).ranks
        accused = [rank for one in ranks if (rank := slow_rank(one)) is not None]
        return (accused[0] if accused else None), [round(one, 3) for one in ranks[0].pace]


def cost(job: Job, pairs: int) -> dict[str, float]:
    """Medians of steps with the clock of collectives and without, in turn."""
    with_it: Callable[..., Any] = TimedAllGather.__call__

    def without(
        self: TimedAllGather, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> Any:
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)

    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * pairs):
        on = number % 2 == 0
        TimedAllGather.__call__ = with_it if on else without
        seconds[on].append(job.step().wall_s)
    TimedAllGather.__call__ = with_it
    added = statistics.median(one - other for one, other in zip(seconds[True], seconds[False], strict=True))
    return {"step_s": statistics.median(seconds[False]), "added_s": added, "pairs": pairs}


def ranks(options: argparse.Namespace) -> int:
    """All windows, and what the clock costs."""
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if GPU else "gloo")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "clock.jsonl").unlink(missing_ok=True)
    dist.barrier()
    job, draw = Job(device, options.out / "clock.jsonl"), random.Random(0)
    for _ in range(5):
        job.step()
    job.fault.calibrate()
    own = statistics.median(job.step().own_s for _ in range(10))
    shared = torch.tensor([own], device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    share_s = float(shared) * options.percent / 100 / (2 * LAYERS)
    windows: list[int | None] = [None] * options.windows + [
        draw.randrange(dist.get_world_size()) for _ in range(options.windows)
    ]
    draw.shuffle(windows)
    found: list[dict[str, Any]] = []
    for victim in windows:
        job.fault.seconds = share_s if victim == rank else 0.0
        for _ in range(draw.randrange(1, 4)):
            job.step()
        named, paces = job.window(options.steps)
        found.append({"slow": victim, "named": named, "pace": paces, "step": job.number})
    job.fault.seconds = 0.0
    costs = cost(job, options.pairs)
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        return 0
    right = [one for one in found if one["named"] == one["slow"]]
    slow = sum(one["slow"] is not None for one in right)
    accused = options.windows - (len(right) - slow)
    said = (
        f"{slow} of {options.windows} ranks slowed by {options.percent:g} % named, {accused} of {options.windows} "
        f"healthy stretches accused; the clock adds {costs['added_s'] / costs['step_s']:+.3%} to a step "
        f"of {costs['step_s']:.4f} s"
    )
    print(said, flush=True)
    lines = [{"date": time.strftime("%Y-%m-%d"), "said": said, "own_s": own, **costs}, *found]
    (options.out / "ranks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return int(len(right) != len(found) or costs["added_s"] > 0.005 * costs["step_s"])


def load(gpu: int) -> None:
    """Multiply on GPU until this process is ended."""
    size = 8192 if GPU else 512
    one = torch.randn(size, size, device=torch.device("cuda", gpu) if GPU else "cpu")
    print("loaded", flush=True)
    while True:
        for _ in range(20):
            one @ one  # pyright: ignore[reportUnusedExpression]
        if GPU:
            torch.cuda.synchronize(gpu)


def weak(record: Path, gpu: int) -> int:
    """Whether NCL058 of the report at RECORD names GPU alone; -1: that it names none."""
    findings = [one for one in json.loads(record.read_text())["checks"] if one["id"] == "NCL058"]
    found = findings[0] if findings else {"status": "not there", "found": ""}
    others = [number for number in range(torch.cuda.device_count()) if number != gpu]
    said = str(found.get("found") or "")
    if gpu < 0:
        right = found["status"] == "pass"
    else:
        right = f"GPU {gpu} on" in said and not any(f"GPU {number} on" in said for number in others)
    print(f"{record.name}: NCL058 {found['status']}: {found.get('message') or said}: {'right' if right else 'WRONG'}")
    return int(not right)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ranks", "load", "weak"))
    parser.add_argument("out", help="a folder, a report, or a GPU's number")
    parser.add_argument("gpu", nargs="?", type=int, default=0)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--percent", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=60)
    options = parser.parse_args()
    if options.what == "load":
        load(int(options.out))
    if options.what == "weak":
        return weak(Path(options.out), options.gpu)
    options.out = Path(options.out)
    return ranks(options)


if __name__ == "__main__":
    sys.exit(main())
