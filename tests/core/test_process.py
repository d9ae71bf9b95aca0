"""Tools that hang, flood, ignore signals or leave children behind: an answer or a reason in time, and nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rlcheck.facts.base import Fact, MissingKind
from rlcheck.measure.machine import process
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.process import OUTPUT_LIMIT_BYTES, CommandResult, run_command, stream_child
from tests.conftest import base_environ, write_command

ENVIRON = {"PATH": "/usr/bin:/bin"}


def shell(script: str, timeout_s: float = 10, stdin: str | None = None) -> Fact[CommandResult]:
    return run_command(["/bin/sh", "-c", script], ENVIRON, timeout_s, stdin)


def result(fact: Fact[CommandResult]) -> CommandResult:
    assert fact.value is not None, fact.missing
    return fact.value


def assert_timeout(fact: Fact[CommandResult]) -> None:
    assert fact.missing is not None
    assert fact.missing.kind is MissingKind.TIMEOUT


@pytest.fixture(autouse=True)
def _leaves_nothing() -> object:
    """No test here may leave a process or a zombie of ours."""
    me = psutil.Process()
    before = set(me.children())
    yield
    deadline = time.monotonic() + 20
    while set(me.children(recursive=True)) - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set(me.children(recursive=True)) - before == set()


def assert_gone(pid_file: Path) -> None:
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "a grandchild outlived its tool"
        time.sleep(0.02)


def test_output_and_status() -> None:
    found = result(shell("echo out; echo err >&2; exit 3"))
    assert found == CommandResult(returncode=3, stdout="out\n", stderr="err\n")
    assert result(shell("kill -SEGV $$")).returncode == -11


def test_input_arrives() -> None:
    assert result(shell("cat", stdin="ä\n" * 100_000)).stdout == "ä\n" * 100_000
    assert result(shell("cat")).stdout == ""


def test_no_such_tool_and_no_permission(tmp_path: Path) -> None:
    missing = run_command([str(tmp_path / "nothing")], ENVIRON, 1).missing
    assert missing is not None
    assert missing.kind is MissingKind.ABSENT
    (tmp_path / "plain").write_text("")
    refused = run_command([str(tmp_path / "plain")], ENVIRON, 1).missing
    assert refused is not None
    assert refused.kind is MissingKind.PERMISSION
    write_command(tmp_path, "binary", "").write_bytes(b"\x7fELF nonsense")
    broken = run_command([str(tmp_path / "binary")], ENVIRON, 1).missing
    assert broken is not None
    assert broken.kind is MissingKind.ERROR
    assert run_command(["/bin/echo", "a\0b"], ENVIRON, 1).missing is not None


def test_a_hung_tool() -> None:
    started = time.monotonic()
    fact = shell("echo partial; sleep 100", timeout_s=0.5)
    assert 0.5 <= time.monotonic() - started < 20
    assert_timeout(fact)
    assert fact.missing is not None
    assert fact.missing.reason == "sh did not answer within 0.5 s"


def test_a_hung_tool_with_grandchildren_that_hold_the_pipes(tmp_path: Path) -> None:
    started = time.monotonic()
    fact = shell(f"sleep 100 & echo $! > {tmp_path}/pid; sleep 100", timeout_s=0.5)
    assert time.monotonic() - started < 20
    assert_timeout(fact)
    assert_gone(tmp_path / "pid")


def test_a_tool_that_ends_while_a_grandchild_holds_the_pipes(tmp_path: Path) -> None:
    started = time.monotonic()
    found = result(shell(f"sleep 100 & echo $! > {tmp_path}/pid; echo done", timeout_s=0.5))
    assert time.monotonic() - started < 20
    assert (found.returncode, found.stdout) == (0, "done\n")
    assert_gone(tmp_path / "pid")


def test_a_tool_that_closes_its_outputs_and_stays() -> None:
    started = time.monotonic()
    assert_timeout(shell("exec >&- 2>&-; sleep 100", timeout_s=0.5))
    assert time.monotonic() - started < 20


def test_a_tool_that_ignores_signals() -> None:
    started = time.monotonic()
    assert_timeout(shell("trap '' TERM INT HUP QUIT; while :; do sleep 1; done", timeout_s=0.5))
    assert time.monotonic() - started < 20


def test_a_flood_is_cut_not_kept() -> None:
    found = result(shell("head -c 100000000 /dev/zero; echo 1>&2 end", timeout_s=30))
    assert len(found.stdout) == OUTPUT_LIMIT_BYTES
    assert (found.returncode, found.stderr) == (0, "end\n")


def test_an_endless_flood_ends_at_the_deadline() -> None:
    started = time.monotonic()
    assert_timeout(shell("yes", timeout_s=0.5))
    assert time.monotonic() - started < 2


def test_binary_output() -> None:
    found = result(shell("head -c 5000 /dev/urandom; printf '\\377\\376\\000x'"))
    found.stdout.encode()
    assert found.stdout.endswith("\x00x")


def test_a_tool_that_reads_nothing() -> None:
    found = result(shell("exec 0<&-; echo ok", stdin="x" * 1_000_000))
    assert found.stdout == "ok\n"
    started = time.monotonic()
    assert_timeout(shell("sleep 100", timeout_s=0.5, stdin="x" * 1_000_000))
    assert time.monotonic() - started < 20
    assert result(shell("sleep 0.2; echo ok", stdin="x" * 1_000_000)).stdout == "ok\n"


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Puts a script where the doctor's own child scripts are."""
    monkeypatch.setattr(process, "_REMOTE", tmp_path)

    def make(code: str) -> str:
        (tmp_path / "script.py").write_text(code)
        return "script.py"

    return make


MakeScript = Callable[[str], str]


def test_a_child_streams_lines(remote: MakeScript) -> None:
    script = remote("import json, sys\nfor x in json.load(sys.stdin): print(json.dumps({'x': x}))")
    assert stream_child(script, b"[1, 2]", ENVIRON, 10) == [{"x": 1}, {"x": 2}]


def test_a_child_that_hangs_or_dies_gives_what_came_before(remote: MakeScript) -> None:
    hangs = remote("import time\nprint(1, flush=True)\nprint('{\"half', end='', flush=True)\ntime.sleep(100)")
    started = time.monotonic()
    assert stream_child(hangs, b"", ENVIRON, 1.0) == [1]
    assert time.monotonic() - started < 2
    dies = remote("import os\nprint(1, flush=True)\nos.abort()")
    assert stream_child(dies, b"", ENVIRON, 10) == [1]


def test_a_child_that_prints_nonsense(remote: MakeScript) -> None:
    lines = [b"\xff\xfe", b"{", b"", b"[" * 100_000, b"9" * 9999, b"7", b'"\xff"', b'"\\udcff"']
    script = remote(f"import sys\nsys.stdout.buffer.write({b'  '.join(lines)!r}.replace(b'  ', b'\\n'))")
    assert stream_child(script, b"", ENVIRON, 10) == [7, "\udcff"]


def test_a_child_sees_nothing_of_the_users_python(remote: MakeScript, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    script = remote("import json, sys\nprint(json.dumps([len(sys.path) > 0, 'site' in sys.modules]))")
    assert stream_child(script, b"", {**ENVIRON, "PYTHONPATH": str(tmp_path)}, 10) == [[True, False]]


def test_tools_speak_english_without_colours(tmp_path: Path) -> None:
    write_command(tmp_path, "tool", 'echo "$LC_ALL $LANGUAGE $NO_COLOR $KEPT"')
    context = ProbeContext(environ={"PATH": f"{tmp_path}:/bin", "LC_ALL": "de_DE.UTF-8", "KEPT": "kept"})
    assert result(context.run(["tool"])).stdout == "C.UTF-8 C 1 kept\n"


def test_what_a_stuck_probe_started_does_not_outlive_the_doctor(tmp_path: Path) -> None:
    code = f"""
import threading, time
from rlcheck.measure.machine.process import run_command
run = lambda: run_command(["/bin/sh", "-c", "echo $$ > {tmp_path}/pid; sleep 100"], {ENVIRON!r}, 100)
threading.Thread(target=run, daemon=True).start()
time.sleep(1)
"""
    subprocess.run([sys.executable, "-c", code], env=base_environ(), timeout=30, check=True)
    assert_gone(tmp_path / "pid")


def test_no_descriptor_is_left_open() -> None:
    shell("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        shell("echo x")
        shell("sleep 100", timeout_s=0.05)
    assert len(os.listdir("/proc/self/fd")) == before
