"""What users hit between processes: a head of Ray, a rollout server; asked with `rlcheck ray` and `rlcheck rollout`."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.conftest import rlcheck
from tests.rows.machines import says_of


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Page(http.server.BaseHTTPRequestHandler):
    """A web server that has nothing to do with it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html><title>Somebody else</title></html>")


@pytest.fixture
def web_port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()


@pytest.mark.row("F50")
def test_a_head_that_does_not_run(closed_port: int) -> None:
    done = rlcheck("ray", "--head-ip", f"127.0.0.1:{closed_port}")
    says_of(done, "✗ RAY034", "refused", f"Start the head on port {closed_port}", code=1)


@pytest.mark.row("F50", "F51")
def test_a_port_that_somebody_else_has(web_port: int) -> None:
    """An open port is no head: who answers there, and which process it is."""
    done = rlcheck("ray", "--head-ip", f"127.0.0.1:{web_port}")
    says_of(done, "✗ RAY035", "an HTTP server", "(pid ", "8265 (dashboard) or 10001 (Ray Client)", code=1)


@pytest.mark.row("F20")
def test_a_rollout_server_that_is_not_there(closed_port: int) -> None:
    done = rlcheck("rollout", f"http://127.0.0.1:{closed_port}")
    says_of(done, "✗ ROL010", f"127.0.0.1:{closed_port}: Connection refused", "--host 0.0.0.0", code=1)


@pytest.mark.row("F20")
def test_a_rollout_server_that_is_something_else(web_port: int) -> None:
    says_of(rlcheck("rollout", f"http://127.0.0.1:{web_port}"), "✗ ROL011", "Somebody else", code=1)
