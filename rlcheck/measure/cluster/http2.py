"""gRPC calls over plain TCP, one at a time, each with a deadline. HTTP/2 itself is the library h2's (docs/adr/0020).

Only what asks a port imports this module: h2 and what it brings cost a cold start tens of milliseconds.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import socket
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings

_LIMIT_BYTES = 32 << 20
_KEPT_BYTES = 256
_MAX_HEADERS = 64 << 10
_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65535
STATUS_NAMES = ("ok", "cancelled", "unknown", "invalid-argument", "deadline-exceeded", "not-found", "already-exists",
                "permission-denied", "resource-exhausted", "failed-precondition", "aborted", "out-of-range",
                "unimplemented", "internal", "unavailable", "data-loss", "unauthenticated")  # fmt: skip
"""gRPC's status codes, by number. Source: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md"""
OK, UNIMPLEMENTED, UNAUTHENTICATED = 0, 12, 16


class CallError(Exception):
    """A call that brought no answer.

    `kind` is silent (nothing came before the deadline), slow (an answer began and did not end), closed, reset (the
    other side refused this call or the connection, in HTTP/2's words), garbage (no HTTP/2) or network. `first` is the
    beginning of what did come on this connection.
    """

    def __init__(self, kind: str, detail: str, first: bytes = b"") -> None:
        super().__init__(detail)
        self.kind = kind
        self.first = first


@dataclass(frozen=True)
class Reply:
    """The answer to a call. `grpc_status` is -1 when the server speaks HTTP/2 and no gRPC."""

    http_status: int
    grpc_status: int
    grpc_message: str
    body: bytes = field(repr=False)

    @property
    def status_name(self) -> str:
        """The status in gRPC's words, in lower case."""
        known = 0 <= self.grpc_status < len(STATUS_NAMES)
        return STATUS_NAMES[self.grpc_status] if known else f"status {self.grpc_status}"


@dataclass
class Call:
    """What came of one call so far. `fault`: how the server ended it, or the connection, before it had answered."""

    stream: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytearray = field(default_factory=bytearray)
    ended: bool = False
    fault: str = ""


class Client:
    """The client's side of one connection, with one call at a time. Touches no socket."""

    def __init__(self) -> None:
        # Headers are only read, and never sent on: what a gRPC server may not send is still shown, not refused.
        self._protocol = H2Connection(H2Configuration(client_side=True, validate_inbound_headers=False))
        # Windows that no answer fills, so that none waits for our leave to go on.
        self._protocol.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADERS,
            },
        )
        self._protocol.initiate_connection()
        self._protocol.increment_flow_control_window(_WINDOW - _FIRST_WINDOW)
        self._call = Call(0, ended=True)

    def data_to_send(self) -> bytes:
        """What to send now; it is handed out once."""
        return self._protocol.data_to_send()

    def request(self, headers: Iterable[tuple[str, str]], body: bytes) -> Call:
        """Begin a call with one whole request.

        Raises:
            H2Error: this connection takes no further call.
        """
        self._call = Call(self._protocol.get_next_available_stream_id())
        self._protocol.send_headers(self._call.stream, list(headers))
        self._protocol.send_data(self._call.stream, body, end_stream=True)
        return self._call

    def receive(self, data: bytes) -> None:
        """Add what DATA says to the call.

        Raises:
            H2Error: this is no HTTP/2.
        """
        for event in self._protocol.receive_data(data):
            if not self._call.ended:
                _take(event, self._call)


class Connection:
    """One connection to a gRPC server.

    Args:
        address: a literal address.
        port: TCP port.
        timeout_s: for connecting.
        max_segment: the largest TCP segment in bytes that the server may send; 0 for what the route allows.

    Raises:
        CallError: no connection.
    """

    def __init__(self, address: str, port: int, timeout_s: float, max_segment: int = 0) -> None:
        self._authority = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            self._socket.settimeout(max(timeout_s, 0.01))
            if max_segment:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, max_segment)
            self._socket.connect((address, port))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each call is a few small packets
        except OSError as error:
            raise CallError("network", error.strerror or str(error)) from None
        self._first = b""
        self._client = Client()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def call(self, path: str, body: bytes, deadline: float, headers: Mapping[str, str] | None = None) -> Reply:
        """Call a unary method.

        Args:
            path: `/package.Service/Method`.
            body: the request, as protobuf.
            deadline: on `time.monotonic()`; nothing here outlasts it.
            headers: more metadata.

        Raises:
            CallError: no whole answer came.
        """
        try:
            return self._call(path, body, deadline, headers or {})
        except H2Error as error:
            raise CallError("garbage", f"no HTTP/2: {error}", self._first) from None
        except TimeoutError:
            kind, words = ("slow", "the answer did not end") if self._first else ("silent", "nothing answered")
            raise CallError(kind, f"{words} in time", self._first) from None
        except OSError as error:
            raise CallError("closed", error.strerror or str(error), self._first) from None

    def _call(self, path: str, body: bytes, deadline: float, headers: Mapping[str, str]) -> Reply:
        remaining_ms = max(1, int((deadline - time.monotonic()) * 1e3))
        call = self._client.request(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", self._authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("grpc-timeout", f"{remaining_ms}m"),
                *headers.items(),
            ],
            b"\0" + len(body).to_bytes(4, "big") + body,
        )
        self._send(deadline)
        while not call.ended:
            self._client.receive(self._receive(deadline))
            if len(call.body) > _LIMIT_BYTES:
                raise CallError("garbage", f"an answer of more than {_LIMIT_BYTES >> 20} MiB", self._first)
            if call.fault:
                raise CallError("reset", call.fault, self._first)
            self._send(deadline)
        return _reply(call)

    def _send(self, deadline: float) -> None:
        data = self._client.data_to_send()
        if data:
            self._wait_until(deadline)
            self._socket.sendall(data)

    def _receive(self, deadline: float) -> bytes:
        self._wait_until(deadline)
        data = self._socket.recv(1 << 16)
        self._first += data[: max(0, _KEPT_BYTES - len(self._first))]
        if not data:
            raise CallError("closed", "the connection was closed", self._first)
        if not begins_as_http2(self._first):
            raise CallError("garbage", "no HTTP/2", self._first)
        return data

    def _wait_until(self, deadline: float) -> None:
        """Let the next operation on the socket wait no longer than that."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining)


def begins_as_http2(data: bytes) -> bool:
    """Whether `data` may be the beginning of what an HTTP/2 server sends: its settings, in a frame of a usual size."""
    length, rest = int.from_bytes(data[:3], "big"), data[3:9]
    return (len(data) < 3 or length <= 16384) and rest[:1] in (b"", b"\x04") and not any(rest[2:])


def _take(event: Event, call: Call) -> None:
    match event:
        case ConnectionTerminated():
            call.fault = f"the server ended the connection (GOAWAY, error {int(event.error_code or 0)})"
        case ResponseReceived(stream_id=call.stream) | TrailersReceived(stream_id=call.stream):
            call.headers.update({_text(name).lower(): _text(value) for name, value in event.headers})
        case DataReceived(stream_id=call.stream):
            call.body += event.data
        case StreamEnded(stream_id=call.stream):
            call.ended = True
        case StreamReset(stream_id=call.stream):
            if not event.remote_reset:
                raise ProtocolError(f"a stream that broke its rules, error {int(event.error_code)}")
            call.fault = f"the server refused the call (RST_STREAM, error {int(event.error_code)})"
        case _:
            pass


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode("utf-8", "replace")


def _reply(call: Call) -> Reply:
    """The reply, out of headers, body and trailers."""
    body = bytes(call.body)
    if len(body) >= 5:
        length = int.from_bytes(body[1:5], "big")
        if body[0] or length > len(body) - 5:
            raise CallError("garbage", "a gRPC message that is compressed or cut short", body[:_KEPT_BYTES])
        body = body[5 : 5 + length]
    return Reply(
        http_status=_number(call.headers.get(":status", "")),
        grpc_status=_number(call.headers.get("grpc-status", "")),
        grpc_message=printable(urllib.parse.unquote(call.headers.get("grpc-message", ""), errors="replace")),
        body=body,
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else -1


def printable(text: str, limit: int = 200) -> str:
    """One line of `text` for a report, whatever the other side sent."""
    return " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * limit]).split())[:limit]
