"""`rlcheck run --watch` on processes that behave like runs: they finish, hang, die, or go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlcheck import stacks
from tests.checks.run.synthetic import healthy_curves
from tests.cli.made_runs import RANKS, STEPS, living, write_run
from tests.conftest import in_terminal, rlcheck

QUICK = ("--watch", "--interval", "0.1")


def test_a_run_that_finishes_well_ends_the_watch_with_0(tmp_path: Path) -> None:
    with living(tmp_path / "run", "finish"):  # which is not there yet when the watch begins
        done = rlcheck("run", tmp_path / "run", *QUICK, "--stall-s", "20")
    assert done.code == 0, done.out + done.err
    assert f"rlcheck: finished at step {STEPS}" in done.err
    assert f"step {STEPS} of {STEPS}" in done.out
    assert "rlcheck: watching" in done.err.splitlines()[0]


@pytest.mark.row("F69")
def test_a_run_that_stands_still_ends_it_with_the_stack_of_every_rank(tmp_path: Path) -> None:
    with living(tmp_path / "run", "hang") as process:
        done = rlcheck("run", tmp_path / "run", *QUICK, "--stall-s", "3")
        assert process.poll() is None
    assert done.code == 1
    assert "stands still: no step after step 5" in done.err
    assert f"== controller (process {process.pid})" in done.out
    for rank in range(RANKS):
        _, _, after = done.out.partition(f"== train-{rank} (process ")
        assert "in wait_in_all_reduce" in after.partition("\n\n")[0]
    assert done.out.splitlines()[-2].startswith("exit code 1: stands still")
    assert done.out.splitlines()[-1].startswith("next: restart: stands still")


def test_a_run_whose_process_is_gone_ends_it_with_1(tmp_path: Path) -> None:
    with living(tmp_path / "run", "die"):
        done = rlcheck("run", tmp_path / "run", *QUICK, "--stall-s", "60")
    assert done.code == 1
    assert "its process is gone at step 5" in done.err


def test_the_first_fail_ends_it_at_once_and_rings_the_bell(tmp_path: Path) -> None:
    with living(tmp_path / "run", "alike") as process:
        done = in_terminal("run", tmp_path / "run", *QUICK, "--stall-s", "60", columns=80, typed=b"\n")
        assert process.poll() is None
    assert done.code == 1
    assert "\a" in done.out
    assert "RUN011: Rewards do not differ between answers" in done.out
    assert "no more is watched" in done.out


def test_a_key_in_a_command_line_is_not_shown(tmp_path: Path) -> None:
    """The run of a trainer that leaves no lock, without an end to its metrics."""
    run = write_run(tmp_path / "run", healthy_curves(), settings={"trainer.total_training_steps": 99})
    (run / "run.json").unlink()
    os.utime(run / "metrics.jsonl", (1, 1))
    key = "hf_" + "a1B2" * 8
    with subprocess.Popen(
        ["sh", "-c", "sleep 60; true", f"HF_TOKEN={key}", str(run)], start_new_session=True
    ) as process:
        try:
            done = rlcheck("run", run, *QUICK, "--stall-s", "0.5")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert done.code == 1
    assert f"(process {process.pid})" in done.out
    assert "nothing says whether the run has ended" in done.err
    assert "HF_TOKEN=" in done.out
    assert key[:12] not in done.out


def test_for_programs_the_report_stands_alone_on_standard_output(tmp_path: Path) -> None:
    with living(tmp_path / "run", "hang"):
        done = rlcheck("run", tmp_path / "run", *QUICK, "--stall-s", "0.5", "-f", "json")
    report = json.loads(done.out)
    assert report["exit_code"] == done.code == 1
    assert "stands still" in report["notes"][-1]
    assert "wait_in_all_reduce" in done.err


def test_timeout_ends_the_watch_and_not_the_run(tmp_path: Path) -> None:
    with living(tmp_path / "run", "hang") as process:
        done = rlcheck("run", tmp_path / "run", *QUICK, "--stall-s", "60", "--timeout", "2")
        assert process.poll() is None
    assert done.code == 0
    assert "the run has not ended" in done.err


def test_a_run_that_never_appears_is_an_error_that_says_what_was_awaited(tmp_path: Path) -> None:
    done = rlcheck("run", tmp_path / "none", *QUICK, "--start-timeout", "1")
    assert done.code == 2
    assert "waiting for it, 1 s at most" in done.err
    assert done.err.splitlines()[-1].startswith(f"rlcheck: {tmp_path / 'none'}")


def test_a_finished_run_is_reported_at_once(tmp_path: Path) -> None:
    done = rlcheck("run", write_run(tmp_path / "run", healthy_curves()), *QUICK)
    assert done.code == 0
    assert done.seconds < 20


def test_a_process_without_a_handler_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number in an old file of another run must not be its end."""
    monkeypatch.setattr(stacks.shutil, "which", lambda _name: None)
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "train-0.stacks"
    with file.open("w") as stream:
        process = subprocess.Popen(["sleep", "60"], stdout=stream)
    with process:
        try:
            (member,) = stacks.members(tmp_path)
            assert (member.name, member.pid) == ("train-0", process.pid)
            assert stacks.stack(member).startswith("state S (sleeping)")
            assert process.poll() is None
        finally:
            process.kill()
    assert stacks.members(tmp_path) == ()
    assert stacks.absent(tmp_path, ()) == ("train-0",)
    assert stacks.absent(tmp_path, (member,)) == ()
    assert stacks.stack(member) == "the process is gone"


def test_processes_are_found_by_the_directory_in_their_command(tmp_path: Path) -> None:
    """Of a trainer that leaves no lock; with what they have started."""
    code = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", code, f"trainer.default_local_dir={tmp_path}"]) as process:
        try:
            deadline = time.monotonic() + 20
            while len(found := stacks.members(tmp_path)) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert found[0].pid == process.pid
            assert found[1].name.endswith("sleep 60")
        finally:
            for member in reversed(found):
                os.kill(member.pid, signal.SIGKILL)


def test_a_stack_of_this_process_comes_from_its_handler(tmp_path: Path) -> None:
    """The file is read from where the dump begins: what an earlier stall left there is not told again."""
    import faulthandler

    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "train-3.stacks"
    file.write_text("an earlier dump\n")
    with file.open("a") as stream:
        faulthandler.register(signal.SIGUSR2, stream, all_threads=True)
        try:
            (member,) = [one for one in stacks.members(tmp_path) if one.name == "train-3"]
            text = stacks.stack(member)
        finally:
            faulthandler.unregister(signal.SIGUSR2)
    assert "test_a_stack_of_this_process" in text
    assert "an earlier dump" not in text
    assert threading.active_count() >= 1


@pytest.mark.parametrize("option", ["--stall-s", "--interval", "--start-timeout", "--timeout"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_wait_without_an_end_is_refused(tmp_path: Path, option: str, value: str) -> None:
    done = rlcheck("run", tmp_path / "run", "--watch", option, value)
    assert done.code == 2
    assert "seconds" in done.err.lower() or "range" in done.err
    assert "Traceback" not in done.err
