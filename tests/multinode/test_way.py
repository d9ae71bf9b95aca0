"""`rlcheck ray` from another machine: which layer of the way to the head is broken, and by what."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.multinode.debs import require
from tests.multinode.netns import Node
from tests.multinode.raycluster import PORT, RayCluster, start_ray
from tests.multinode.reports import examine_ray

# In the order in which the layers are judged.
WAY = ("RAY031", "RAY032", "RAY034", "RAY035", "RAY036")


def serve(node: Node, *command: str) -> None:
    """Run a server on the node's port 6379 and wait until it listens."""
    node.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while f":{PORT} " not in node.run(["ss", "-tlnH"]).stdout:
        assert time.monotonic() < deadline, command
        time.sleep(0.05)


def test_from_a_machine_that_is_no_member(cluster: RayCluster, spare: Node) -> None:
    examined = examine_ray(spare, "--head-ip", "ray://node1:10001")
    assert examined.failed() == set()
    assert examined.findings["RAY044"]["status"] == "pass", "ray:// is the Ray Client's: its port was asked for"
    assert [examined.findings[id]["status"] for id in WAY] == ["pass"] * len(WAY)
    assert examined.findings["RAY041"]["status"] == "pass"


def test_without_ray(cluster: RayCluster, spare: Node) -> None:
    """The doctor alone, in a Python that has no Ray: the same way, the same verdicts."""
    examined = examine_ray(spare, "--head-ip", cluster.head.address, "--python", "/usr/bin/python3")
    assert [examined.findings[id]["status"] for id in WAY] == ["pass"] * len(WAY)


@pytest.mark.row("F50")
@pytest.mark.usefixtures("firewall")
@pytest.mark.parametrize(
    ("fault", "words"), [("drop", ("dropped", "no answer")), ("reject", ("refused",))], ids=["dropped", "rejected"]
)
def test_port_closed_on_the_way(cluster: RayCluster, spare: Node, fault: str, words: tuple[str, ...]) -> None:
    rule = cluster.head.drop(PORT, source=spare) if fault == "drop" else cluster.head.reject(PORT, source=spare)
    with rule:
        examined = examine_ray(spare, "--head-ip", cluster.head.address)
    examined.names("RAY034", f"{cluster.head.address}:{PORT}", *words)
    assert examined.failed() == {"RAY034"}


@pytest.mark.row("F51")
def test_port_owned_by_redis(machines: tuple[Node, ...], spare: Node) -> None:
    (server,) = require("redis-server")
    serve(spare, server, "--port", str(PORT), "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "")
    there = examine_ray(machines[1], "--head-ip", spare.address)
    there.names("RAY035", "Redis", f"{spare.address}:{PORT}")
    on_it = examine_ray(spare, "--head-ip", spare.address)
    on_it.names("RAY035", "Redis", "redis-server", "pid")


@pytest.mark.row("F51")
def test_port_owned_by_redis_on_loopback(machines: tuple[Node, ...], spare: Node) -> None:
    """From outside it is refused; on the machine itself the reason can be seen."""
    (server,) = require("redis-server")
    serve(spare, server, "--port", str(PORT), "--bind", "127.0.0.1", "--save", "")
    examine_ray(machines[1], "--head-ip", spare.address).names("RAY034", "refused")
    examine_ray(spare, "--head-ip", spare.address).names("RAY034", "redis-server", f"127.0.0.1:{PORT}")


@pytest.mark.row("F50")
def test_port_owned_by_http(machines: tuple[Node, ...], spare: Node) -> None:
    serve(spare, sys.executable, "-m", "http.server", str(PORT))
    examine_ray(machines[1], "--head-ip", spare.address).names("RAY035", "HTTP")
    examine_ray(spare, "--head-ip", spare.address).names("RAY035", "HTTP", "http.server")


@pytest.mark.row("F50")
def test_nobody_listens_and_nobody_is_there(machines: tuple[Node, ...], spare: Node) -> None:
    examine_ray(machines[1], "--head-ip", spare.address).names("RAY034", "refused")
    examine_ray(machines[1], "--head-ip", "10.77.9.9").names("RAY034", "10.77.9.9")
    examine_ray(machines[1], "--head-ip", "no-such-host").names("RAY031", "no-such-host")


@pytest.mark.row("F51")
def test_token_missing_and_wrong_and_a_stale_session(machines: tuple[Node, ...], spare: Node) -> None:
    """A head that wants a token; it dies, and leaves its session and the note of its address for `ray.init()`."""
    head = start_ray(spare, "--head", env={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64})
    head.wait_started()
    without = examine_ray(machines[1], "--head-ip", spare.address)
    without.names("RAY037", "token")
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}
    examined = examine_ray(machines[1], "--head-ip", spare.address, env=wrong)
    examined.names("RAY037", "RAY_AUTH_TOKEN")
    assert "b" * 64 not in str(examined)
    head.stop()
    for arguments in ((), ("--head-ip", "auto")):
        stale = examine_ray(spare, *arguments)
        stale.names("RAY034", "refused", f"{spare.address}:{PORT}")
        assert "RAY014" in stale.problems(), stale.problems()


def test_head_that_advertises_loopback(machines: tuple[Node, ...], spare: Node) -> None:
    """Debian gives a machine's own name the address 127.0.1.1: a head that takes it is found, and reached by nobody."""
    start_ray(spare, "--head", "--node-ip-address=127.0.1.1").wait_started()
    examine_ray(machines[1], "--head-ip", spare.address).names("RAY041", "127.0.1.1")


@pytest.mark.row("F05")
@pytest.mark.parametrize("what", ["Python", "Ray"])
def test_versions_differ_from_the_cluster(cluster: RayCluster, spare: Node, tmp_path: Path, what: str) -> None:
    """Another patch version of Python, and an environment with another release of Ray."""
    site = sysconfig.get_path("purelib")
    if what == "Python":
        own = subprocess.run(["/usr/bin/python3", "-V"], capture_output=True, text=True, timeout=20, check=True).stdout
        if own.split()[1] == sys.version.split()[0]:
            pytest.skip("/usr/bin/python3 is the same Python")
        expected, path = own.split()[1], f"{ROOT}:{site}"
        arguments = ("--python", "/usr/bin/python3")
    else:
        info = tmp_path / "ray-2.59.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.59.0\n")
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "__init__.py").write_text('__version__ = "2.59.0"\n')
        expected, path, arguments = "2.59.0", f"{tmp_path}:{ROOT}", ()
    examined = examine_ray(spare, "--head-ip", cluster.head.address, *arguments, env={"PYTHONPATH": path})
    examined.names("RAY038", expected)
