"""The one door between the doctor and the machine.

Every probe gets a `ProbeContext` and touches nothing else, so a test can hand it a made-up root directory, an
environment and a set of commands, and a hostile machine can do no more than make a fact *missing*.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.base import Fact, MissingKind, known, missing
from rlcheck.measure.machine.process import CommandResult, run_command, stream_child

_KIND_BY_ERRNO = {
    errno.ENOENT: MissingKind.ABSENT,
    errno.ENOTDIR: MissingKind.ABSENT,
    errno.ENODEV: MissingKind.ABSENT,
    errno.EACCES: MissingKind.PERMISSION,
    errno.EPERM: MissingKind.PERMISSION,
}
READ_LIMIT_BYTES = 4 << 20


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def os_error(error: OSError, path: str) -> Fact[Any]:
    """The missing fact that an `OSError` on `path` amounts to."""
    kind = _KIND_BY_ERRNO.get(error.errno or 0, MissingKind.ERROR)
    return missing(kind, f"{path}: {error.strerror or type(error).__name__}")


class ProbeContext:
    """Files, commands, environment and clock of the machine under examination.

    Args:
        root: prefix of every path (tests give a fake tree).
        environ: the environment variables; defaults to this process's.
        python: command line of the interpreter to examine; empty means the one that runs the doctor.
        deep: slow examinations are wanted too.
        path_dirs: directories searched for commands; defaults to `PATH` of `environ`.
    """

    def __init__(
        self,
        root: str | Path = "/",
        environ: Mapping[str, str] | None = None,
        python: Sequence[str] = (),
        deep: bool = False,
    ) -> None:
        self.root = Path(root)
        self.environ: Mapping[str, str] = dict(os.environ) if environ is None else environ
        self.python: tuple[str, ...] = tuple(python)
        self.deep = deep

    def path(self, path: str) -> str:
        """Where `path` really is: below the root of a fake machine, or `path` itself."""
        return path if self.root == Path("/") else str(self.root / path.lstrip("/"))

    def read_text(self, path: str, limit: int = READ_LIMIT_BYTES) -> Fact[str]:
        """The text of a file, undecodable bytes replaced, at most `limit` bytes of it."""
        try:
            # Without waiting: a pipe that nobody writes to must not look like a slow file.
            with open(self.path(path), "rb", opener=_open_without_waiting) as file:
                return known((file.read(limit) or b"").decode("utf-8", "replace"))
        except OSError as error:
            return os_error(error, path)
        except ValueError as error:  # a NUL in a path that came from the environment
            return missing(MissingKind.ERROR, f"{path!r}: {error}")

    def list_dir(self, path: str) -> Fact[list[str]]:
        """The sorted names in a directory."""
        try:
            return known(sorted(os.listdir(self.path(path))))
        except (OSError, ValueError) as error:
            return os_error(error, path) if isinstance(error, OSError) else missing(MissingKind.ERROR, str(error))

    def read_link(self, path: str) -> Fact[str]:
        """The target of a symbolic link, as written in it."""
        try:
            return known(os.readlink(self.path(path)))
        except (OSError, ValueError) as error:
            return os_error(error, path) if isinstance(error, OSError) else missing(MissingKind.ERROR, str(error))

    def exists(self, path: str) -> bool:
        """Whether something is at `path`. A dangling link counts: it was put there."""
        try:
            return os.path.lexists(self.path(path))
        except (OSError, ValueError):
            return False

    def access(self, path: str, mode: int) -> bool:
        """Whether this process may use `path` so (`os.R_OK`, `os.W_OK`, `os.X_OK`)."""
        try:
            return os.access(self.path(path), mode)
        except (OSError, ValueError):
            return False

    def find_command(self, name: str) -> str | None:
        """The full path of command `name` on `PATH`, or None."""
        for directory in self.environ.get("PATH", os.defpath).split(os.pathsep):
            candidate = os.path.join(directory or ".", name)
            try:
                if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                    return candidate
            except (OSError, ValueError):
                continue
        return None

    def run(self, argv: Sequence[str], timeout_s: float = 5.0, stdin: str | None = None) -> Fact[CommandResult]:
        """Run a command in its own process group with a deadline; the whole group is killed when it passes.

        The fact is `absent` when there is no such command, `timeout` when it did not end. A non-zero exit is a value.
        """
        executable = argv[0] if os.sep in argv[0] else self.find_command(argv[0])
        if executable is None:
            return missing(MissingKind.ABSENT, f"{argv[0]}: command not found")
        return run_command([executable, *argv[1:]], self.child_environ(), timeout_s, stdin)

    def child(self, script: str, payload: Any = None, timeout_s: float = 5.0) -> list[Any]:
        """Run `rlcheck/remote/<script>` in a Python of its own and return the JSON lines it printed in time.

        For what can get stuck in the kernel. The payload arrives on its standard input as JSON. A child that hangs or
        dies gives the lines that it printed before; the caller reports what did not come as missing.
        """
        data = json.dumps(msgspec.to_builtins(payload)).encode()
        return stream_child(script, data, self.child_environ(), timeout_s)

    def child_environ(self) -> dict[str, str]:
        """The environment for commands: ours, with messages in English and no colours."""
        return {**self.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()
