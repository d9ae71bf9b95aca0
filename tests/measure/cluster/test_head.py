"""A real head of Ray, with and without token authentication, examined without Ray (F50)."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.ray import RayFacts
from rlcheck.facts.reach import PendingGroup, ReachFacts, WantedRun
from rlcheck.measure.cluster.examine import examine
from rlcheck.measure.cluster.speaks import who_speaks
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.playbook import Library
from tests.conftest import base_environ
from tests.measure.cluster.servers import free_port

CHECKS = family_checks("RAY")

ray = pytest.importorskip("ray")
TOKEN = "0123456789abcdef" * 4
GROUPS = """
import ray, sys
from ray.util import placement_group
ray.init(sys.argv[1], log_to_driver=False)
placement_group([{"GPU": 16}], name="too-big", lifetime="detached")
placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD", name="spread", lifetime="detached")
print("asked", flush=True)
"""


@dataclass
class Head:
    """A head that runs, and where its dashboard and client listen."""

    home: Path
    port: int
    dashboard: int
    client: int

    def environ(self, **more: str | None) -> dict[str, str]:
        # The directory is short on purpose: Ray's sockets are in it, and their paths may have 107 characters.
        plain = {"HOME": str(self.home), "RAY_TMPDIR": str(self.home), "RAY_USAGE_STATS_ENABLED": "0"}
        return base_environ({**plain, **more})


def begin(home: Path) -> Head:
    """Start a head that finds a token, and so asks for it."""
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(TOKEN)
    ports = [free_port() for _ in range(4)]
    head = Head(home, *ports[:3])
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={head.port}", "--num-cpus=1",
               f"--ray-client-server-port={head.client}", f"--dashboard-port={head.dashboard}",
               f"--dashboard-agent-listen-port={ports[3]}", "--include-dashboard=true", "--min-worker-port=0",
               "--max-worker-port=0", "--object-store-memory=80000000"]  # fmt: skip
    log = home / "start.log"
    with log.open("wb") as file:
        done = subprocess.run(command, env=head.environ(), stdout=file, stderr=file, timeout=90)
    assert done.returncode == 0, log.read_text()
    wait_until_open(head.client)  # `ray start` does not wait for its Ray Client server
    return head


def wait_until_open(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens at port {port} after 60 s")


def end(home: Path) -> None:
    """End the processes that have this directory in their environment, and wait for them."""
    mine = [process for process in psutil.process_iter() if _is_of(process, home)]
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(mine, timeout=10)
    shutil.rmtree(home, ignore_errors=True)


def _is_of(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("RAY_TMPDIR") == str(home)
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def guarded() -> Iterator[Head]:
    """A whole head with token authentication."""
    home = Path(tempfile.mkdtemp(prefix="rh"))
    try:
        yield begin(home)
    finally:
        end(home)


@pytest.fixture
def lone_gcs(tmp_path: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A GCS by itself, as it is before the first raylet has joined; it asks for no token."""
    port = free_port()
    program = Path(ray.__file__).parent / "core" / "src" / "ray" / "gcs" / "gcs_server"
    command = [str(program), f"--gcs_server_port={port}", f"--log_dir={tmp_path}", f"--session-dir={tmp_path}",
               "--config_list=e30=", "--session-name=s", "--node-ip-address=127.0.0.1"]  # fmt: skip
    with (tmp_path / "out").open("wb") as log:
        server = subprocess.Popen(command, env=base_environ({"RAY_AUTH_MODE": "disabled"}), stdout=log, stderr=log)
    wait_until_open(port)
    deadline = time.monotonic() + 30
    while not ((gcs := look(port).gcs.value) and gcs.ray_version.value) and time.monotonic() < deadline:
        time.sleep(0.1)  # the port is open before the GCS has written what it tells about itself
    yield port, server
    server.kill()
    server.wait(10)


def look(port: int, own_ray: str = "", **environ: str) -> ReachFacts:
    """What `rlcheck ray` finds out, with these variables and no home of its own."""
    context = ProbeContext(environ={"HOME": "/nonexistent", **environ})
    return examine(context, "127.0.0.1", port, wanted=WantedRun(), client=False, dashboard=False, own_ray=own_ray,
                   own_python=platform.python_version(), deadline_s=10)  # fmt: skip


def problems(facts: ReachFacts) -> list[str]:
    document = Facts(reach=known(facts), environ=known({}), ray=known(RayFacts()))
    mine = [check for check in CHECKS if "RAY031" <= check.id <= "RAY044"]
    return [finding.id for finding in judging.judge(document, mine, Library()) if finding.is_problem]


@pytest.mark.row("F50")
def test_a_head_is_known_from_its_gcs(guarded: Head):
    started = time.monotonic()
    facts = look(guarded.port, ray.__version__, RAY_AUTH_TOKEN=TOKEN)
    assert time.monotonic() - started < 8
    gcs = facts.gcs.value
    assert facts.speaker.value is not None
    assert facts.speaker.value.kind == "gcs"
    assert gcs is not None
    assert (gcs.health, gcs.asks_for_token, gcs.needs_token) == ("serving", True, False)
    assert (gcs.ray_version.value, gcs.python_version.value) == (ray.__version__, platform.python_version())
    (node,) = gcs.nodes.value or ()
    assert (node.alive, node.is_head, node.resources["CPU"], node.available["CPU"]) == (True, True, 1.0, 1.0)
    assert node.hostname == os.uname().nodename
    assert [contact.outcome for contact in facts.node_ports.value or ()] == ["open"] * 3
    assert [owner.process for owner in facts.owners] == ["gcs_server"]
    assert problems(facts) == []
    older = look(guarded.port, "2.9.0", RAY_AUTH_TOKEN=TOKEN)
    assert problems(older) == ["RAY038"]


def test_a_head_that_asks_for_a_token(guarded: Head):
    without = look(guarded.port, ray.__version__)
    assert without.gcs.value is not None
    assert (without.gcs.value.health, without.gcs.value.needs_token) == ("serving", True)
    assert without.gcs.value.nodes.missing is not None
    assert problems(without) == ["RAY037"]
    wrong = look(guarded.port, RAY_AUTH_TOKEN="f" * 64).gcs.value
    assert wrong is not None
    assert (wrong.needs_token, wrong.token_sent) == (True, True)
    right = look(guarded.port, HOME=str(guarded.home)).gcs.value
    assert right is not None
    assert (right.needs_token, right.token_source) == (False, f"{guarded.home}/.ray/auth_token")


def test_its_other_ports_are_told_from_it(guarded: Head):
    gcs = look(guarded.port, RAY_AUTH_TOKEN=TOKEN).gcs.value
    assert gcs is not None
    (node,) = gcs.nodes.value or ()
    assert who_speaks("127.0.0.1", guarded.dashboard, 10).kind == "dashboard"
    assert who_speaks("127.0.0.1", guarded.client, 10).kind == "ray-client"
    assert who_speaks(node.address, node.node_manager_port, 10).kind == "grpc"


def test_placement_groups_that_wait_are_named_with_the_reason(guarded: Head):
    driver = [sys.executable, "-c", GROUPS, f"127.0.0.1:{guarded.port}"]
    environ = guarded.environ(RAY_AUTH_MODE="token")
    done = subprocess.run(driver, env=environ, capture_output=True, text=True, timeout=60)
    assert "asked" in done.stdout, done.stderr
    facts, groups = _waiting_groups(guarded)
    assert groups["too-big"].bundles == ({"GPU": 16.0},)
    assert (groups["spread"].strategy, len(groups["spread"].bundles)) == ("STRICT_SPREAD", 3)
    assert groups["too-big"].scheduling == "INFEASIBLE"
    verdict = next(c for c in CHECKS if c.id == "RAY042").judge(Facts(reach=known(facts)))
    told = " ".join(verdict.details)
    assert "too-big: a bundle needs 16 GPU on one node, no node has any GPU" in told
    assert "spread: STRICT_SPREAD needs 3 nodes, the cluster has 1" in told


def _waiting_groups(head: Head) -> tuple[ReachFacts, dict[str, PendingGroup]]:
    """Both groups, once the scheduler has tried them."""
    deadline = time.monotonic() + 15
    while True:
        facts = look(head.port, RAY_AUTH_TOKEN=TOKEN)
        found = (facts.gcs.value.pending_groups.value or ()) if facts.gcs.value else ()
        if len(found) == 2 and all(group.scheduling == "INFEASIBLE" for group in found):
            return facts, {group.name: group for group in found}
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_a_gcs_without_nodes_and_one_that_was_stopped(lone_gcs: tuple[int, subprocess.Popen[bytes]]):
    port, server = lone_gcs
    facts = look(port)
    gcs = facts.gcs.value
    assert gcs is not None
    assert (gcs.health, gcs.asks_for_token, gcs.nodes.value) == ("serving", False, ())
    assert gcs.ray_version.value == ray.__version__
    assert gcs.python_version.missing is not None
    # No raylet has registered; and it was told to be at 127.0.0.1, and is bound there only.
    assert problems(facts) == ["RAY036", "RAY039"]
    _stop(server.pid)
    started = time.monotonic()
    silent = look(port)
    assert time.monotonic() - started < 9
    assert silent.speaker.value is not None
    assert silent.speaker.value.kind == "silent"
    assert problems(silent) == ["RAY035", "RAY039"]


def _stop(pid: int) -> None:
    """SIGSTOP, once every thread has taken it: one that runs on may still greet a caller."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while not all(thread == psutil.STATUS_STOPPED for thread in _states(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _states(pid: int) -> Iterator[str]:
    for thread in psutil.Process(pid).threads():
        yield psutil.Process(thread.id).status()
