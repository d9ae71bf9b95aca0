"""Names, routes, TCP and proxies, on this machine's own resolver, routing table and sockets."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlcheck.measure.cluster import names, proxies, routes, tcp
from rlcheck.measure.cluster.tcp import Target
from tests.conftest import ROOT
from tests.measure.cluster.servers import free_port, serving, silent


def test_names():
    assert names.resolve("10.0.0.5", 1).addresses == ("10.0.0.5",)
    assert names.resolve("fe80::1%eth0", 1).is_literal
    assert "127.0.0.1" in names.resolve("localhost", 3).addresses
    assert names.resolve("no-such-name.invalid", 3).error
    assert names.resolve("a" * 70 + ".example", 3).error == "is no name that a resolver takes"
    assert names.resolve("nul\0name", 3).error


def test_a_resolver_that_hangs_costs_its_deadline(monkeypatch: pytest.MonkeyPatch):
    forever = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [forever.wait(60)][:0])
    started = time.monotonic()
    found = names.resolve("head", 0.2)
    forever.set()
    assert time.monotonic() - started < 20
    assert "did not answer" in found.error


def test_routes_to_this_machine():
    route = routes.route_to("127.0.0.1")
    assert (route.source, route.interface, route.is_local, route.error) == ("127.0.0.1", "lo", True, "")


def _alone(code: str) -> dict:
    """Run Python in a network namespace of its own, in which no interface is up."""
    command = ["unshare", "-rn"] if os.getuid() else ["unshare", "-n"]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare to make a network namespace with")
    done = subprocess.run([*command, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace: {done.stderr.strip()}")
    return json.loads(done.stdout)


def test_no_route_and_unreachable():
    found = _alone(
        "import json\nfrom rlcheck.measure.cluster import routes, tcp\n"
        "c = tcp.connect_all([tcp.Target('10.1.2.3', 6379, 'gcs')], 1)[0]\n"
        "print(json.dumps([routes.route_to('10.1.2.3').error, c.outcome, c.detail]))"
    )
    assert found == ["Network is unreachable", "unreachable", "Network is unreachable"]


def test_open_refused_and_filtered_at_once():
    with serving(silent) as port, socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        filled = [socket.socket() for _ in range(4)]  # the backlog is full: the kernel drops what comes then
        for client in filled:
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        time.sleep(0.05)
        started = time.monotonic()
        targets = [Target("127.0.0.1", p, "gcs") for p in (port, free_port(), full.getsockname()[1])]
        found = tcp.connect_all([*targets, Target("not an address", 1, "x"), Target("127.0.0.1", 70000, "x")], 0.5)
        seconds = time.monotonic() - started
        for client in filled:
            client.close()
    assert [contact.outcome for contact in found] == ["open", "refused", "filtered", "error", "error"]
    assert 0 < found[0].rtt_s < 0.5
    assert found[1].rtt_s == -1
    assert seconds < 10


def test_hundreds_of_ports_under_one_deadline():
    """More than the batches hold; nobody needs to accept, since the kernel does."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        port, closed = listener.getsockname()[1], free_port()
        targets = [Target("127.0.0.1", port if number % 2 else closed, "probe") for number in range(600)]
        before = len(os.listdir("/proc/self/fd"))
        found = tcp.connect_all(targets, 10)
        after = len(os.listdir("/proc/self/fd"))
    assert [contact.outcome for contact in found] == ["refused", "open"] * 300
    assert after <= before


@pytest.mark.parametrize(
    ("environ", "caught"),
    [
        ({}, {}),
        ({"http_proxy": "http://p:1"}, {"http_proxy": "10.0.0.5"}),
        ({"HTTP_PROXY": "http://p:1", "ALL_PROXY": "x"}, {"HTTP_PROXY": "10.0.0.5", "ALL_PROXY": "10.0.0.5"}),
        ({"https_proxy": "http://p:1"}, {}),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.5,node6"}, {}),
        ({"http_proxy": "http://p:1", "NO_PROXY": "10.0.0.5"}, {"http_proxy": "node6"}),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, {}),
        ({"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8,node6"}, {"http_proxy": "10.0.0.5"}),
    ],
)
def test_proxies_of_http_calls(environ: dict[str, str], caught: dict[str, str]):
    assert proxies.caught_http(environ, ["10.0.0.5", "node6"]) == caught


@pytest.mark.parametrize(
    ("environ", "caught"),
    [
        ({"http_proxy": "http://p:1"}, {}),
        ({"http_proxy": "http://p:1", "RAY_grpc_enable_http_proxy": "1"}, {"http_proxy": "10.0.0.5"}),
        (
            {"https_proxy": "a", "grpc_proxy": "b", "RAY_grpc_enable_http_proxy": "True"},
            {"grpc_proxy": "10.0.0.5"},
        ),
        ({"http_proxy": "a", "no_proxy": "10.0.0.0/8,node6", "RAY_grpc_enable_http_proxy": "1"}, {}),
        ({"http_proxy": "a", "no_proxy": "garbage/99", "RAY_grpc_enable_http_proxy": "1"}, {"http_proxy": "10.0.0.5"}),
        ({"HTTP_PROXY": "a", "RAY_grpc_enable_http_proxy": "1"}, {}),
    ],
)
def test_proxies_of_rays_own_calls(environ: dict[str, str], caught: dict[str, str]):
    assert proxies.caught_grpc(environ, ["10.0.0.5", "node6"]) == caught


def test_python_reads_no_proxy_in_the_same_way(tmp_path: Path):
    """The judgement is urllib's own, asked of another process as a program of the run would."""
    code = "import urllib.request as u; print([bool(u.proxy_bypass(h)) for h in ('10.0.0.5', 'a.node6', 'node7')])"
    environ = {"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8,.node6"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=30)
    hosts = ("10.0.0.5", "a.node6", "node7")
    assert done.stdout.strip() == str([not proxies.caught_http(environ, [host]) for host in hosts])
