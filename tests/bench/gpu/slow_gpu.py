"""Slow ranks on real GPUs: the fault moves between steps of one process. And a load on one GPU. For slow.sh.

    torchrun --nproc-per-node 2 tests/bench/gpu/slow_gpu.py ranks OUT [--windows 20] [--steps 8] [--percent 20]
    python tests/bench/gpu/slow_gpu.py judge OUT           judges again what `ranks` has left in OUT; needs no GPU
    python tests/bench/gpu/slow_gpu.py load GPU            works on GPU until it is ended
    python tests/bench/gpu/slow_gpu.py weak RECORD GPU     whether the report RECORD names GPU, and it alone; -1: none

`ranks` trains a stack of wide layers under FSDP2 with rltrain's own clock around each step. In WINDOWS stretches of
STEPS steps one rank's layers take longer, forward and backward (a kernel that spins), so that its own work, and with it
each step, takes PERCENT longer than without: that is measured first, for a GPU that spins in between computes faster in
what is left. As many stretches are healthy. Order and rank are drawn, and a few steps lie between two windows. Each
window's lines of clock.jsonl are judged alone, as `rlcheck slow` does. Then every other step goes without the clock of
waits, for what it costs (`--pairs 0`: not measured).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from rlcheck.measure.slow.answer import slow_from, slow_rank
from rlcheck.measure.slow.clock import read_clock
from rltrain.core.spent import SPENT, Span
from rltrain.workers.fsdp.comm_timing import WAITS, time_gradients, time_weights, together

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
        self.fault, self.device, self.clock, self.number = Fault(), device, clock, 0
        self.took_s = 0.0
        """Of the last step, with what the clock does after it."""
        layers = [nn.Sequential(nn.Linear(WIDE, WIDE, bias=False), nn.GELU()) for _ in range(LAYERS)]
        model = nn.Sequential(*layers).to(device, dtype)
        for layer in model:
            layer.register_forward_hook(self.fault)
            layer.register_full_backward_hook(self.fault)
            fully_shard(layer)
        self.model = fully_shard(model)
        time_weights(self.model)
        self._reduced = time_gradients(self.model)
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

        begun = time.perf_counter()
        _, span = SPENT.timed(act)
        self.took_s = time.perf_counter() - begun
        self.number += 1
        all_spans: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_spans, [*(getattr(span, name) for name in FIELDS), self._reduced.take_s()])
        if dist.get_rank() == 0:
            columns = {name: [one[place] for one in all_spans] for place, name in enumerate((*FIELDS, "reduce_s"))}
            line = {"step": self.number, "train": {"update_actor": {"ranks": list(range(len(all_spans))), **columns}}}
            with self.clock.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return span

    def middle_s(self, steps: int) -> float:
        """Seconds of a step, the median of STEPS, on the rank where that is longest; the same on all ranks."""
        for _ in range(2):
            self.step()
        longest = torch.tensor(statistics.median(self.step().wall_s for _ in range(steps)), device=self.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        return float(longest)


def plant(job: Job, percent: float) -> tuple[float, dict[str, float]]:
    """For how long each of a rank's layers is to spin so that its own work takes PERCENT longer; what was measured."""
    healthy_s = job.middle_s(10)
    own = torch.tensor(statistics.median(job.step().own_s for _ in range(10)), device=job.device)
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    wanted_s = float(own) * percent / 100
    share_s, longer_s = wanted_s / (2 * LAYERS), 0.0
    for number in range(5):
        job.fault.seconds = share_s if dist.get_rank() == number % dist.get_world_size() else 0.0
        longer_s = job.middle_s(6) - healthy_s
        job.fault.seconds = 0.0
        if abs(longer_s / wanted_s - 1) < 0.05:
            break
        share_s *= min(max(wanted_s / max(longer_s, 1e-9), 0.5), 2.0)
    return share_s, {"own_s": float(own), "healthy_s": healthy_s, "longer_s": longer_s, "spin_s": share_s * 2 * LAYERS}


def judged(lines: list[str], folder: Path) -> dict[str, Any]:
    """Whom LINES of a clock show to be slow, and by what. Seconds are of a step, medians."""
    file = folder / "window.jsonl"
    file.write_text("".join(lines))
    ranks = read_clock(file, warm=True).ranks
    accused = [rank for one in ranks if (rank := slow_rank(one)) is not None]
    one, walls = ranks[0], [json.loads(line)["train"]["update_actor"]["wall_s"] for line in lines]
    return {
        "named": accused[0] if accused else None,
        "pace": [round(pace, 4) for pace in one.pace],
        "bar": [round(slow_from(one, rank), 4) for rank in range(len(one.own))],
        "slower": [round(share, 3) for share in one.slower],
        "own_s": [round(own, 5) for own in one.own],
        "waited_s": [round(waited, 5) for waited in one.waited],
        "step_s": round(statistics.median(map(max, walls)), 5),
    }


def judge(folder: Path) -> int:
    """Judge all windows of the clock in FOLDER, and print a line for each and what comes out; 1: one is wrong."""
    clock = (folder / "clock.jsonl").read_text().splitlines(keepends=True)
    windows = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    for one in windows:
        one |= judged(clock[one["first"] : one["last"]], folder)
        print(json.dumps(one), "right" if one["named"] == one["slow"] else "WRONG", flush=True)
    slow, healthy = ([one for one in windows if (one["slow"] is None) == sound] for sound in (False, True))
    named = sum(one["named"] == one["slow"] for one in slow)
    accused = sum(one["named"] is not None for one in healthy)
    took = [statistics.median(one["step_s"] for one in kind) if kind else 0.0 for kind in (slow, healthy)]
    paces = [[one["pace"][one["slow"]] for one in slow], [max(one["pace"]) for one in healthy]]
    said = (
        f"{named} of {len(slow)} slow ranks named, {accused} of {len(healthy)} healthy stretches accused; a step takes "
        f"{took[0]:.4f} s with a slow rank, {took[1]:.4f} s without; own work over the others', of the slow rank "
        f"{min(paces[0], default=0):.3f} to {max(paces[0], default=0):.3f}, of the slowest of healthy ranks "
        f"{min(paces[1], default=0):.3f} to {max(paces[1], default=0):.3f}"
    )
    print(said, flush=True)
    lines = [{"date": time.strftime("%Y-%m-%d"), "said": said}, *windows]
    (folder / "ranks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return int(named != len(slow) or accused > 0)


def cost(job: Job, pairs: int) -> dict[str, float]:
    """Medians of steps with the clock of waits and without, in turn."""
    counted: dict[str, Any] = {name: getattr(FSDPParamGroup, name) for name in WAITS}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * pairs):
        on = number % 2 == 0
        for name, act in counted.items():
            setattr(FSDPParamGroup, name, act if on else act.__wrapped__)
        job.step()
        seconds[on].append(job.took_s)
    added = statistics.median(one - other for one, other in zip(seconds[True], seconds[False], strict=True))
    return {"step_s": statistics.median(seconds[False]), "added_s": added, "pairs": pairs}


def ranks(options: argparse.Namespace) -> int:
    """All windows, what they say, and what the clock costs."""
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if GPU else "gloo")
    options.out.mkdir(parents=True, exist_ok=True)
    if rank == 0:
        for name in ("clock.jsonl", "windows.jsonl"):
            (options.out / name).unlink(missing_ok=True)
    dist.barrier()
    job, draw = Job(device, options.out / "clock.jsonl"), random.Random(0)
    for _ in range(5):
        job.step()
    job.fault.calibrate()
    share_s, planted = plant(job, options.percent)
    windows: list[int | None] = [None] * options.windows + [
        draw.randrange(dist.get_world_size()) for _ in range(options.windows)
    ]
    draw.shuffle(windows)
    for victim in windows:
        job.fault.seconds = share_s if victim == rank else 0.0
        for _ in range(draw.randrange(1, 4)):
            job.step()
        first = job.number
        for _ in range(options.steps):
            job.step()
        if rank == 0:
            with (options.out / "windows.jsonl").open("a") as file:
                file.write(json.dumps({"slow": victim, "first": first, "last": job.number}) + "\n")
    job.fault.seconds = 0.0
    if rank == 0:
        print(f"planted: {json.dumps(planted)}", flush=True)
    wrong = judge(options.out) if rank == 0 else 0
    dist.barrier()
    costs = cost(job, options.pairs) if options.pairs else {"step_s": 1.0, "added_s": 0.0}
    if rank == 0 and options.pairs:
        share = costs["added_s"] / costs["step_s"]
        print(f"the clock of waits adds {share:+.3%} to a step of {costs['step_s']:.4f} s", flush=True)
        (options.out / "cost.json").write_text(json.dumps(costs | planted) + "\n")
    dist.barrier()
    dist.destroy_process_group()
    return wrong or int(rank == 0 and costs["added_s"] > 0.005 * costs["step_s"])


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
    parser.add_argument("what", choices=("ranks", "judge", "load", "weak"))
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
    return judge(options.out) if options.what == "judge" else ranks(options)


if __name__ == "__main__":
    sys.exit(main())
