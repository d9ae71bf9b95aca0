"""Small real servers for one test each: sockets that behave badly, and a gRPC server that answers as it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import h2.config
import h2.connection
import h2.events

Behaviour = Callable[[socket.socket], None]
Answer = Callable[[str, dict[str, str]], tuple[int, str, bytes]]


@contextlib.contextmanager
def serving(behave: Behaviour) -> Iterator[int]:
    """A port on loopback whose every connection is given to `behave` in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, behave), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def _accept(listener: socket.socket, behave: Behaviour) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_one, args=(connection, behave), daemon=True).start()


def _one(connection: socket.socket, behave: Behaviour) -> None:
    with connection, contextlib.suppress(OSError, h2.exceptions.H2Error):
        connection.settimeout(10)
        behave(connection)


def says(data: bytes) -> Behaviour:
    """Waits for the first bytes, answers `data`, and hangs up in peace once the other side does."""

    def behave(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass

    return behave


def silent(connection: socket.socket) -> None:
    """Reads and says nothing."""
    while connection.recv(4096):
        pass


def closes(connection: socket.socket) -> None:
    """Hangs up at once."""


def grpc(answer: Answer) -> Behaviour:
    """A gRPC server: `answer` gets path and headers, and gives status, message and body."""

    def behave(connection: socket.socket) -> None:
        protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        protocol.initiate_connection()
        requests: dict[int, dict[str, str]] = {}
        connection.sendall(protocol.data_to_send())
        while data := connection.recv(1 << 16):
            for event in protocol.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    requests[event.stream_id] = {str(name): str(value) for name, value in event.headers}
                elif isinstance(event, h2.events.StreamEnded):
                    _reply(
                        protocol, event.stream_id, answer(requests[event.stream_id][":path"], requests[event.stream_id])
                    )
            connection.sendall(protocol.data_to_send())

    return behave


def _reply(protocol: h2.connection.H2Connection, stream: int, told: tuple[int, str, bytes]) -> None:
    status, message, body = told
    protocol.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
    if body or not status:
        protocol.send_data(stream, b"\0" + len(body).to_bytes(4, "big") + body)
    protocol.send_headers(stream, [("grpc-status", str(status)), ("grpc-message", message)], end_stream=True)


def free_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
