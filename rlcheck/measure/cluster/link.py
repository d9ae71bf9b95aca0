"""One stream of lines to one or several agents, through a process (ssh, srun, a Python) or a socket.

A link that serves several agents says in each message which one is meant (`seat`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

_CHUNK_BYTES = 1 << 16
_NUM_COMPLAINTS = 40


class Link:
    """A stream. Nothing in here waits: what cannot be written or read now is done at the next call.

    Args:
        seats: the indices of the seats at the other end.
        reader, writer: descriptors, owned by the link from now on; they may be the same (a socket).
        complaints: descriptor of the process's standard error, or -1.
        process: the process, which leads a group of its own, or None.
    """

    def __init__(
        self,
        seats: Sequence[int],
        reader: int,
        writer: int,
        complaints: int = -1,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.seats = tuple(seats)
        self.reader, self.writer, self.complaints, self.process = reader, writer, complaints, process
        self.lines: deque[str] = deque(maxlen=_NUM_COMPLAINTS)
        self.wraps = len(self.seats) > 1
        self._unsent, self._unread, self._unread_complaint = bytearray(), bytearray(), bytearray()
        for descriptor in self.descriptors():
            os.set_blocking(descriptor, False)

    def wrapped(self) -> Link:
        """The same link, every message of which names its seat, even if there is one only."""
        self.wraps = True
        return self

    def descriptors(self) -> list[int]:
        """All open descriptors."""
        return [fd for fd in dict.fromkeys((self.reader, self.writer, self.complaints)) if fd >= 0]

    @property
    def is_open(self) -> bool:
        """Whether messages may still come."""
        return self.reader >= 0

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._unsent) and self.writer >= 0

    def send_raw(self, data: bytes) -> None:
        """Write these bytes, now or later."""
        self._unsent += data
        self.flush()

    def send(self, seat: int, message: Mapping[str, Any]) -> None:
        """Send a message to a seat."""
        content = {**message, "seat": seat} if self.wraps else message
        self.send_raw(json.dumps(content).encode() + b"\n")

    def flush(self) -> None:
        """Write what can be written now."""
        while self.has_unsent:
            try:
                written = os.write(self.writer, self._unsent[:_CHUNK_BYTES])
            except BlockingIOError:
                return
            except OSError:  # nobody reads any more; the end of the other direction will tell why
                self._unsent.clear()
                self._close("writer")
                return
            del self._unsent[:written]

    def hang_up(self) -> None:
        """Tell the other side that nothing more will come."""
        self.flush()
        if self.writer != self.reader:
            self._close("writer")

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """The messages that have arrived; what is no message (banners of shells) is kept as a complaint."""
        messages: list[tuple[int, dict[str, Any]]] = []
        for line in self._lines_from("reader", self._unread):
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self._complain(line)
                continue
            seat = message.pop("seat", -1) if self.wraps else self.seats[0]  # pyright: ignore
            if seat in self.seats:
                messages.append((int(seat), message))  # pyright: ignore[reportUnknownArgumentType]
        return messages

    def read_complaints(self) -> None:
        """Keep what the process printed on standard error."""
        for line in self._lines_from("complaints", self._unread_complaint):
            self._complain(line)

    def _complain(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if text:
            self.lines.append(text[:500])

    def _lines_from(self, name: str, unread: bytearray) -> list[bytes]:
        descriptor: int = getattr(self, name)
        while descriptor >= 0:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            unread += chunk
            if not chunk:
                self._close(name)
                unread += b"\n" if unread else b""
                break
            if len(chunk) < _CHUNK_BYTES:
                break
        *lines, rest = bytes(unread).split(b"\n")
        unread[:] = rest
        return lines

    def _close(self, name: str) -> None:
        descriptor: int = getattr(self, name)
        for other in ("reader", "writer", "complaints"):
            if getattr(self, other) == descriptor:
                setattr(self, other, -1)
        with contextlib.suppress(OSError):
            os.close(descriptor)

    def how_it_ended(self, timeout_s: float = 0.5) -> tuple[int | None, tuple[str, ...]]:
        """The exit status, if there is one soon, and the last lines of complaint, once the stream has ended."""
        code: int | None = None
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(timeout_s)
        self.read_complaints()
        return code, tuple(self.lines)

    def is_running(self) -> bool:
        """Whether there is a process that has not ended."""
        return self.process is not None and self.process.poll() is None

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the process group, if it is still there."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Close everything; a process that is left is killed."""
        self.end()
        for name in ("reader", "writer", "complaints"):
            if getattr(self, name) >= 0:
                self._close(name)
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)


def start(
    command: Sequence[str],
    seats: Sequence[int],
    environ: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Link:
    """A link through a new process, which leads a process group of its own.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if environ is None else dict(environ),
        start_new_session=True,
        pass_fds=tuple(pass_fds),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    pipes = (process.stdout, process.stdin, process.stderr)
    reader, writer, complaints = (os.dup(pipe.fileno()) for pipe in pipes)
    for pipe in pipes:
        pipe.close()
    return Link(seats, reader, writer, complaints, process)


def wait_all(links: Sequence[Link], timeout_s: float) -> None:
    """Wait until the processes of all links have ended, at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(link.is_running() for link in links):
        time.sleep(0.01)
