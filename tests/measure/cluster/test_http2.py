"""Our client's side of HTTP/2 against the h2 library's server side, and against bytes that no server sends."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import h2.config
import h2.connection
import h2.events
import hpack
import pytest
from h2.exceptions import H2Error
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.measure.cluster.http2 import Call, CallError, Client, Connection
from tests.measure.cluster.servers import Behaviour, says, serving

TRAILERS = [("grpc-status", "16"), ("grpc-message", "InvalidAuthToken: Authentication token is missing or incorrect")]
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "x"), ("te", "trailers")]
GREETING = b"\0\0\0\4\0\0\0\0\0"


def a_server() -> h2.connection.H2Connection:
    return h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def conversation(body: bytes, *, chunk: int = 1 << 16, padding: int | None = 7) -> Call:
    """What our side has when the library's server answered a call with `body` and trailers."""
    server, client = a_server(), Client()
    call = client.request(REQUEST, b"request")
    server.initiate_connection()
    asked: list[h2.events.Event] = []
    for _ in range(3):
        asked += server.receive_data(client.data_to_send())
        if any(isinstance(event, h2.events.StreamEnded) for event in asked):
            asked.clear()
            server.send_headers(call.stream, [(":status", "200"), ("content-type", "application/grpc")])
            for start in range(0, len(body), 16000):
                server.send_data(call.stream, body[start : start + 16000], pad_length=padding)
            server.send_headers(call.stream, TRAILERS, end_stream=True)
        said = server.data_to_send()
        for start in range(0, len(said), chunk):
            client.receive(said[start : start + chunk])
    return call


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_a_call_to_the_librarys_server(chunk: int) -> None:
    body = bytes(range(256)) * 400
    call = conversation(body, chunk=chunk)
    assert call.headers[":status"] == "200"
    assert call.headers["grpc-status"] == "16"
    assert call.headers["grpc-message"].startswith("InvalidAuthToken: ")
    assert bytes(call.body) == body
    assert (call.ended, call.fault) == (True, "")


def test_a_large_answer_waits_for_no_window() -> None:
    """The server may send all of it at once: windows of HTTP/2's usual size would stop it after 64 KiB."""
    assert len(conversation(bytes(9 << 20), padding=None).body) == 9 << 20


def test_the_library_understands_our_request() -> None:
    server, client = a_server(), Client()
    value = "x" * 300  # its length needs a second byte
    client.request([*REQUEST, ("k", value)], b"b")
    events = server.receive_data(client.data_to_send())
    headers = next(event.headers for event in events if isinstance(event, h2.events.RequestReceived))
    assert dict(headers or ())["k"] == value
    assert [event.data for event in events if isinstance(event, h2.events.DataReceived)] == [b"b"]


def test_pings_and_settings_are_acknowledged() -> None:
    server, client = a_server(), Client()
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    server.ping(b"12345678")
    client.receive(server.data_to_send())
    kinds = [type(event) for event in server.receive_data(client.data_to_send())]
    assert h2.events.SettingsAcknowledged in kinds
    assert h2.events.PingAckReceived in kinds


@pytest.mark.parametrize(("end", "words"), [("reset", "RST_STREAM, error 7"), ("goaway", "GOAWAY, error 2")])
def test_a_reset_and_a_goaway_are_heard(end: str, words: str) -> None:
    server, client = a_server(), Client()
    call = client.request(REQUEST, b"")
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    if end == "reset":
        server.reset_stream(call.stream, 7)
    else:
        server.close_connection(2)
    client.receive(server.data_to_send())
    assert words in call.fault
    assert not call.ended


def test_what_another_stream_says_is_not_the_answer() -> None:
    server, client = a_server(), Client()
    first = client.request(REQUEST, b"")
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    server.reset_stream(first.stream, 8)
    client.receive(server.data_to_send())
    second = client.request(REQUEST, b"")
    server.receive_data(client.data_to_send())
    server.send_headers(second.stream, [(":status", "404")], end_stream=True)
    client.receive(server.data_to_send())
    assert (second.headers, second.ended, second.fault) == ({":status": "404"}, True, "")
    assert not first.headers


def test_headers_that_grpc_does_not_allow_are_read_all_the_same() -> None:
    client = Client()
    call = client.request(REQUEST, b"")
    block = hpack.Encoder().encode([(":status", "200"), ("X-Upper", "a"), ("connection", "close"), (b"k", b"\xff\n")])
    client.receive(GREETING + frame(1, 5, call.stream, block))
    assert call.headers[":status"] == "200"
    assert {"x-upper", "connection", "k"} <= set(call.headers)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_hostile_bytes_are_an_answer_or_an_error(data: bytes) -> None:
    for greeting in (b"", GREETING):
        client = Client()
        client.request(REQUEST, b"")
        with contextlib.suppress(H2Error):
            client.receive(greeting + data)


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 255), st.sampled_from((0, 1, 1, 1, 2, 3)), st.binary(max_size=40)),
        max_size=6,
    )
)
def test_hostile_frames_too(frames: list[tuple[int, int, int, bytes]]) -> None:
    client = Client()
    client.request(REQUEST, b"")
    with contextlib.suppress(H2Error):
        client.receive(GREETING)
        for each in frames:
            client.receive(frame(*each))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 255))
def test_hostile_header_blocks_too(block: bytes, flags: int) -> None:
    client = Client()
    client.request(REQUEST, b"")
    with contextlib.suppress(H2Error):
        client.receive(GREETING + frame(1, flags | 4, 1, block))


def giant_headers() -> bytes:
    """More header bytes than any server means, of which each says little by itself (a "bomb" of HPACK)."""
    encoder = hpack.Encoder()
    block = encoder.encode([("k", "v" * 4000)]) + encoder.encode([("k", "v" * 4000)]) * 4000
    return GREETING + frame(1, 0, 1, block[:16000]) + frame(9, 4, 1, block[16000:32000])


HOSTILE = {
    "giant headers": giant_headers(),
    "headers without an end": GREETING + frame(1, 0, 1, b"") + frame(9, 0, 1, b"\x40" * 16000) * 80,
    "a giant frame": GREETING + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(1 << 24),
    "data before headers": GREETING + frame(0, 1, 1, b"x"),
    "a stream that nobody asked for": GREETING + frame(1, 5, 3, b"\x88"),
    "no HTTP/2": b"\0\0\7\7\0\0\0\0\0surprise",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_garbage_within_the_deadline(name: str) -> None:
    started = time.monotonic()
    assert fault_of(says(HOSTILE[name]), 15.0).kind == "garbage"
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(("words", "pause_s"), [(GREETING, 0.05), (frame(6, 0, 0, b"12345678") * 3000, 0)])
def test_a_server_that_drips_or_floods_is_slow_and_costs_the_deadline(words: bytes, pause_s: float) -> None:
    def speaks_on(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(GREETING)
        while True:
            connection.sendall(words)
            time.sleep(pause_s)

    started = time.monotonic()
    assert fault_of(speaks_on, 0.5).kind == "slow"
    assert time.monotonic() - started < 10


def fault_of(behave: Behaviour, deadline_s: float) -> CallError:
    with serving(behave) as port, Connection("127.0.0.1", port, 1.0) as connection:
        with pytest.raises(CallError) as caught:
            connection.call("/a.B/C", b"", time.monotonic() + deadline_s)
        return caught.value


@pytest.mark.parametrize(
    "module", ["rlcheck.cli.app", "rlcheck.cli.env", "rlcheck.measure.machine.registry", "rlcheck.measure.cluster"]
)
def test_what_asks_no_port_does_not_load_the_library(module: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.modules if name.split('.')[0] in ('h2', 'hpack')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
