"""The cluster of a run: how it starts, how it refuses, and that nothing is left however it ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rltrain.cluster import ray_start
from rltrain.cluster.placement import plan
from rltrain.cluster.ray_api import ray
from rltrain.cluster.runtime import Runtime, connect
from rltrain.cluster.teardown import REPEATED_S
from rltrain.core.errors import RunFailure, UserError
from tests.conftest import ROOT, base_environ
from tests.trainer.cluster.workers import Adder, config, first, spawn


@dataclass
class Driver:
    """A controller process, its facts, and everything that it had started by then."""

    process: subprocess.Popen[str]
    facts: dict[str, Any]
    logs: Path

    def pids(self) -> list[int]:
        return [*self.facts["workers"], *self.facts["children"], *self.facts["ray"]]

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    def left(self, wait_s: float = 0.0, expected: tuple[str, ...] = ()) -> list[str]:
        """What is left of the run: processes (by number, session and name), shared memory, ports."""
        deadline = time.monotonic() + wait_s
        while (found := self._left()) != [*expected] and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _left(self) -> list[str]:
        mine = [
            f"process {process.pid} {process.info['name']}"
            for process in psutil.process_iter(["name", "cmdline", "status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE and (process.pid in self.pids() or self._is_mine(process))
        ]
        # Some of Ray's ports are the same in every cluster: one that belongs to another's process is not ours.
        ports = {
            connection.laddr.port
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.pid in (None, *self.pids())
        }
        mine += [f"port {port}" for port in self.facts["ports"] if port in ports]
        library = Path("/dev/shm", self.facts["library_shm"])
        mine += [str(library)] if library.exists() else []
        return mine + [str(path) for path in Path("/dev/shm").glob(f"*{self.facts['id']}*")]

    def in_session(self) -> list[str]:
        """Processes of the driver's session."""
        return [
            str(process)
            for process in psutil.process_iter(["status"])
            if _session(process.pid) == self.process.pid and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def _is_mine(self, process: psutil.Process) -> bool:
        in_session = _session(process.pid) == self.process.pid
        return in_session or self.facts["id"] in " ".join(process.info["cmdline"] or [])


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(mode: str, facts: bool = True, cwd: Path = ROOT, **environ: str) -> Driver:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("driver.py")), mode, str(tmp_path)],
            cwd=cwd,
            env=base_environ({"HOME": str(tmp_path), **environ}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline() if facts else "{}"
        assert line, process.communicate(timeout=10)[1]
        return Driver(process, json.loads(line), tmp_path)

    yield start
    for process in started:
        for member in psutil.process_iter():
            if process.pid in (member.pid, _session(member.pid)):
                member.kill()
        process.wait(10)
        for session in Path("/tmp/ray").glob(f"session_*_{process.pid}"):
            shutil.rmtree(session, ignore_errors=True)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def test_nothing_is_left_after_a_run(drive: Any) -> None:
    driver = drive("exit")
    assert driver.facts["ports"]
    assert Path("/dev/shm", driver.facts["library_shm"]).name.startswith("psm_")
    code, err = driver.end()
    assert (code, driver.left()) == (0, [])
    # The workers' children ignore SIGTERM and had to be killed: that is told, and nothing else is.
    told = [line for line in err.splitlines() if not line.startswith("starting ")]
    assert all(line.startswith("had to kill process ") for line in told), err
    assert not list(Path("/tmp/ray").glob(f"session_*_{driver.process.pid}"))
    assert not (driver.logs / ".ray").exists()


def test_a_signal_drops_the_call_and_nothing_is_left(drive: Any) -> None:
    driver = drive("wait")
    time.sleep(0.5)
    driver.process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    code, err = driver.end()
    assert (code, driver.left()) == (130, [])
    assert "stopped by SIGTERM" in err
    assert "Traceback" not in err
    assert time.monotonic() - begin < 40


def test_a_signal_to_every_process_is_one_to_the_controller(drive: Any) -> None:
    """As Slurm and systemd send it: ranks, Ray's daemons and the guards outlive it, and end as the controller asks."""
    driver = drive("wait")
    time.sleep(0.5)
    members = [
        driver.process.pid,
        *(child.pid for child in psutil.Process(driver.process.pid).children(recursive=True)),
    ]
    assert {*driver.facts["workers"], *driver.facts["ray"]} < {*members}
    for pid in sorted(members, reverse=True):
        os.kill(pid, signal.SIGTERM)
    code, err = driver.end()
    assert (code, driver.left()) == (130, [])
    told = [line for line in err.splitlines() if not line.startswith(("starting ", "had to kill process "))]
    assert told == ["SIGTERM: stopping in order; once more ends at once", "stopped by SIGTERM (generating)"]
    # But the workers' children, which nobody asks to end.
    assert all(str(pid) not in err for pid in (*driver.facts["workers"], *driver.facts["ray"]))


def test_a_second_signal_ends_at_once(drive: Any) -> None:
    driver = drive("stubborn")
    driver.process.send_signal(signal.SIGINT)
    time.sleep(REPEATED_S + 0.2)
    driver.process.send_signal(signal.SIGINT)
    code, err = driver.end()
    assert (code, driver.left(5)) == (130, [])
    assert err.index("goes on") < err.index("SIGINT again: ending at once")


def test_nothing_is_left_after_kill_9_of_the_controller(drive: Any) -> None:
    driver = drive("wait")
    driver.process.send_signal(signal.SIGKILL)
    assert driver.process.wait(10) == -signal.SIGKILL
    # Ray's processes die with the controller, the workers with Ray's; the guards end the rest within some seconds.
    # The guard removes the shared memory with the run's prefix; nobody is left who knows what a library has made.
    library = Path("/dev/shm", driver.facts["library_shm"])
    left = driver.left(wait_s=15, expected=(str(library),))
    library.unlink()
    assert left == [str(library)]


def test_a_failed_run_keeps_the_logs_of_ray(drive: Any) -> None:
    driver = drive("fail")
    code, err = driver.end()
    assert (code, driver.left()) == (1, [])
    assert "RunFailure: the loss is not a number" in err
    assert not list(Path("/tmp/ray").glob(f"session_*_{driver.process.pid}"))
    assert (driver.logs / "ray" / "raylet.out").exists()


def test_what_is_in_the_working_directory_hides_nothing_from_workers(drive: Any, tmp_path: Path) -> None:
    other = tmp_path / "shadow" / "rltrain" / "__init__.py"
    other.parent.mkdir(parents=True)
    other.write_text("__version__ = '9.9'\n")
    # Ray puts the directory of its start on the workers' path, where the controller itself may not have it.
    driver = drive("exit", cwd=other.parents[1])
    assert len(driver.facts["workers"]) == 2
    code, err = driver.end()
    assert code == 0, err


def test_ray_that_does_not_start_in_time_is_ended(drive: Any) -> None:
    driver = drive("late", facts=False)
    code, err = driver.end()
    assert code == 1
    assert "Ray did not start within 0.5 s; its logs: " in err
    assert "Traceback" not in err
    assert driver.in_session() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_starts(drive: Any, number: signal.Signals) -> None:
    driver = drive("exit", facts=False)
    begin = time.monotonic()
    while not list(Path("/tmp/ray").glob(f"session_*_{driver.process.pid}")) and time.monotonic() - begin < 60:
        time.sleep(0.1)
    driver.process.send_signal(number)
    code, err = driver.end()
    assert (code, err) == (130, "stopped by a signal while Ray started\n")
    assert driver.in_session() == []


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", "LOCAL_RANK"])
def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv(name, "0")
    with (
        pytest.raises(UserError, match=rf"torchrun or alike \({name} is set\): Ray launches its ranks") as caught,
        connect(config(), tmp_path),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_rank_and_world_size_together_are_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    ray_start.refuse_torchrun()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE is set"):
        ray_start.refuse_torchrun()


@pytest.mark.parametrize(
    ("ray_init", "words"),
    [
        (
            {"address": "127.0.0.1:1"},
            r"no Ray cluster answers at 127\.0\.0\.1:1 \(Connection refused\): start one with",
        ),
        ({"num_cpuss": 2}, "ray_kwargs.ray_init: Unknown keyword argument.*num_cpuss"),
        ({"num_cpus": "two"}, "ray_kwargs.ray_init: "),
    ],
)
def test_wrong_arguments(tmp_path: Path, ray_init: dict[str, Any], words: str) -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(UserError, match=words), connect(config(ray_init), tmp_path):
        pass
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]


def test_the_address_comes_from_the_config_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_start.wanted_address({}) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert ray_start.wanted_address({}) == "10.0.0.1:6379"
    assert ray_start.wanted_address({"address": "10.0.0.2:6379"}) == "10.0.0.2:6379"
    assert ray_start.wanted_address({"address": "local"}) is None


def test_a_local_ray_is_started_without_what_no_run_uses(runtime: Runtime) -> None:
    commands = [process.command for process in runtime.started]
    for needed in ("gcs_server", "raylet/raylet"):
        assert any(needed in command for command in commands), commands
    for other in ("dashboard/dashboard.py", "log_monitor.py", "autoscaler/_private/monitor.py"):
        assert not any(other in command for command in commands), commands


@pytest.mark.row("F67")
def test_a_joined_cluster_and_its_second_node(
    runtime: Runtime, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second node joins; a worker on it dies there; another run joins too, and takes only its own with it."""
    address = ray.get_runtime_context().gcs_address
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ray_start._TOKEN}
    default = Path("/tmp/ray/ray_current_cluster")
    default_before = default.read_bytes() if default.exists() else None
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    second = _second_node(address, token, hidden)
    try:
        nodes = _wait_for_nodes(2)
        runtime.require_shared_logs(nodes)
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "logs", hidden)
            with pytest.raises(UserError, match=r"node .* does not see .*/hidden of node "):
                runtime.require_shared_logs(nodes)
        assert not list(hidden.iterdir())
        here = spawn(runtime, Adder, plan(config(), runtime.nodes).train, [(1,), (2,)], deadline_s=60)
        other = [node for node in nodes if node.ray_id != runtime.home.ray_id]
        there = spawn(runtime, Adder, plan(config(n_gpus_per_node=1), other).train, [(5,)], deadline_s=60)
        assert first(there, "add", 1, deadline_s=30) == 6
        os.kill(there.pids[0], signal.SIGKILL)
        with pytest.raises(RunFailure, match=r"train rank 0 .*(SIGKILL|\n)"):
            first(there, "add", 1, deadline_s=30, doing="adding")
        driver = drive("join", RAY_ADDRESS=address, **token)
        code, err = driver.end()
        assert (code, driver.left(5)) == (0, []), err
        assert here.all("add", 1, deadline_s=30) == [2, 3]
    finally:
        # Its SIGTERM would wait half a minute for tasks to drain.
        for process in (*psutil.Process(second.pid).children(recursive=True), second):
            process.kill()
        second.wait(30)
        # `ray start` makes its cluster the default of this machine.
        default.unlink(missing_ok=True) if default_before is None else default.write_bytes(default_before)


def _second_node(address: str, token: dict[str, str], hidden: Path) -> subprocess.Popen[bytes]:
    """A node with a file system of its own at HIDDEN."""
    words = [Path(sys.executable).with_name("ray"), "start", f"--address={address}", "--block", "--num-cpus=1"]
    ray_command = shlex.join(map(str, words))
    as_root = ["--user", "--map-root-user"] if os.geteuid() else []
    script = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {ray_command}"
    command = ["unshare", *as_root, "--mount", "sh", "-c", script]
    return subprocess.Popen(
        command, env=base_environ({**token, "RAY_USAGE_STATS_ENABLED": "0"}), stdout=subprocess.DEVNULL
    )


def _wait_for_nodes(count: int) -> list[Any]:
    from rltrain.cluster.runtime import _nodes

    deadline = time.monotonic() + 60
    while len(nodes := _nodes(is_local=True)) < count and time.monotonic() < deadline:
        time.sleep(0.3)
    assert len(nodes) == count
    return nodes
