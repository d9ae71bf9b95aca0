"""Measuring plug-ins that answer, refuse, crash, hang, print and leave things behind: a line in time, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcheck.measure.plugin import ProbeFailed, run_probe
from tests.conftest import ROOT, base_environ

PLUGIN = """
import os, signal, subprocess, sys, time
class UserError(Exception):
    pass
def run(request, tell):
    tell({"stage": "first", "done": 1, "total": 2})
    print("noise on standard output", flush=True)
    subprocess.run(["echo", "noise of a child"])
    kind = request["kind"]
    if kind == "result":
        tell({"stage": "second"})
        return {"echo": request, "stdin": sys.stdin.read(), "environ": os.environ.get("E2E", "")}
    if kind == "user":
        raise UserError("set\\n  it right")
    if kind == "crash":
        try:
            {}["root"]
        except KeyError as error:
            raise RuntimeError("Engine core initialization failed. See root cause above.") from error
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "exit":
        sys.stderr.write("last words\\n")
        os._exit(7)
    if kind == "json":
        return {"value": object()}
    if kind == "hang":
        tell({"partial": {"known": 1}})
        # One in a session of its own, whose parent is gone: as a daemon would be.
        code = "import os,signal,time\\n"
        code += "signal.signal(15, signal.SIG_IGN)\\n" if request.get("stubborn") else ""
        code += "if os.fork(): os._exit(0)\\nos.setsid()\\nopen(%r, 'w').write(str(os.getpid()))\\ntime.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code % request["pid_file"]]).wait()
        while not os.path.exists(request["pid_file"]):
            time.sleep(0.02)
        tell({"stage": "hanging"})
        time.sleep(600)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose Python has the plug-in `sample` installed."""
    (tmp_path / "sample_plugin.py").write_text(PLUGIN)
    info = tmp_path / "sample-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rlcheck.measurements]\nsample = sample_plugin:run\nbroken = no_such_module:run\n"
    )
    return base_environ({"PYTHONPATH": str(tmp_path)}) | {"E2E": "here"}


def ask(environ: dict[str, str], name: str = "sample", **request: Any) -> dict[str, Any]:
    limits = {"stage_timeout_s": 10, "total_timeout_s": 20} | request.pop("limits", {})
    return run_probe((sys.executable,), name, request, environ=environ, **limits)


def failure(environ: dict[str, str], name: str = "sample", **request: Any) -> ProbeFailed:
    with pytest.raises(ProbeFailed) as caught:
        ask(environ, name, **request)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    me = psutil.Process()
    before = set(me.children(recursive=True))
    yield
    assert set(me.children(recursive=True)) - before == set()


def test_result_with_noise_around_it(environ: dict[str, str]) -> None:
    seen: list[tuple[str, int, int]] = []
    found = run_probe(
        (sys.executable,),
        "sample",
        {"kind": "result", "big": "x" * 300_000},
        stage_timeout_s=10,
        total_timeout_s=20,
        environ=environ,
        on_stage=lambda *stage: seen.append(stage),
    )
    assert found["echo"]["big"] == "x" * 300_000
    assert found["stdin"] == ""
    assert found["environ"] == "here"
    assert seen == [("first", 1, 2), ("second", 0, 0)]


def test_user_error_is_its_own_line(environ: dict[str, str]) -> None:
    error = failure(environ, kind="user")
    assert (error.kind, str(error), error.stage) == ("user", "set it right", "first")


def test_crash_says_what_was_raised_first_and_keeps_the_tail(environ: dict[str, str]) -> None:
    error = failure(environ, kind="crash")
    assert (error.kind, str(error)) == ("crash", "KeyError: 'root'")
    assert "noise of a child" in error.tail
    assert error.tail[-1].startswith("RuntimeError: Engine core")


def test_a_sentence_says_more_than_a_failed_look() -> None:
    """As transformers reports a model type that it does not know."""
    from rlcheck.remote.plugin_child import in_one_line

    told = ValueError("Transformers does not recognize this architecture")
    told.__cause__ = KeyError("qwen9")
    wrapped = RuntimeError("Engine core initialization failed. See root cause above.")
    wrapped.__cause__ = told
    assert in_one_line(wrapped) == f"ValueError: {told}"


def test_death_by_signal(environ: dict[str, str]) -> None:
    error = failure(environ, kind="signal")
    assert error.kind == "died"
    assert str(error) == "died with signal 11 (SIGSEGV) in stage first and gave no result"
    assert any("Fatal Python error: Segmentation fault" in line for line in error.tail)


def test_an_exit_without_result(environ: dict[str, str]) -> None:
    error = failure(environ, kind="exit")
    assert str(error) == "ended with status 7 in stage first and gave no result: last words"


def test_a_result_that_is_no_json(environ: dict[str, str]) -> None:
    assert "no JSON" in str(failure(environ, kind="json"))


def test_not_installed_there(environ: dict[str, str]) -> None:
    error = failure(environ, "no-such-probe")
    assert error.kind == "missing"
    assert str(error).startswith(f"{sys.executable}: ")
    assert "pip install 'rlcheck[train]'" in str(error)


def test_a_plugin_that_cannot_be_imported(environ: dict[str, str]) -> None:
    error = failure(environ, "broken")
    assert error.kind == "missing"
    assert "ModuleNotFoundError: No module named 'no_such_module'" in str(error)


def test_no_such_python(environ: dict[str, str]) -> None:
    with pytest.raises(ProbeFailed, match="/no/python cannot be started: ") as caught:
        run_probe(("/no/python",), "sample", {}, stage_timeout_s=1, total_timeout_s=1, environ=environ)
    assert caught.value.kind == "missing"


def test_what_is_no_python_at_all(environ: dict[str, str]) -> None:
    with pytest.raises(ProbeFailed, match="ended with status 1"):
        run_probe(("/bin/false",), "sample", {}, stage_timeout_s=5, total_timeout_s=5, environ=environ)


def test_a_hang_ends_at_the_stage_deadline_and_leaves_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    begun = time.monotonic()

    def limit(stage: str) -> float:
        return 0.5 if stage == "hanging" else 20

    error = failure(environ, kind="hang", stubborn=True, pid_file=str(pid_file), limits={"stage_timeout_s": limit})
    assert str(error) == "did not answer within 0.5 s in stage hanging"
    assert (error.kind, error.partial) == ("timeout", {"known": 1})
    assert [name for name, _ in error.stages] == ["first", "hanging"]
    assert 0.4 < dict(error.stages)["hanging"] < 5
    assert time.monotonic() - begun < 15
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_the_total_deadline_holds_too(environ: dict[str, str], tmp_path: Path) -> None:
    error = failure(environ, kind="hang", pid_file=str(tmp_path / "pid"), limits={"total_timeout_s": 1})
    assert str(error) == "did not end within 1 s; it was in stage hanging"


CALLER = """
import sys
from rlcheck.measure.plugin import run_probe
try:
    run_probe((sys.executable,), "sample", {"kind": "hang", "pid_file": sys.argv[1]},
              stage_timeout_s=60, total_timeout_s=60)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_nothing_outlives_the_doctor(environ: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    environ = environ | {"PYTHONPATH": f"{environ['PYTHONPATH']}{os.pathsep}{ROOT}"}
    caller = subprocess.Popen([sys.executable, "-c", CALLER, str(pid_file)], env=environ)
    try:
        until = time.monotonic() + 20
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < until, "the plug-in did not start"
            time.sleep(0.02)
        left = [*psutil.Process(caller.pid).children(recursive=True), psutil.Process(int(pid_file.read_text()))]
        caller.send_signal(number)
        assert caller.wait(15) == (130 if number is signal.SIGINT else -number)
        assert psutil.wait_procs(left, timeout=10)[1] == []
    finally:
        caller.kill()
        caller.wait()
