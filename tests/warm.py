"""`rlcheck` without its imports: a process that has made them once forks for every call, which then runs as any other.

A call has arguments, working directory, variables and standard files of its own, and ends like an interpreter that was
started for it. What an interpreter reads at its own start (`PYTHON…`, the locale) is no business of a warm one: see
`tests.conftest.rlcheck`.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LONGEST_MESSAGE = 60_000
"""Bytes: what a socket takes at once."""
ENDED_S = 60.0
"""How long a killed call may take to be gone."""


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: int
    out: bytes
    err: bytes
    cpu_s: float


class Warm:
    """The client's side."""

    def __init__(self, environ: Mapping[str, str], cwd: str) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        # Pipes, as each call has them: Python looks at the kind of its standard files when it starts.
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def call(
        self, arguments: Sequence[str], environ: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> Ended | None:
        """Run `rlcheck ARGUMENTS`; None where they are too long to be sent.

        Raises:
            TimeoutExpired: it took longer; it has been killed.
        """
        message = json.dumps({"arguments": arguments, "environ": environ}).encode()
        if len(message) > LONGEST_MESSAGE:
            return None
        (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
        socket.send_fds(self._channel, [message], [in_read, out_write, err_write])
        for descriptor in (in_read, out_write, err_write):
            os.close(descriptor)
        pid = self._answer()
        threading.Thread(target=_feed, args=(in_write, stdin), daemon=True).start()
        texts = _read_all((out_read, err_read), time.monotonic() + timeout_s)
        in_time = texts is not None and bool(select.select([self._channel], [], [], timeout_s)[0])
        if not in_time:
            os.kill(pid, signal.SIGKILL)
            assert select.select([self._channel], [], [], ENDED_S)[0], f"process {pid} does not end"
        code, cpu_s = self._answer()
        if texts is None or not in_time:
            raise subprocess.TimeoutExpired(["rlcheck", *arguments], timeout_s)
        return Ended(code, *texts, cpu_s)

    def _answer(self) -> Any:
        answer = self._channel.recv(LONGEST_MESSAGE)
        assert answer, f"the warm process is gone: {self._process.communicate()[1].decode()}"
        return json.loads(answer)


def _feed(descriptor: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(descriptor, "wb") as pipe:
        pipe.write(data)


def _read_all(descriptors: tuple[int, int], deadline: float) -> tuple[bytes, bytes] | None:
    """What comes out of both until their ends; None where DEADLINE comes first."""
    shown = dict.fromkeys(descriptors, b"")
    left = set(descriptors)
    try:
        while left:
            ready = select.select(left, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                return None
            for descriptor in ready:
                chunk = os.read(descriptor, 1 << 16)
                shown[descriptor] += chunk
                if not chunk:
                    left.discard(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    out, err = shown.values()
    return out, err


def _import_everything() -> None:
    import rlcheck
    import rlcheck.cli.app

    parts = [module.name for module in pkgutil.walk_packages(rlcheck.__path__, "rlcheck.")]
    for name in ("yaml", "rich.console", "rich.table", "rich.text", *parts):
        if not name.startswith("rlcheck.remote") and name != "rlcheck.__main__":
            __import__(name)


def _serve(channel: socket.socket) -> Sequence[str]:
    """Fork for each call; returns its arguments in the process that is to run it."""
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, LONGEST_MESSAGE, 3)
        if not message:
            os._exit(0)  # the tests are over
        pid = os.fork()
        if not pid:
            return _become(json.loads(message), channel, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps(pid).encode())
        _, status, usage = os.wait4(pid, 0)
        channel.send(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime]).encode())


def _become(call: Mapping[str, Mapping[str, str]], channel: socket.socket, descriptors: Sequence[int]) -> Sequence[str]:
    channel.close()
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(call["environ"])
    random.seed()
    return [*call["arguments"]]


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    _import_everything()
    gc.collect()
    gc.freeze()
    sys.argv[1:] = _serve(channel)
    runpy.run_module("rlcheck", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
