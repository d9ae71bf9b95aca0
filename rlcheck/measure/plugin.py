"""Runs a measuring plug-in (entry point group `rlcheck.measurements`) in the examined Python, and never waits forever.

The plug-in starts engines, allocates GPUs and may hang or die in native code, so it has a process of its own, in a
session of its own. That process and all its descendants end with the call, whichever way it is left; if the doctor is
killed, the end of its pipe tells the child (`remote/plugin_child.py`) to end itself and what it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from rlcheck.facts.base import Fact, MissingKind, Struct, missing

_ROOT = Path(__file__).resolve().parents[2]
_CHILD = Path(__file__).resolve().parents[1] / "remote" / "plugin_child.py"
_TAIL_BYTES = 256 << 10
_LINE_LIMIT_BYTES = 64 << 20
_TAIL_LINES = 40
_POLL_S = 0.2
_LEAVE_S = 8.0
"""How long the child may take to end all that it started: a polite request, then SIGKILL."""
S = TypeVar("S", bound=Struct)

OnStage = Callable[[str, int, int], None]
"""Called with a stage's name, how far it is, and out of how much (0: not said)."""


class ProbeFailed(Exception):
    """A plug-in that gave no result.

    Attributes:
        kind: user (its own line for the user), crash, missing (not installed there), died, timeout.
        tail: the last lines that it and what it started printed; `printed`: more of them.
        stage: in which it was, "" before the first.
        stages: name and seconds of every stage that was entered, in order.
        partial: what the plug-in had told by then.
    """

    def __init__(self, message: str, kind: str, talk: _Talk | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.printed: tuple[str, ...] = talk.printed() if talk else ()
        self.tail = self.printed[-_TAIL_LINES:]
        self.stage = talk.stage if talk else ""
        self.stages: tuple[tuple[str, float], ...] = talk.timed() if talk else ()
        self.partial: dict[str, Any] = talk.partial if talk else {}

    def facts(self, kind: type[S], why: str) -> S:
        """What had been told by then, as `decoded` reads it, with the time in the stage that failed."""
        times: list[Any] = list(self.partial.get("stages", ()))
        if self.stages:
            name, seconds = self.stages[-1]
            times.append({"name": name, "seconds": round(seconds, 3)})
        try:
            return decoded({**self.partial, "stages": times}, kind, why)
        except ProbeFailed:
            return decoded({}, kind, why)


def decoded(found: Mapping[str, Any], kind: type[S], why: str) -> S:
    """Return what a plug-in gave, `kind` as plain data; `why` is the reason of the facts that it left out.

    Raises:
        ProbeFailed: it is of another shape.
    """
    try:
        facts = msgspec.convert(dict(found), kind)
    except msgspec.ValidationError as error:
        message = f"the plug-in answered in a way that this rlcheck cannot read: {error}"
        raise ProbeFailed(message, "crash") from None
    left_out = [field.name for field in msgspec.structs.fields(kind) if isinstance(field.default, Fact)]
    unknown = {name: missing(MissingKind.ERROR, why) for name in left_out if name not in found}
    return msgspec.structs.replace(facts, **unknown)


def run_probe(
    python: Sequence[str],
    name: str,
    request: Mapping[str, Any],
    *,
    stage_timeout_s: Callable[[str], float] | float,
    total_timeout_s: float,
    on_stage: OnStage | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run plug-in `name` and return its result; `decoded` reads it.

    Args:
        python: command line of the interpreter to run it in; empty means the doctor's own.
        name: of the entry point.
        request: what the plug-in gets; plain JSON.
        stage_timeout_s: longest silence in a stage, by its name ("" before the first).
        total_timeout_s: longest time in all.
        on_stage: told of each sign of life.
        environ: of the process; defaults to this process's.

    Raises:
        ProbeFailed: with one line, what was printed last, and the stage.
    """
    argv = [*(python or (sys.executable,)), "-u", "-c", _CHILD.read_text(encoding="utf-8")]
    paths = [] if python else [str(_ROOT), str(_ROOT / "trainer")]
    job = json.dumps({"probe": name, "request": dict(request), "paths": paths}).encode() + b"\n"
    shown = " ".join(python) if python else sys.executable
    talk = _Talk(on_stage or _nobody)
    try:
        process = _start(argv, os.environ if environ is None else environ)
    except (OSError, ValueError) as error:
        raise ProbeFailed(f"{shown} cannot be started: {error}", "missing") from None
    try:
        _listen(process, job, talk, stage_timeout_s, time.monotonic() + total_timeout_s, total_timeout_s)
        return _outcome(process, talk, name, shown)
    finally:
        _end(process)


@dataclass
class _Talk:
    """What the child has said so far."""

    on_stage: OnStage
    stage: str = ""
    entered: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    partial: dict[str, Any] = field(default_factory=dict[str, Any])
    last: dict[str, Any] | None = None
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    heard: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def take_out(self, chunk: bytes) -> None:
        self.out += chunk
        *lines, rest = bytes(self.out).split(b"\n")
        self.out = bytearray(rest[:_LINE_LIMIT_BYTES])
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                said = json.loads(line)
                if isinstance(said, dict):
                    self._take(said)  # pyright: ignore[reportUnknownArgumentType]

    def _take(self, said: dict[str, Any]) -> None:
        self.heard = time.monotonic()
        if "result" in said or "error" in said:
            self.last, self.ended = said, self.heard
        elif "stage" in said:
            stage = str(said["stage"])
            if stage != self.stage:
                self.entered.append((stage, self.heard))
                self.stage = stage
            self.on_stage(stage, int(said.get("done") or 0), int(said.get("total") or 0))
        elif isinstance(said.get("partial"), dict):
            self.partial.update(said["partial"])

    def take_err(self, chunk: bytes) -> None:
        self.err += chunk
        del self.err[:-_TAIL_BYTES]

    def printed(self) -> tuple[str, ...]:
        lines = self.err.decode("utf-8", "replace").replace("\r", "\n").split("\n")
        return tuple(line.rstrip() for line in lines if line.strip())

    def timed(self) -> tuple[tuple[str, float], ...]:
        ends = [began for _, began in self.entered[1:]] + [self.ended or time.monotonic()]
        return tuple((name, end - began) for (name, began), end in zip(self.entered, ends, strict=False))


def _nobody(stage: str, done: int, total: int) -> None:
    del stage, done, total


def _start(argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environ),
        start_new_session=True,
        bufsize=0,
    )


def _listen(
    process: subprocess.Popen[bytes],
    job: bytes,
    talk: _Talk,
    limit: Callable[[str], float] | float,
    deadline: float,
    total_s: float,
) -> None:
    """Hand over the request and read until the last line, the child's end, or a deadline.

    Raises:
        ProbeFailed: a deadline has passed.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stdin = process.stdin.fileno()
    os.set_blocking(stdin, False)
    takers = {process.stdout: talk.take_out, process.stderr: talk.take_err}
    with selectors.DefaultSelector() as selector:
        for pipe in takers:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        while True:
            gone = process.poll() is not None
            job = _write_some(stdin, job)
            for key, _ in selector.select(0 if gone else _POLL_S):
                chunk = os.read(key.fd, 1 << 16)
                takers[key.fileobj](chunk)  # type: ignore[index]
                if not chunk:
                    selector.unregister(key.fileobj)
                gone = gone and not chunk
            if gone or talk.last is not None:
                return
            _hold_deadlines(talk, limit, deadline, total_s)


def _hold_deadlines(talk: _Talk, limit: Callable[[str], float] | float, deadline: float, total_s: float) -> None:
    now = time.monotonic()
    where = f"in stage {talk.stage}" if talk.stage else "before its first stage"
    if now > deadline:
        raise ProbeFailed(f"did not end within {total_s:g} s; it was {where}", "timeout", talk)
    allowed = limit(talk.stage) if callable(limit) else limit
    if now - talk.heard > allowed:
        raise ProbeFailed(f"did not answer within {allowed:g} s {where}", "timeout", talk)


def _write_some(descriptor: int, data: bytes) -> bytes:
    """Write what the pipe takes now; the rest. The pipe stays open: its end would end the child."""
    try:
        return data[os.write(descriptor, data) :] if data else b""
    except BlockingIOError:
        return data
    except OSError:
        return b""


def _outcome(process: subprocess.Popen[bytes], talk: _Talk, name: str, shown: str) -> dict[str, Any]:
    said = talk.last
    if said is not None and isinstance(said.get("result"), dict):
        return said["result"]
    if said is not None and said.get("kind") == "missing":
        needs = "install rlcheck with its trainer there: pip install 'rlcheck[train]'"
        message = said.get("error") or f"has no plug-in '{name}'"
        raise ProbeFailed(f"{shown}: {message}; {needs}", "missing", talk)
    if said is not None:
        kind = "user" if said.get("kind") == "user" else "crash"
        raise ProbeFailed(str(said.get("error") or "the plug-in gave no result"), kind, talk)
    status = process.wait(_LEAVE_S)
    where = f" in stage {talk.stage}" if talk.stage else ""
    number = -status if status < 0 else status - 128 if 128 < status < 160 else 0
    how = f"died with signal {number} ({_signal_name(number)})" if number else f"ended with status {status}"
    printed = talk.printed()
    words = f": {printed[-1][:300]}" if printed and not number else ""
    raise ProbeFailed(f"{how}{where} and gave no result{words}", "died", talk)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing. The end of its input tells the child's guard to end all; what it does not manage is done here."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if family:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_POLL_S)
