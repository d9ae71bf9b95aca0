"""What answers at a port: real servers of other protocols, bad ones, and bytes that were made to break it."""

import contextlib
import functools
import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.measure.cluster.gcs import HEALTH, IS_ALIVE, ask_gcs, find_token
from rlcheck.measure.cluster.http2 import CallError, Connection
from rlcheck.measure.cluster.speaks import who_speaks
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.protobuf import field
from tests.measure.cluster.servers import Behaviour, closes, free_port, grpc, says, serving, silent

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
UNKNOWN = (12, "", b"")


def kind_of(behave: Behaviour, timeout_s: float = 10.0) -> str:
    with serving(behave) as port:
        return who_speaks("127.0.0.1", port, timeout_s).kind


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "other"),
        (b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n", "http"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "tls"),
        (SETTINGS + b"\0\0\x08\7\0\0\0\0\0" + b"\0\0\0\0\0\0\0\x0b", "grpc"),
        (b"\0" * 40, "other"),
        (b"-ERR unknown command\r\n", "other"),
    ],
)
def test_by_its_first_bytes(data: bytes, kind: str):
    assert kind_of(says(data)) == kind


def test_silent_and_closing_ports_cost_their_deadline_at_most():
    started = time.monotonic()
    assert kind_of(silent, 0.3) == "silent"
    assert kind_of(closes, 5) == "closes"
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({HEALTH: (0, "", field(1, 1)), IS_ALIVE: (0, "", b"")}, "gcs"),
        ({HEALTH: (0, "", field(1, 1)), IS_ALIVE: (16, "InvalidAuthToken: missing", b"")}, "gcs"),
        ({"/ray.rpc.RayletDriver/ClusterInfo": (0, "", b"")}, "ray-client"),
        ({HEALTH: (0, "", field(1, 1))}, "grpc"),
        ({}, "grpc"),
    ],
)
def test_grpc_servers(answers: dict[str, tuple[int, str, bytes]], kind: str):
    assert kind_of(grpc(lambda path, _: answers.get(path, UNKNOWN))) == kind


def test_a_web_server(tmp_path: Path):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = who_speaks("127.0.0.1", server.server_address[1], 10)
        server.shutdown()
    assert found.kind == "http"
    assert "SimpleHTTP" in found.detail


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[int]:
    """A real Redis server."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine")
    port = free_port()
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield port
    server.terminate()
    server.wait(10)


def test_a_redis_server_with_and_without_a_password(redis: int):
    found = who_speaks("127.0.0.1", redis, 10)
    assert (found.kind, found.detail) == ("redis", "+PONG")
    with socket.create_connection(("127.0.0.1", redis)) as client:
        client.sendall(b"CONFIG SET requirepass secret\r\n")
        assert client.recv(100) == b"+OK\r\n"
    found = who_speaks("127.0.0.1", redis, 10)
    assert found.kind == "redis"
    assert found.detail.startswith("-NOAUTH")


def test_a_tls_server(tmp_path: Path):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, cert = str(tmp_path / "key"), str(tmp_path / "cert")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*make, "-subj", "/CN=x", "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=20)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def behave(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(100)

    assert kind_of(behave) == "tls"
    assert kind_of(_hangs_up_on_plain_text(context)) == "tls"


def _hangs_up_on_plain_text(context: ssl.SSLContext) -> Behaviour:
    """As gRPC's own servers do: no alert."""

    def behave(connection: socket.socket) -> None:
        if connection.recv(1, socket.MSG_PEEK) == b"\x16":
            with context.wrap_socket(connection, server_side=True) as wrapped:
                wrapped.recv(100)

    return behave


def test_an_answer_that_never_ends_costs_the_deadline():
    def drips(connection: socket.socket) -> None:
        connection.sendall(SETTINGS)
        while True:
            connection.sendall(b"\0\0\x08\6\0\0\0\0\0" + b"pingping")
            time.sleep(0.02)

    started = time.monotonic()
    with serving(drips) as port, Connection("127.0.0.1", port, 1) as connection, pytest.raises(CallError) as caught:
        connection.call(HEALTH, b"", time.monotonic() + 0.3)
    assert caught.value.kind == "slow"
    assert time.monotonic() - started < 10


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


FRAME = st.builds(frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 3), st.binary(max_size=40))


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=100), st.lists(FRAME, max_size=6).map(lambda frames: SETTINGS + b"".join(frames))))
def test_hostile_bytes_are_a_call_error(data: bytes):
    with serving(says(data)) as port, contextlib.suppress(CallError), Connection("127.0.0.1", port, 1) as connection:
        assert connection.call(HEALTH, b"", time.monotonic() + 1).http_status


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=60))
def test_a_gcs_that_answers_garbage_gives_missing_facts(body: bytes):
    with serving(grpc(lambda path, headers: (0, "", body))) as port:
        found = ask_gcs(ProbeContext(environ={}), "127.0.0.1", port, 2)
    assert found.health
    assert (found.nodes.value is None) == (found.nodes.missing is not None)


def context_with(token: str, tmp_path: Path) -> ProbeContext:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(token)
    return ProbeContext(environ={"HOME": str(tmp_path)})


@pytest.mark.parametrize(("refusal", "is_sent"), [("please log in", False), ("InvalidAuthToken: missing", True)])
def test_the_token_goes_only_to_who_asks_in_rays_words(refusal: str, is_sent: bool, tmp_path: Path):
    seen: list[str] = []

    def answer(path: str, headers: dict[str, str]) -> tuple[int, str, bytes]:
        seen.append(headers.get("authorization", ""))
        return (0, "", field(1, 1)) if path == HEALTH else (16, refusal, b"")

    with serving(grpc(answer)) as port:
        found = ask_gcs(context_with("secret\n", tmp_path), "127.0.0.1", port, 2)
    assert ("Bearer secret" in seen, found.token_sent, found.needs_token) == (is_sent, is_sent, is_sent)
    assert seen[:2] == ["", ""]


def test_where_the_token_is_from(tmp_path: Path):
    context = context_with("from file", tmp_path)
    home = {"HOME": str(tmp_path)}
    assert find_token(context) == ("from file", f"{tmp_path}/.ray/auth_token")
    assert find_token(ProbeContext(environ={**home, "RAY_AUTH_TOKEN": "given"})) == ("given", "RAY_AUTH_TOKEN")
    assert find_token(ProbeContext(environ={**home, "RAY_AUTH_TOKEN_PATH": "/no/such/file"})) == ("", "")
    assert find_token(ProbeContext(environ={})) == ("", "")
