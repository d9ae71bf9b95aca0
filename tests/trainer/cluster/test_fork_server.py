"""Workers forked from a process that has imported for them. No Ray here: whole runs use it in `end_to_end`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rltrain.cluster import absent_agent, fork_client
from rltrain.cluster.fork_server import ForkServer, Imports, forking
from rltrain.cluster.processes import wait_gone

IMPORTED = "sqlite3"
"""Nothing imports it by itself."""
# What Ray would start as a worker.
SCRIPT = f"""
import gc, json, os, sys
print(json.dumps({{
    "pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv[1:], "imported": {IMPORTED!r} in sys.modules,
    "environ": dict(os.environ), "cwd": os.getcwd(), "name": __name__, "first": sys.path[0],
    "collects": gc.isenabled(), "nice": os.getpriority(os.PRIO_PROCESS, 0), "stdin": sys.stdin.read(),
}}))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with forking(Imports((IMPORTED, "no_such_module"), 3)) as running:
        assert running is not None
        yield running


def ask(address: Path, script: Path, *words: str, **environ: str) -> tuple[dict[str, Any], int]:
    """What SCRIPT says, and the number of the process that Ray would have started."""
    command = [sys.executable, "-I", "-S", fork_client.__file__, str(address), str(script), *words]
    process = subprocess.Popen(
        ["nice", "-n", "3", *command],
        env=os.environ | environ,
        cwd=script.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate("asked", timeout=60)
    assert process.returncode == 0
    return json.loads(out), process.pid


def test_a_worker_is_a_copy_that_runs_what_ray_wanted(server: ForkServer, script: Path) -> None:
    said, pid = ask(server.address, script, "--one=1", "--language=PYTHON", "two words", RLTRAIN_TEST="here")
    assert said["imported"]
    assert said["pid"] != pid
    assert said["parent"] in {process.pid for process in server.processes}
    assert said["arguments"] == ["--one=1", "two words"]
    assert said["environ"]["RLTRAIN_TEST"] == "here"
    assert said["environ"].get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS"), "the server's, not the worker's"
    assert (said["cwd"], said["first"]) == (str(script.parent), str(script.parent))
    assert said["name"] == "__main__"
    assert said["collects"]
    assert said["nice"] == os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert said["stdin"] == "asked"


def test_without_a_server_a_worker_imports_itself(script: Path, tmp_path: Path) -> None:
    said, pid = ask(tmp_path / "nobody", script, "word")
    assert (said["imported"], said["pid"], said["arguments"]) == (False, pid, ["word"])


def test_a_client_waits_for_the_end_of_its_worker(server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-I", "-S", fork_client.__file__, str(server.address), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        worker = int(client.stdout.readline())
        assert client.poll() is None
        os.kill(worker, signal.SIGKILL)
        assert client.wait(30) == 0
    # Nobody has collected it yet: how it ended can still be read, once it has, a moment after its end of the socket.
    deadline = time.monotonic() + 10
    while (state := Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0]) != "Z":
        assert time.monotonic() < deadline, state
        time.sleep(0.01)


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import time; from rltrain.cluster.fork_server import ForkServer, Imports; server = ForkServer(Imports((), 1));"
        "print(server.address, *(process.pid for process in server.processes), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        address, pid = starter.stdout.readline().split()
        starter.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert not Path(address).parent.exists()


def test_a_closed_server_leaves_nothing() -> None:
    with forking(Imports((), 1)) as running:
        assert running is not None
    assert wait_gone(running.processes, 0) == []
    assert not running.address.parent.exists()


def test_no_imports_need_no_server() -> None:
    with forking(None) as running:
        assert running is None


def test_an_absent_agent_says_so_and_ends_with_its_parent(tmp_path: Path) -> None:
    files = [tmp_path / "metrics_agent_port_node", tmp_path / "listen_port_node"]
    command = [sys.executable, "-I", "-S", absent_agent.__file__, *map(str, files)]
    code = f"import subprocess, time; print(subprocess.Popen({command}).pid, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        deadline = time.monotonic() + 30
        while not all(file.exists() for file in files) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [file.read_text() for file in files] == ["-1", "-1"]
        parent.kill()
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline + 30:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
