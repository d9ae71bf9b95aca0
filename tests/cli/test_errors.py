"""Wrong options and unusable files end in one line and the right exit code; nothing ends in a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, base_environ, rlcheck, write_command, write_tree

Acme = dict[str, str | None]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("list", "--format", "junit"), "is not one of 'text', 'json'"),
        (("nonsense",), "nonsense"),
        (("env", "--nonsense"), "--nonsense"),
        (("env", "--format", "yaml"), "yaml"),
        (("env", "--timeout", "0"), "timeout"),
        (("env", "--timeout", "soon"), "soon"),
        (("env", "stray"), "stray"),
        (("env", "--select", "SYS01"), "did you mean SYS001?"),
        (("env", "--select", "sys1"), "did you mean SYS001?"),
        (("explain",), "ID"),
        (("merge",), "files"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    done = rlcheck(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert says in done.err
    assert len(done.err.splitlines()) <= 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("env", "--select", "SYS01"), "did you mean SYS0"),
        (("env", "--ignore", "SYS999x"), "SYS999x"),
        (("list", "--select", "ABC"), "ABC"),
        (("explain", "SYS01"), "did you mean SYS0"),
        (("explain", "no such thing"), "`rlcheck list` names all checks"),
        (("explain", "x" * 5000), "nothing is called"),
        (("explain", "../README"), "nothing is called"),
        (("explain", "\x1b[31mred"), "nothing is called"),
        (("env", "--python", "/no/such/python"), "no such interpreter"),
        (("env", "--python", "/etc"), "a directory without bin/python"),
        (("env", "--python", "/etc/passwd"), "can be executed"),
        (("env", "--python", "a 'b"), "--python"),
        (("env", "--python", " "), "--python"),
        (("env", "--facts", "x.json", "--deep"), "need the machine itself"),
    ],
)
def test_a_user_error_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    done = rlcheck(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert says in done.error_line
    assert len(done.err) < 1200
    assert "\x1b" not in done.err


FUTURE = b'{"schema_version": "9.0", "nodes": [{"node": "a"}]}'
NEXT_MINOR = (
    b'{"schema_version": "2.9", "invented": 1, "nodes": [{"node": "a", "later": {"x": 1}, "schema_version": "2.9"}]}'
)
START = b'{"schema_version": "2.0", "nodes": [{"node": "a", "plugins": {"p": {"value": '
FILES = {
    "empty": (b"", "not a facts file"),
    "text": (b"hello\n", "not a facts file"),
    "binary": (bytes(range(256)) * 100, "not a facts file"),
    "other JSON": (b"[1, 2]", "not a facts file"),
    "a report": (b'{"version": "0.1", "schema_version": "2.0"}', "no node"),
    "future": (FUTURE, "'9.0' cannot be read by this rlcheck"),
    "no nodes": (b'{"schema_version": "2.0", "nodes": []}', "no node"),
    "wrong type": (b'{"schema_version": "2.0", "nodes": [{"node": 7}]}', "$.nodes[0].node"),
    "twice the same node": (b'{"schema_version": "2.0", "nodes": [{"node": "a"}, {"node": "a"}]}', "recorded twice"),
    "deep": (b'{"schema_version": "2.0", "nodes": ' + b"[" * 100_000, "facts.json"),
    "a long number": (
        START + b"9" * 50 + b"}}}]}",
        "64",
    ),
    "escapes": (b'{"schema_version": "\\u001b[2J\\u202e\\n\\n", "nodes": []}', "cannot be read"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_facts_file(name: str, tmp_path: Path) -> None:
    data, says = FILES[name]
    path = tmp_path / "facts.json"
    path.write_bytes(data)
    for command in (("env", "--facts", path), ("merge", path)):
        done = rlcheck(*command)
        assert done.code == 2
        assert done.out == ""
        assert says in done.error_line
        assert not set(done.err) & set("\x1b\u202e")
    assert rlcheck("env", "--facts", "-", stdin=data).code == 2


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    assert "No such file" in rlcheck("env", "--facts", tmp_path / "nothing").error_line
    assert "directory" in rlcheck("env", "--facts", tmp_path).error_line
    assert rlcheck("env", "--facts", "/proc/self/mem").code == 2


def test_a_newer_minor_version_is_judged(tmp_path: Path) -> None:
    done = rlcheck("env", "--facts", "-", "--format", "json", stdin=NEXT_MINOR)
    assert done.code in (0, 1)
    assert json.loads(done.out)["nodes"] == ["a"]


def test_truncated_real_files(tmp_path: Path) -> None:
    whole = rlcheck("collect").out.encode()
    for size in (1, 10, len(whole) // 2, len(whole) - 3):
        assert rlcheck("env", "--facts", "-", stdin=whole[:size]).code == 2


def test_outputs_that_cannot_be_written(acme: Acme, tmp_path: Path) -> None:
    for option in (tmp_path / "no" / "where", tmp_path, "/dev/full", ""):
        done = rlcheck("env", "--select", "ACM001", "--output", option, env=acme)
        assert done.code == 2, option
        assert f"--output {option}" in done.error_line or option == ""
    assert rlcheck("collect", "--output", tmp_path / "no" / "where").code == 2
    assert rlcheck("collect", "--output", "/dev/full").code == 2


@pytest.mark.parametrize(
    "command", [("env",), ("collect",), ("list",), ("explain", "SYS001"), ("env", "--format", "json")]
)
def test_a_full_disk_behind_standard_output(command: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rlcheck", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            env=base_environ(),
            check=False,
        )
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode not in (0, 1)
    assert len(lines) == 1, lines
    assert "No space left" in lines[0]


@pytest.mark.parametrize(
    "command", ["env", "env -v", "env --format json", "collect", "list", "explain SYS001", "--help"]
)
def test_a_reader_that_leaves(command: str) -> None:
    script = f"set -o pipefail; {sys.executable} -m rlcheck {command} | true"
    done = subprocess.run(["bash", "-c", script], env=base_environ(), capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["env --format json", "list", "explain SYS001", "--version", "--help"])
def test_a_closed_standard_output(command: str) -> None:
    script = f"{sys.executable} -m rlcheck {command} >&-"
    done = subprocess.run(["bash", "-c", script], env=base_environ(), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2)
    assert len(done.stderr.splitlines()) <= 1


def test_exit_codes(acme: Acme, tmp_path: Path) -> None:
    def code(mode: str, *more: str) -> int:
        return rlcheck("env", "--select", "ACM001", *more, env={**acme, "ACME_MODE": mode}).code

    assert code("fast") == 0
    assert code("medium") == 0
    assert code("medium", "--strict") == 1
    assert code("unknown") == 0
    assert code("unknown", "--strict") == 1
    assert code("crash") == 0
    assert code("crash", "--strict") == 1
    assert code("slow") == 1
    assert code("slow", "--ignore", "ACM001") == 0
    assert code("slow", "--ignore", "ACM", "--strict") == 0
    assert code("slow", "--nonsense") == 2
    # What nobody foresaw: a module that breaks inside the doctor.
    code_that_breaks = "import rlcheck.judging as e\ndef bad(*a):\n    raise RuntimeError('x' * 5000)\ne.judge = bad\n"
    write_tree(tmp_path, {"sitecustomize.py": code_that_breaks})
    done = rlcheck("env", env={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})
    assert done.code == 3
    assert done.error_line.startswith("rlcheck: the doctor itself failed: RuntimeError: xxx")
    assert len(done.err) < 1200


@pytest.mark.parametrize("how", ["hang", "hang in tool"])
def test_an_interrupt(how: str, acme: Acme, tmp_path: Path) -> None:
    write_command(tmp_path, "acme-tool", f"echo $$ > {tmp_path}/pid; sleep 100")
    env = {**acme, "ACME_PROBE": how, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rlcheck", "env", "--select", "ACM001"],
        env=base_environ(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    _wait_until(lambda: psutil.Process(process.pid).num_threads() > 1, "a probe at work")
    if how == "hang in tool":
        _wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "its tool")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == b""
    assert err.decode().strip() == "rlcheck: interrupted"
    if how == "hang in tool":
        pid = int((tmp_path / "pid").read_text())
        _wait_until(lambda: not _lives(pid), "the end of its tool")


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"no sign of {what}"
        time.sleep(0.05)
