"""Groups of workers on a real Ray: calls, failures, deaths, stalls."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from rltrain.cluster import shield, watchdog
from rltrain.cluster.calls import gather
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.placement import Slot, plan
from rltrain.cluster.processes import descendants
from rltrain.cluster.ray_api import ray
from rltrain.cluster.runtime import Runtime
from rltrain.cluster.teardown import Interrupted, StopSignals
from rltrain.cluster.watchdog import StallWatchdog
from rltrain.core.errors import RunFailure, UserError
from tests.trainer.cluster.workers import Adder, Picky, config, first, spawn

Slots = tuple[Slot, ...]


@pytest.fixture(scope="module")
def shared(runtime: Runtime) -> WorkerGroup:
    slots = plan(config(), runtime.nodes).train
    return spawn(runtime, Adder, slots, [(10,), (20,)], deadline_s=60)


@pytest.fixture
def group(shared: WorkerGroup) -> Iterator[WorkerGroup]:
    """Two workers; those that a test has killed or keeps busy are started anew after it."""
    yield shared
    for rank, pid in enumerate(shared.pids):
        if not _runs(pid) or "hang_in_this_function" in shared.stacks(rank) or not _answers(shared, rank):
            shared.restart(rank, deadline_s=60)


def test_calls(group: WorkerGroup, runtime: Runtime) -> None:
    assert group.all("add", 1, deadline_s=60) == [11, 21]
    assert group.each("add", [1, 2], deadline_s=30) == [11, 22]
    assert first(group, "add", 5, deadline_s=30) == 15
    assert group.all("pid", deadline_s=30) == group.pids
    assert len({*group.pids, os.getpid()}) == 3
    big = np.ones(1 << 20)
    assert group.all("total", big, deadline_s=30) == [float(1 << 20)] * 2
    calls = [group.begin("add", [(1,), (2,)]), group.begin("pid", [()], ranks=[1])]
    assert gather(runtime, calls, 30, "both") == [[11, 22], [group.pids[1]]]
    with pytest.raises(ValueError, match="3 arguments for 2 ranks"):
        group.each("add", [1, 2, 3], deadline_s=30)


def test_output_and_environment(group: WorkerGroup) -> None:
    group.each("add", [7, 8], deadline_s=30)
    assert [log.name for log in group.logs] == ["train-0.log", "train-1.log"]
    text = group.logs[1].read_text()
    assert f"== train-1, process {group.pids[1]}" in text
    assert "made with base 20" in text
    assert "adding 8" in text
    assert "adding 7" not in text
    threads = group.all("environ", "OMP_NUM_THREADS", deadline_s=30)
    assert threads == [str(max(1, len(os.sched_getaffinity(0)) // 2))] * 2
    assert first(group, "environ", "CUDA_VISIBLE_DEVICES", deadline_s=30) == ""


def test_errors(group: WorkerGroup) -> None:
    with pytest.raises(UserError, match=r"^data\.train_files: no such file$"):
        group.all("user_error", deadline_s=30)
    with pytest.raises(RunFailure) as caught:
        first(group, "fail", deadline_s=30, doing="updating the actor")
    message = str(caught.value)
    assert "updating the actor: train rank 0 (process" in message
    assert "ZeroDivisionError: lr became 0 (workers.py:" in message
    assert "in _deep)" in message
    assert "\n" not in message
    assert str(group.logs[0]) in message
    assert "Traceback" in group.logs[0].read_text()
    with pytest.raises(RunFailure, match="cannot be pickled"):
        first(group, "wrong_value", deadline_s=30)
    with pytest.raises(RunFailure, match="no attribute 'absent'"):
        first(group, "absent", deadline_s=30)
    assert group.all("add", 0, deadline_s=30) == [10, 20]


def test_deadline(group: WorkerGroup) -> None:
    calls = group.begin("hang_in_this_function", [(0.0,), (3.0,)])
    with pytest.raises(RunFailure, match=r"thinking: no answer within 0\.5 s from train\..* of rank 1; log: .*train-1"):
        gather(group._runtime, [calls], 0.5, "thinking")


def test_kill_9_during_a_call(group: WorkerGroup, capfd: pytest.CaptureFixture[str]) -> None:
    group.all("add", 3, deadline_s=30)
    killed: list[float] = []

    def kill() -> None:
        os.kill(group.pids[1], signal.SIGKILL)
        killed.append(time.monotonic())

    threading.Timer(0.5, kill).start()
    with pytest.raises(RunFailure) as caught:
        group.all("hang_in_this_function", 60.0, deadline_s=90, doing="generating")
    assert time.monotonic() - killed[0] < 5
    message = str(caught.value)
    host = group.slots[1].node.name
    assert message.startswith(f"generating: train rank 1 (process {group.pids[1]} on node {host}) ")
    assert "SIGKILL" in message.splitlines()[0]
    assert str(group.logs[1]) in message
    assert message.endswith(f"SIGKILL; log: {group.logs[1]}")
    assert "\n" not in message
    time.sleep(0.5)
    assert "raylet" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("how", "words"),
    [("exit", "exited with code 3"), ("SIGSEGV", "was killed by SIGSEGV")],
)
def test_other_deaths(group: WorkerGroup, how: str, words: str) -> None:
    if how == "SIGSEGV" and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15):
        words = "SIGSEGV|ended without a word"  # this kernel may not tell; the log has the words of faulthandler
    with pytest.raises(RunFailure, match=words) as caught:
        first(group, "leave", how, deadline_s=30)
    assert "; its last words: " in str(caught.value)


@pytest.mark.parametrize("number", shield.STOPPING)
def test_a_worker_and_its_guard_leave_signals_to_the_controller(group: WorkerGroup, number: signal.Signals) -> None:
    members = [family for pid in group.pids for family in (pid, *(child.pid for child in descendants(pid)))]
    assert len(members) >= 2 * len(group.pids)
    for pid in members:
        os.kill(pid, number)
    assert group.all("add", 0, deadline_s=30) == [10, 20]
    assert all(map(_runs, members))


def test_the_cause_is_named_before_its_consequence(group: WorkerGroup) -> None:
    calls = [group.begin("fail", [()], ranks=[0]), group.begin("leave", [("exit",)], ranks=[1])]
    with pytest.raises(RunFailure, match=r"train rank 1 .* exited with code 3"):
        gather(group._runtime, calls, 30, "both")


def test_restart_ends_what_the_worker_had_started(group: WorkerGroup) -> None:
    child = group.all("spawn_child", deadline_s=30)[1]
    old = group.pids[1]
    group.restart(1, deadline_s=60)
    assert group.pids[1] != old
    assert not _runs(child)
    assert group.all("add", 1, deadline_s=60) == [11, 21]
    assert group.logs[1].read_text().count("made with base 20") >= 2


def test_the_guard_ends_what_a_killed_worker_had_started(group: WorkerGroup) -> None:
    child = first(group, "spawn_child", deadline_s=30)
    os.kill(group.pids[0], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(child)


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("user", UserError, r"^actor_rollout_ref\.model\.path: no config\.json$"),
        ("other", RunFailure, "making Picky: train rank . .*RuntimeError: out of luck"),
    ],
)
def test_a_constructor_fails(runtime: Runtime, slots: Slots, how: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        spawn(runtime, Picky, slots, [(how,), (how,)], deadline_s=60)
    for actor in runtime.groups.pop().actors:
        ray.kill(actor)


def test_no_place(runtime: Runtime, slots: Slots) -> None:
    wanting = [replace(slots[0], num_gpus=4)]
    with pytest.raises(RunFailure, match="starting train-0"):
        spawn(runtime, Adder, wanting, [(1,)], deadline_s=2)
    for actor in runtime.groups.pop().actors:
        ray.kill(actor)


def test_stall(group: WorkerGroup, runtime: Runtime) -> None:
    (runtime.logs / watchdog.REPORT).unlink(missing_ok=True)
    begin = time.monotonic()
    with StallWatchdog(runtime, timeout_s=2.0):
        calls = group.begin("hang_in_this_function", [(0.0,), (60.0,)])
        with pytest.raises(RunFailure) as caught:
            gather(runtime, [calls], 120, "generating")
    assert time.monotonic() - begin < 30
    message = str(caught.value)
    assert "no progress for 2 s since train.hang_in_this_function of rank 0" in message
    assert "generating: the controller has waited" in message
    assert "train.hang_in_this_function of rank 1" in message
    assert "of rank 0" not in message.split("waited")[1]
    report = (runtime.logs / watchdog.REPORT).read_text()
    busy = report.split(f"-- {group.title(1)}")[1]
    idle = report.split(f"-- {group.title(0)}")[1].split("--")[0]
    assert 'workers.py", line' in busy
    assert "in hang_in_this_function" in busy
    assert "hang_in_this_function" not in idle
    assert "test_stall" in report.split("-- train")[0]


def test_stacks_include_what_the_worker_started(group: WorkerGroup) -> None:
    child = first(group, "spawn_child", deadline_s=30)
    time.sleep(0.5)
    assert f"started by it: {child} (" in group.stacks(0)


def test_a_signal_drops_the_call_and_lets_the_run_save(group: WorkerGroup, runtime: Runtime) -> None:
    with StopSignals(runtime.waits, lambda: None) as stop:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        begin = time.monotonic()
        with pytest.raises(Interrupted, match="SIGTERM"):
            gather(runtime, [group.begin("hang_in_this_function", [(12.0,), (0.0,)])], 60, "generating")
        assert time.monotonic() - begin < 9
        assert stop.requested
        assert group.all("add", 1, deadline_s=60) == [11, 21]


@pytest.mark.row("F22")
def test_long_waits_are_told(group: WorkerGroup, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrain.cluster.calls.WORDS_EVERY_S", 0.2)
    first(group, "hang_in_this_function", 1.0, deadline_s=30, doing="starting the engine")
    assert any(line.startswith("starting the engine (") and "at most 30" in line for line in said)


def _answers(group: WorkerGroup, rank: int) -> bool:
    """A worker may run on for a moment after its death was reported."""
    try:
        return gather(group._runtime, [group.begin("pid", [()], ranks=[rank])], 10, "looking") == [[group.pids[rank]]]
    except RunFailure:
        return False


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_logs_lie_where_they_were_asked_for(group: WorkerGroup, runtime: Runtime) -> None:
    assert {Path(log).parent for log in group.logs} == {runtime.logs}
