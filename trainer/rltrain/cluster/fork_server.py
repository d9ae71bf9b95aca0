"""Workers that begin with their imports done: one process imports what they all need, and forks for each of them.

A training rank spends nine CPU seconds in imports and two in work before its first step, on a toy; an engine the same.
Ray starts each worker as an interpreter of its own. Here it starts `fork_client.py` instead, which asks the server for
a copy of itself: the copy becomes the worker that Ray wanted, with its arguments, variables and standard files.

On CPUs alone, and for a local Ray: a worker on a GPU reads variables when its libraries are imported, and the cores of
such a machine import side by side anyway.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrain.cluster import fork_client, shield
from rltrain.cluster.processes import family

NUM_THREADS = "OMP_NUM_THREADS"
_CODE = (
    "import sys; sys.path[0] = {path!r}; from rltrain.cluster.fork_server import main; main({listening}, {lifeline})"
)
"""Our package first, and nothing of the working directory's, as Ray has it in workers (`ray_start`)."""
_BACKLOG = 64
_END_S = 5.0
"""While it imports, it does not listen."""


@dataclass(frozen=True)
class Imports:
    """What workers of a run import, and the most threads that one of them may use: libraries read that once."""

    modules: tuple[str, ...]
    num_threads: int


class ForkServer:
    """A server that imports, or has; it ends with `close`, and with this process, however that ends."""

    def __init__(self, imports: Imports) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="rltrain-fork-"))  # which nobody else may enter
        self.address = self._place / "socket"
        lifeline, self._lifeline = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(self.address))
            listening.listen(_BACKLOG)
            self._process = _start(listening.fileno(), lifeline, imports)
        os.close(lifeline)
        self.processes = family(self._process.pid)

    def close(self) -> None:
        """End the server; the workers that it has forked live on."""
        os.close(self._lifeline)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._place, ignore_errors=True)


@contextmanager
def forking(imports: Imports | None) -> Generator[ForkServer | None]:
    """In the block, a server of IMPORTS runs; None: there is none, as nothing is to be imported."""
    server = None if imports is None else ForkServer(imports)
    try:
        yield server
    finally:
        if server is not None:
            server.close()


def _start(listening: int, lifeline: int, imports: Imports) -> subprocess.Popen[bytes]:
    code = _CODE.format(path=str(Path(__file__).resolve().parents[2]), listening=listening, lifeline=lifeline)
    with shield.for_children():
        return subprocess.Popen(
            [sys.executable, "-c", code, *imports.modules],
            env=os.environ | {NUM_THREADS: str(imports.num_threads)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(listening, lifeline),
        )


def main(listening: int, lifeline: int) -> None:
    """Import what the command line names, then fork for each request until LIFELINE, a pipe's end, closes."""
    gc.disable()  # it would walk all that imports make again and again
    for name in sys.argv[1:]:
        with contextlib.suppress(Exception):  # the worker that needs it imports it again, and says what is wrong
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    arguments = _serve(socket.socket(fileno=listening), lifeline)
    sys.argv[:] = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    runpy.run_path(arguments[0], run_name="__main__")


def _serve(server: socket.socket, lifeline: int) -> Sequence[str]:
    """Fork for each request; returns the arguments in the process that is to run them."""
    for descriptor in (server.fileno(), lifeline):
        os.set_inheritable(descriptor, False)
    while lifeline not in select.select([server, lifeline], [], [])[0]:
        connection = server.accept()[0]
        message, descriptors, *_ = socket.recv_fds(connection, fork_client.LONGEST, len(fork_client.STANDARD))
        if len(descriptors) == len(fork_client.STANDARD):
            # Those that have ended are collected late: how one ended can be read from the kernel until then.
            _collect()
            if not os.fork():
                server.close()
                os.close(lifeline)
                return _become(json.loads(message), connection, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()
    shutil.rmtree(Path(server.getsockname()).parent, ignore_errors=True)
    os._exit(0)


def _collect() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(call: dict[str, Any], connection: socket.socket, descriptors: Sequence[int]) -> Sequence[str]:
    try:
        connection.send(b"forked")
    except OSError:
        os._exit(0)  # nobody waits for it any longer
    connection.detach()  # open until this process ends: that is what the client waits for now
    for standard, descriptor in zip(fork_client.STANDARD, descriptors, strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(call["environ"])
    os.chdir(call["cwd"])
    os.setpriority(os.PRIO_PROCESS, 0, call["priority"])
    return call["arguments"]
