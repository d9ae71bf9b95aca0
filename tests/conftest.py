"""Shared by all tests: the command in a process of its own, a terminal of a given size, a fake machine, a plug-in."""

from __future__ import annotations

import fcntl
import gc
import os
import pty
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from rlcheck.measure.machine.context import ProbeContext
from tests.warm import Ended, Warm

ROOT = Path(__file__).resolve().parents[1]
PLUGIN_SOURCE = ROOT / "tests" / "fixtures" / "plugin"
# Parts of tests/ that start Ray, engines, ranks or machines, or that measure time: of each group one worker runs all.
SERIAL = {
    "machines": (
        "core/test_context", "core/test_gather", "core/test_process", "measure/canary", "measure/cluster",
        "measure/collectives", "measure/drift", "measure/hang", "measure/machine/test_nvidia", "measure/rollout",
        "multinode", "preflight", "slurm", "tools/test_slurm_script",
    ),
    "runs": ("trainer/cli/test_app", "trainer/controller", "trainer/end_to_end", "trainer/measure"),
    "failures": ("trainer/cluster", "trainer/failures", "trainer/rewards", "trainer/workers"),
}  # fmt: skip
IMPORT_PATH = os.pathsep.join((str(ROOT), str(ROOT / "trainer")))
"""Where `rlcheck`, `tests` and `rltrain` are."""
# A test must not depend on who runs it: only these variables come through.
KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "COVERAGE_PROCESS_START")

OF_THE_START = ("PYTHON", "LANG", "LC_", "LD_")
"""How variables begin that an interpreter reads when it starts."""

EQUAL = {"RAY_worker_niceness": "0", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
"""For tests side by side. Ray gives its workers a priority (15) at which they wait for all others.
OpenMP's threads wait in a busy loop, which takes the core from the one they wait for (a step took five times as long).
"""
os.environ |= EQUAL

# Nor on how: below `nohup`, or behind a script's `&`, the commands under test would ignore these signals, too.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda _number, _frame: None)


class GroupScheduling(LoadScopeScheduling):
    """Tests of a group stay in one worker, all others file by file.

    Not `--dist loadgroup`: xdist 3.8 writes groups into a field of items that pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        place = nodeid.partition("::")[0].removeprefix("tests/")
        return next((group for group, parts in SERIAL.items() if place.startswith(parts)), place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Have xdist use the groups."""
    return GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of garbage from walking eleven thousand tests, while they are made and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def base_environ(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """A plain environment in which `python -m rlcheck` runs from any directory; None in `extra` removes a variable."""
    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    environ |= {"LANG": "C.UTF-8", "PYTHONPATH": IMPORT_PATH, "TERM": "xterm-256color"} | EQUAL
    for name, value in (extra or {}).items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    return environ


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float
    cpu_s: float = 0.0
    """Processor time, where it was measured: another test beside it does not count."""

    @property
    def error_line(self) -> str:
        """Standard error, which must be one line of the doctor's own."""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("rlcheck: "), self.err
        return lines[0]


def rlcheck(
    *arguments: str | Path,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    timeout: float = 60,
    fresh: bool = False,
) -> Done:
    """Run the command as a user would and wait for it.

    An interpreter of its own is started for it where it could make a difference: variables that one reads at its start,
    another working directory, a measurement (`fresh`).
    """
    started, environ, words = time.monotonic(), base_environ(env), [*map(str, arguments)]
    plain = not fresh and cwd is None and not any(name.startswith(OF_THE_START) for name in env or ())
    ended = _warm().call(words, environ, stdin, timeout) if plain else None
    ended = ended or _cold(words, environ, cwd, stdin, timeout)
    assert b"Traceback" not in ended.err, ended.err.decode("utf-8", "replace")
    out, err = (text.decode("utf-8", "replace") for text in (ended.out, ended.err))
    return Done(ended.code, out, err, time.monotonic() - started, ended.cpu_s)


@cache
def _warm() -> Warm:
    return Warm(base_environ(), str(ROOT))


def _cold(words: Sequence[str], environ: Mapping[str, str], cwd: Path | None, stdin: bytes, timeout: float) -> Ended:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "rlcheck", *words],
        env=environ,
        cwd=cwd or ROOT,
        input=stdin,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ended(done.returncode, done.stdout, done.stderr, cpu_s)


def in_terminal(
    *arguments: str | Path, columns: int, env: Mapping[str, str | None] | None = None, typed: bytes = b""
) -> Done:
    """Run the command on a real pseudo-terminal of so many columns; `out` is everything that it showed."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlcheck", *map(str, arguments)],
        env=base_environ(env),
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.DEVNULL if not typed else terminal,
        start_new_session=True,
    )
    os.close(terminal)
    if typed:
        os.write(controller, typed)
    shown = _read_all(controller, started + 60)
    code = process.wait(10)
    os.close(controller)
    return Done(code, shown.decode("utf-8", "replace").replace("\r\n", "\n"), "", time.monotonic() - started)


def _read_all(descriptor: int, deadline: float) -> bytes:
    shown = b""
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # EIO: the other side has been closed
            break
        if not chunk:
            break
        shown += chunk
    return shown


def write_tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """A made-up root directory with these files."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def write_command(directory: Path, name: str, script: str) -> Path:
    """A command that runs `script` in a shell."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


FakeMachine = Callable[..., ProbeContext]


@pytest.fixture
def fake_machine(tmp_path: Path) -> FakeMachine:
    """Makes a context with a root of its own, commands of its own, and nothing of this machine."""

    def make(
        files: Mapping[str, str | bytes] | None = None,
        commands: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        python: Sequence[str] = (),
    ) -> ProbeContext:
        root = write_tree(tmp_path / "root", files or {})
        root.mkdir(exist_ok=True)
        for name, script in (commands or {}).items():
            write_command(tmp_path / "commands", name, script)
        path = f"{tmp_path / 'commands'}:/usr/bin:/bin"
        return ProbeContext(root, {"PATH": path, **(environ or {})}, python)

    return make


@pytest.fixture(scope="session")
def plugin_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sample plug-in, installed by pip."""
    target = tmp_path_factory.mktemp("plugin-site")
    source = tmp_path_factory.mktemp("plugin-source")
    for path in PLUGIN_SOURCE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            copy = source / path.relative_to(PLUGIN_SOURCE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def acme(plugin_site: Path) -> dict[str, str | None]:
    """Variables with which the command finds the sample plug-in."""
    return {"PYTHONPATH": f"{IMPORT_PATH}{os.pathsep}{plugin_site}"}
