"""Our HTTP/2 client's side against the h2 library's server side, and against bytes that no server sends."""

from __future__ import annotations

import contextlib

import h2.config
import h2.connection
import h2.events
import hpack
import hpack.huffman
import pytest
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from rlcheck.reach import huffman
from rlcheck.reach.frames import Client, Event, FrameError

ENCODER = hpack.huffman.HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
TRAILERS = [("grpc-status", "16"), ("grpc-message", "InvalidAuthToken: Authentication token is missing or incorrect")]


@given(st.binary(max_size=300))
def test_huffman_reads_what_the_library_wrote(data: bytes) -> None:
    assert huffman.decode(ENCODER.encode(data)) == data


@given(st.binary(max_size=60))
def test_any_bytes_are_huffman_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert ENCODER.encode(huffman.decode(data)) == data


def conversation(body: bytes, *, huffman_coded: bool = True, chunk: int = 1 << 16) -> list[Event]:
    """What our side hears when the library's server answers a call with `body` and trailers."""
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    server.encoder.huffman_coder = ENCODER if huffman_coded else server.encoder.huffman_coder
    client = Client()
    stream = client.request([(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C"), (":authority", "x"),
                             ("te", "trailers")], b"request")  # fmt: skip
    server.initiate_connection()
    heard: list[Event] = []
    asked: list[h2.events.Event] = []
    for _ in range(3):
        asked += server.receive_data(client.data_to_send())
        if any(isinstance(event, h2.events.StreamEnded) for event in asked):
            asked.clear()
            server.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
            for start in range(0, len(body), 16000):
                server.send_data(stream, body[start : start + 16000], pad_length=7)
            server.send_headers(stream, TRAILERS, end_stream=True)
        said = server.data_to_send()
        for start in range(0, len(said), chunk):
            heard += client.receive(said[start : start + chunk])
    return heard


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_a_call_to_the_librarys_server(chunk: int) -> None:
    body = bytes(range(256)) * 400
    heard = conversation(body, chunk=chunk)
    headers = dict(pair for event in heard for pair in event.headers)
    assert headers[":status"] == "200"
    assert headers["grpc-status"] == "16"
    assert headers["grpc-message"].startswith("InvalidAuthToken: ")
    assert b"".join(event.data for event in heard) == body
    assert [event.ended for event in heard][-1]


def test_the_library_understands_our_request() -> None:
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    client = Client()
    value = "x" * 300  # its length needs a second byte
    client.request([(":method", "POST"), (":scheme", "http"), (":path", "/p"), (":authority", "x"), ("k", value)], b"b")
    events = server.receive_data(client.data_to_send())
    headers = next(event.headers for event in events if isinstance(event, h2.events.RequestReceived))
    assert dict(headers or ())["k"] == value
    assert [event.data for event in events if isinstance(event, h2.events.DataReceived)] == [b"b"]


def test_pings_and_settings_are_acknowledged() -> None:
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    client = Client()
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    server.ping(b"12345678")
    client.receive(server.data_to_send())
    kinds = [type(event) for event in server.receive_data(client.data_to_send())]
    assert h2.events.SettingsAcknowledged in kinds
    assert h2.events.PingAckReceived in kinds


def test_a_reset_and_a_goaway_are_heard() -> None:
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    client = Client()
    stream = client.request([(":method", "POST"), (":scheme", "http"), (":path", "/p"), (":authority", "x")], b"")
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    server.reset_stream(stream, 7)
    server.close_connection(2)
    heard = client.receive(server.data_to_send())
    assert [(event.kind, event.stream, event.code) for event in heard] == [("reset", stream, 7), ("goaway", 0, 2)]


@given(st.binary(max_size=200))
def test_hostile_bytes_are_events_or_a_frame_error(data: bytes) -> None:
    for greeting in (b"", b"\0\0\0\4\0\0\0\0\0"):
        with contextlib.suppress(FrameError):
            Client().receive(greeting + data)


@given(st.binary(max_size=80), st.integers(0, 255))
def test_hostile_header_blocks_too(block: bytes, flags: int) -> None:
    frame = len(block).to_bytes(3, "big") + bytes((1, flags | 4)) + (1).to_bytes(4, "big") + block
    with contextlib.suppress(FrameError):
        Client().receive(b"\0\0\0\4\0\0\0\0\0" + frame)
