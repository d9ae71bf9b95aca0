"""One process of a job that stands still on purpose: `hang_job.py ROLE FAULT STEP ODD PORT`, with torchrun's variables.

ROLE: rank, or the name of a service (reward, engine). Steps are all_reduce calls; at STEP the rank ODD does FAULT.
HANG_BACKEND: gloo or nccl. With gloo a rank writes its flight record on request, as torch does for NCCL by itself
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE, TORCH_FR_DUMP_TEMP_FILE).
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import json
import os
import signal
import socketserver
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any


def serve(fault: str, step: int, port: int) -> None:
    """Answers with a line; from request STEP on it never does."""
    count = 0

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            nonlocal count
            if not self.rfile.readline().strip():
                return
            count += 1
            while self.rfile.readline().strip():
                pass
            if count > step and fault:
                score_one_answer()
            self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        server.serve_forever()


def score_one_answer() -> None:
    """Never ends: what a verifier does that waits for a sandbox."""
    threading.Event().wait()


def odd_one(fault: str, dist: Any, torch: Any) -> None:
    """What one rank does in place of its step."""
    if fault == "gil":
        ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter lock
    elif fault == "exception":
        try:
            raise ValueError("an answer without a number")
        except ValueError:
            time.sleep(1000)  # went on to something else without the others
    elif fault == "op":
        dist.barrier()
    elif fault.startswith("kernel"):
        torch.cuda._sleep(1 << 62)


def rank_of(fault: str, step: int, odd: int, port: int) -> None:
    """Runs steps until the fault."""
    import torch
    import torch.distributed

    dist: Any = torch.distributed

    rank, backend = int(os.environ["RANK"]), os.environ["HANG_BACKEND"]
    device = f"cuda:{os.environ['LOCAL_RANK']}" if backend == "nccl" else "cpu"
    if backend == "gloo":
        threading.Thread(target=record, args=(rank,), daemon=True).start()
    else:
        torch.cuda.set_device(device)
    ready = Path(os.environ["HANG_DIR"], f"ready.{rank}")
    if fault == "missing":
        ready.touch()
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=600))
    usual, other = (4, 8) if backend == "gloo" else (1 << 20, 1 << 26)
    for number in range(1_000_000):
        if number == step:
            ready.touch()
        if number == step and rank == odd and fault not in ("stopped", "healthy"):
            odd_one(fault, dist, torch)
        if port and rank == odd:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/score", timeout=600).read()
        odd_size = fault == "shape" and number == step and rank == odd
        numbers = torch.ones(other if odd_size else usual, device=device)
        dist.all_reduce(numbers)
        if backend == "nccl":
            numbers[0].item()  # the loss, as every trainer reads it
        time.sleep(0.002)


def record(rank: int) -> None:
    """Write a flight record for each line that comes."""
    recorder: Any = importlib.import_module("torch._C._distributed_c10d")

    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    with suppress(FileExistsError):
        os.mkfifo(pipe)
    while True:
        with open(pipe, "rb") as stream:
            stream.readline()
        path = Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}")
        path.with_suffix(".part").write_bytes(recorder._dump_fr_trace(True, False, False))
        path.with_suffix(".part").rename(path)


def nursery() -> None:
    """Import torch once, then fork a rank for each line of standard input, and print its number.

    A fork shows its parent's variables in /proc, so it writes its own there.
    """
    importlib.import_module("torch.distributed")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(asked["environ"])
        show_environ()
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT)
        for number in (1, 2):
            os.dup2(log, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        fault, *numbers = asked["words"]
        rank_of(fault, *map(int, numbers))


def show_environ() -> None:
    """Have /proc/self/environ show what `os.environ` holds: write it where the process was given its variables.

    The room there is that of NURSERY_ROOM, with which a nursery is started; no variable in use is kept there any more.
    """
    text = "".join(f"{name}={value}\0" for name, value in os.environ.items()).encode()
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    if len(text) > end - start:
        raise ValueError(f"{len(text)} bytes of variables, room for {end - start}")
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    if sys.argv[1:] == ["nursery"]:
        sys.exit(nursery())
    role, fault, step, odd, port = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    if role == "rank":
        rank_of(fault, step, odd, port)
    else:
        serve(fault, step, port)
