"""What answers at a port: the GCS, or one of the things that people find there instead.

The first words are always a gRPC health call. A server of another protocol gives itself away by how it turns them down:
HTTP/1 with a status line, Redis with an error that begins with a minus, TLS with an alert. Two words of its own
protocol then make sure.

Sources: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time

from rlcheck.facts.reach import Speaker
from rlcheck.measure.cluster.gcs import HEALTH, IS_ALIVE, asks_for_token
from rlcheck.measure.cluster.http2 import (
    OK,
    UNAUTHENTICATED,
    UNIMPLEMENTED,
    CallError,
    Connection,
    begins_as_http2,
    printable,
)
from rlcheck.protobuf import field

_CLIENT_INFO, _PING = "/ray.rpc.RayletDriver/ClusterInfo", field(1, 6)
_SECOND_WORD_S = 0.7
_FIRST_BYTES = 4096


def who_speaks(address: str, port: int, timeout_s: float) -> Speaker:
    """What answers at an open port, within `timeout_s` (and three quarters of a second more for a second question)."""
    deadline = time.monotonic() + timeout_s
    try:
        with Connection(address, port, timeout_s) as connection:
            return _speaks_http2(connection, deadline)
    except CallError as error:
        return _speaks_otherwise(address, port, error)


def _speaks_http2(connection: Connection, deadline: float) -> Speaker:
    health = connection.call(HEALTH, b"", deadline)
    if health.grpc_status < 0:
        return Speaker(kind="http", detail=f"HTTP/2 without gRPC, status {health.http_status}")
    deadline = max(deadline, time.monotonic() + _SECOND_WORD_S)
    alive = connection.call(IS_ALIVE, b"", deadline)
    if alive.grpc_status == OK or asks_for_token(alive):
        return Speaker(kind="gcs", detail=f"health {health.status_name}")
    if health.grpc_status == OK and alive.grpc_status != UNIMPLEMENTED:
        return Speaker(kind="gcs", detail=f"{alive.status_name}: {alive.grpc_message}")
    client = connection.call(_CLIENT_INFO, _PING, deadline)
    if client.grpc_status in (OK, UNAUTHENTICATED) and alive.grpc_status == UNIMPLEMENTED:
        return Speaker(kind="ray-client")
    return Speaker(kind="grpc", detail=f"answers {alive.status_name} to the GCS's calls")


def _speaks_otherwise(address: str, port: int, error: CallError) -> Speaker:
    first = error.first
    if error.kind == "silent":
        return Speaker(kind="silent")
    if first.startswith((b"\x15\x03", b"\x16\x03")):
        return Speaker(kind="tls", detail="answered with a TLS alert")
    if first.startswith(b"HTTP/1"):
        return _http(address, port) or Speaker(kind="http", detail=_line(first))
    if first[:1] in (b"-", b"+"):
        return _redis(address, port) or Speaker(kind="other", detail=_line(first))
    if first.startswith(b"<"):  # an HTTP/1 server that takes the greeting for HTTP/0.9 answers without a head
        return _http(address, port) or Speaker(kind="other", detail=_line(first))
    if first and not begins_as_http2(first):
        return Speaker(kind="other", detail=_line(first))
    if first:
        return Speaker(kind="grpc" if error.kind == "reset" else "other", detail=printable(str(error)))
    if _is_tls(address, port):
        return Speaker(kind="tls", detail="answers a TLS greeting")
    return _http(address, port) or Speaker(kind="closes", detail=printable(str(error)))


def _line(data: bytes) -> str:
    return printable(data.split(b"\n", 1)[0].decode("utf-8", "replace"), 80)


def _redis(address: str, port: int) -> Speaker | None:
    answer = _ask(address, port, b"PING\r\n", b"\n")
    known = answer.startswith((b"+PONG", b"-NOAUTH", b"-DENIED", b"-NOPERM", b"-LOADING", b"-MASTERDOWN"))
    return Speaker(kind="redis", detail=_line(answer)) if known else None


def _http(address: str, port: int) -> Speaker | None:
    """An HTTP server. Ray's dashboard is known by its version page, or, when that asks for a token, by its title."""
    version = _get(address, port, "/api/version")
    if not version.startswith(b"HTTP/"):
        return None
    status = _line(version)
    head = version.split(b"\r\n\r\n", 1)[0].decode("utf-8", "replace")
    server = next((line[7:].strip() for line in head.split("\r\n") if line.lower().startswith("server:")), "")
    is_dashboard = b'"ray_version"' in version
    if not is_dashboard and status.split(" ")[1:2] in (["401"], ["403"]):
        is_dashboard = b"Ray Dashboard" in _get(address, port, "/")
    kind = "dashboard" if is_dashboard else "http"
    return Speaker(kind=kind, detail=printable(f"{status}{', ' + server if server else ''}", 80))


def _get(address: str, port: int, path: str) -> bytes:
    host = f"[{address}]" if ":" in address else address
    return _ask(address, port, f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())


def _is_tls(address: str, port: int) -> bool:
    """Whether it answers a TLS greeting with a greeting or an alert. No handshake is made and nothing is trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    greeting = context.wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLError):  # it wants an answer to the greeting that it just wrote
        greeting.do_handshake()
    return _ask(address, port, outgoing.read(), limit=3)[:2] in (b"\x15\x03", b"\x16\x03")


def _ask(address: str, port: int, question: bytes, end: bytes = b"", limit: int = _FIRST_BYTES) -> bytes:
    """What a new connection answers to `question`: until `end` is seen, so many bytes have come, or time is up."""
    deadline = time.monotonic() + _SECOND_WORD_S
    answer = b""
    try:
        with socket.create_connection((address, port), _SECOND_WORD_S) as handle:
            handle.sendall(question)
            while len(answer) < limit and not (end and end in answer):
                handle.settimeout(max(0.01, deadline - time.monotonic()))
                data = handle.recv(limit)
                if not data or time.monotonic() > deadline:
                    return answer + data
                answer += data
    except OSError:
        return answer
    return answer
