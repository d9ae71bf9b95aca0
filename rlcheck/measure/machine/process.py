"""Running commands that may hang, print garbage or never end, without ever waiting for them past a deadline."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rlcheck.facts.base import Fact, MissingKind, Struct, known, missing

OUTPUT_LIMIT_BYTES = 8 << 20
_REMOTE = Path(__file__).resolve().parent.parent.parent / "remote"
_REAP_S = 0.2
_running: set[int] = set()


class CommandResult(Struct, frozen=True):
    """What a command that ended in time printed. A negative `returncode` is the signal that killed it."""

    returncode: int
    stdout: str = ""
    stderr: str = ""


def run_command(
    argv: Sequence[str], environ: Mapping[str, str], timeout_s: float, stdin: str | None = None
) -> Fact[CommandResult]:
    """Run `argv` and return its output, or why there is none (absent, permission, timeout, error)."""
    name = os.path.basename(argv[0])
    outcome = _communicate(argv, environ, timeout_s, (stdin or "").encode())
    if isinstance(outcome, OSError):
        kind = {2: MissingKind.ABSENT, 13: MissingKind.PERMISSION}.get(outcome.errno or 0, MissingKind.ERROR)
        return missing(kind, f"{name}: {outcome.strerror or outcome}")
    returncode, stdout, stderr = outcome
    if returncode is None:
        return missing(MissingKind.TIMEOUT, f"{name} did not answer within {timeout_s:g} s")
    return known(
        CommandResult(
            returncode=returncode, stdout=stdout.decode("utf-8", "replace"), stderr=stderr.decode("utf-8", "replace")
        )
    )


def stream_child(script: str, payload: bytes, environ: Mapping[str, str], timeout_s: float) -> list[Any]:
    """Run a script of `rlcheck/remote` in an isolated Python; return the JSON lines that it printed in time."""
    argv = [sys.executable, "-I", "-S", str(_REMOTE / script)]
    outcome = _communicate(argv, environ, timeout_s, payload)
    if isinstance(outcome, OSError):
        return []
    lines: list[Any] = []
    for line in outcome[1].splitlines():
        # Not msgspec: a path that is no UTF-8 comes as a lone surrogate, which it refuses.
        with contextlib.suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    return lines


def _communicate(
    argv: Sequence[str], environ: Mapping[str, str], timeout_s: float, stdin: bytes
) -> tuple[int | None, bytes, bytes] | OSError:
    """Exit status (None: past the deadline), standard output and standard error of `argv`."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return error if isinstance(error, OSError) else OSError(22, str(error))
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    _running.add(process.pid)
    deadline = time.monotonic() + timeout_s
    try:
        out, err = _converse(process.stdin, stdin, (process.stdout, process.stderr), deadline)
        return _reap(process, deadline), out, err
    finally:
        # The group, not the process: a tool's own children hold the pipes and the device. A child that is stuck in
        # the kernel cannot die yet; it is left to init rather than waited for.
        _kill_group(process.pid)
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        process.stderr.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
        _running.discard(process.pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


@atexit.register
def _kill_what_is_left() -> None:
    """What a stuck probe started must not outlive the report, nor an interrupt."""
    for pid in tuple(_running):
        _kill_group(pid)


def _converse(
    stdin: IO[bytes], data: bytes, pipes: tuple[IO[bytes], IO[bytes]], deadline: float
) -> tuple[bytes, bytes]:
    """Write the input while reading both outputs to their end, to the output limit, or to the deadline."""
    collected = {pipe.fileno(): bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        os.set_blocking(stdin.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _ in selector.select(left):
                if key.fileobj is stdin:
                    data = _write_some(stdin, data)
                    finished = not data
                else:
                    chunk = os.read(key.fd, 1 << 16)
                    buffer = collected[key.fd]
                    buffer += chunk[: max(0, OUTPUT_LIMIT_BYTES - len(buffer))]
                    finished = not chunk
                if finished:
                    selector.unregister(key.fileobj)
                if finished and key.fileobj is stdin:
                    stdin.close()
    out, err = collected.values()
    return bytes(out), bytes(err)


def _write_some(pipe: IO[bytes], data: bytes) -> bytes:
    """Write what the pipe takes now; return the rest (nothing, when the reader has gone)."""
    try:
        return data[os.write(pipe.fileno(), data) :] if data else b""
    except BlockingIOError:
        return data
    except OSError:
        return b""


def _reap(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """The exit status, if the process ends before the deadline."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
