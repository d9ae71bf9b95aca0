"""`rlcheck diagnose` on logs of a gibibyte: seconds and peak memory on few cores, and whether it finds what is planted.

    python tests/bench/bench_diagnose.py [--mib N] [--only NAME ...] [--directory DIR] [--cores N]

The logs are made in DIR (a temporary directory) and removed again. The bars: 20 s on two cores and 200 MiB of memory
for a gibibyte, of the packed one memory only, and 0.4 s for a traceback of a hundred lines, start of the process
included. No log is as hard to read as `prose`: it is made of the words of error messages.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

ROOT = Path(__file__).resolve().parents[2]
OOM = """Traceback (most recent call last):
  File "/opt/verl/verl/workers/actor/dp_actor.py", line 412, in update_policy
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13.91 GiB. GPU 0 has a total capacity of 79.10 GiB of \
which 9.40 GiB is free. Process 4242 has 69.70 GiB memory in use. Of the allocated memory 60.10 GiB is allocated by \
PyTorch, and 2.10 GiB is reserved by PyTorch but unallocated.
"""
SHM = """Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1251, in _try_get_data
    raise RuntimeError("one worker died") from e
RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are \
out of shared memory. Please try to raise your shared memory limit.
ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
"""
PLANTED = {"gpu-out-of-memory": OOM, "shm": SHM}


def repetitive(rng: random.Random) -> Iterator[str]:
    """Steps of a trainer, NCCL's INFO, progress bars: lines that differ in their digits."""
    step = 0
    while True:
        step += 1
        pid = rng.randrange(10**5)
        metrics = " - ".join(
            f"{name}:{rng.random():.6f}" for name in ("actor/kl_loss", "critic/score/mean", "perf/mfu")
        )
        yield f"\x1b[36m(TaskRunner pid={pid})\x1b[0m step:{step} - {metrics} - timing_s/gen:{rng.random() * 90:.3f}\n"
        yield f"node{step % 64}:{pid}:{pid + 7} [{step % 8}] NCCL INFO Channel 0{step % 8}/0 : {step % 9}[0] -> 1[1]\n"
        yield "\r".join(f"Training Progress: {at}%|###   | {at}/100 [00:{at:02}<01:40]" for at in range(1, 8)) + "\n"


def unique(rng: random.Random) -> Iterator[str]:
    """Prompts and answers in words that never stand together twice, some of them about errors."""
    words = [word for text in topics.values() for word in text.split()]
    while True:
        answer = " ".join(rng.choices(words, k=rng.randrange(20, 120)))
        tail = "the tool failed with an error, so try again" if rng.random() < 0.1 else "done"
        yield f"[prompt] {rng.getrandbits(64):x} [response] {answer} {tail}\n"


def prose(rng: random.Random) -> Iterator[str]:
    """Pieces of a programming language's manual: much of it is about errors, in the words of error messages."""
    text = " ".join(topics.values()).replace("\n", "\\n")
    while True:
        start, size = rng.randrange(len(text) - 800), rng.randrange(100, 800)
        yield f"[prompt] {rng.getrandbits(64):x} [response] {text[start : start + size]}\n"


def storm(rng: random.Random) -> Iterator[str]:
    """The same few errors from 512 ranks, again and again."""
    while True:
        rank, pid = rng.randrange(512), rng.randrange(10**5)
        yield (
            f"node{rank // 8}:{pid}:{pid + 9} [{rank % 8}] misc/socket.cc:{pid % 900} NCCL WARN socketProgress: "
            f"Connection closed by remote peer node{rng.randrange(64)}<{rng.randrange(10**4, 6 * 10**4)}>\n"
        )
        yield f"[rank{rank}]:[E{pid:05}] ProcessGroupNCCL.cpp:616] ERROR exit code {pid % 200} of a rank, retrying\n"


LOGS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "repetitive": repetitive,
    "unique": unique,
    "prose": prose,
    "storm": storm,
}


def write(path: Path, lines: Iterator[str], size: int) -> dict[str, int]:
    """Write SIZE bytes with the failures in them; the line numbers at which these stand."""
    # A few million lines would take minutes to make one by one: blocks of them come again, in another order.
    blocks = ["".join(block) for block in (_block(lines) for _ in range(24))]
    rng, written, number, planted = random.Random(7), 0, 1, dict[str, int]()
    wanted = [("gpu-out-of-memory", size // 2), ("shm", size - (1 << 20))]
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            if wanted and written >= wanted[0][1]:
                name = wanted.pop(0)[0]
                planted[name] = number
                written += file.write(PLANTED[name])
                number += PLANTED[name].count("\n")
            block = rng.choice(blocks)
            file.write(block)
            written += len(block.encode())
            number += block.count("\n")
    return planted


def _block(lines: Iterator[str]) -> Iterator[str]:
    size = 0
    while size < 1 << 20:
        line = next(lines)
        size += len(line)
        yield line


def run(path: Path, num_cores: int = 1) -> tuple[float, float, dict[str, object]]:
    """Seconds and peak MiB of the command on NUM_CORES, and its answer."""
    command = [
        "taskset",
        "-c",
        ",".join(map(str, sorted(os.sched_getaffinity(0))[:num_cores])),
        sys.executable,
        "-m",
        "rlcheck",
        "diagnose",
        str(path),
        "--format",
        "json",
        "--all",
    ]
    started = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, cwd=ROOT)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        seconds = time.perf_counter() - started
        out.seek(0)
        return seconds, usage.ru_maxrss / 1024, json.loads(out.read() or b"{}")


def show(name: str, path: Path, size: int, planted: dict[str, int], num_cores: int) -> None:
    """Run the command and print one line."""
    seconds, memory, answer = run(path, num_cores)
    places = set(map(int, re.findall(r'"line": ?(\d+)', json.dumps(answer))))
    found = [name for name, first in planted.items() if places & set(range(first, first + 8))]
    print(
        f"{name:12} {seconds:6.2f} s  {size / seconds / 1e6:6.1f} MB/s  peak {memory:5.0f} MiB  "
        f"planted {len(found)}/{len(planted)}  {[one['id'] for one in answer.get('diagnoses', [])][:4]}",
        flush=True,
    )


def cold(directory: Path) -> None:
    """A traceback of a hundred lines, ten times, each in a process of its own."""
    path = directory / "short.log"
    frame = '  File "/opt/app/train.py", line 12, in step\n    self.inner()\n'
    path.write_text("INFO started\n" + OOM.replace("torch.OutOf", frame * 48 + "torch.OutOf"))
    times = sorted(run(path)[0] for _ in range(10))
    print(
        f"100 lines    median {statistics.median(times):.3f} s, slowest {times[-1]:.3f} s of 10 cold starts", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--only", nargs="*", default=[*LOGS, "gzip", "cold"])
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    size = options.mib << 20
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        for kind in [kind for kind in LOGS if kind in options.only]:
            path = directory / f"{kind}.log"
            print(f"making {kind}: {options.mib} MiB", file=sys.stderr, flush=True)
            planted = write(path, LOGS[kind](random.Random(1)), size)
            show(kind, path, path.stat().st_size, planted, options.cores)
            if kind == "repetitive" and "gzip" in options.only:
                packed = directory / "packed.log.gz"
                with path.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                show("gzip", packed, path.stat().st_size, planted, options.cores)
            path.unlink()
        if "cold" in options.only:
            cold(directory)


if __name__ == "__main__":
    main()
