"""Processes that hold one worker each, as Ray's actors do, and groups of them that are called together."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from rltrain.core.errors import RunFailure, UserError

ANSWER_S = 300.0
"""Minutes on a machine that has much else to do; seconds on an idle one."""

END_S = 120.0


class Hosted:
    """A process of its own with an object of TARGET ("module:Class"), which `build` makes.

    Not a daemon: an engine has to start workers of its own. It ends with `end`, or with this process.
    """

    def __init__(self, target: str, environ: Mapping[str, str] | None = None, answer_s: float = ANSWER_S) -> None:
        self._target, self._environ, self._answer_s = target, dict(environ or {}), answer_s
        self.start()

    def start(self) -> None:
        """Start the process; there is none yet, or it has ended."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._ending = False
        self._process = context.Process(target=_serve, args=(theirs, self._target, self._environ))
        self._process.start()
        theirs.close()
        atexit.register(self._process.kill)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def build(self, *args: Any) -> None:
        """Make the worker, in place of the one that is there."""
        self.call("__build__", *args)

    def call(self, method: str, *args: Any) -> Any:
        """What METHOD returns, or the attribute of that name; errors are raised here as there."""
        self.begin(method, *args)
        return self.finish()

    def apply(self, function: Callable[..., Any], *args: Any) -> Any:
        """What FUNCTION(worker, *ARGS) returns; it is found by its name over there."""
        return self.call("__apply__", function, *args)

    def begin(self, method: str, *args: Any) -> None:
        """Send the call; `finish` waits for its answer."""
        self._pipe.send((method, *args))

    def finish(self) -> Any:
        """The answer to `begin`."""
        if not self._pipe.poll(self._answer_s):
            raise TimeoutError(f"no answer in {self._answer_s:g} s")
        kind, value = self._pipe.recv()
        if kind == "error":
            name, words = value
            raise {"RunFailure": RunFailure, "UserError": UserError}.get(name, RuntimeError)(words)
        return value

    def begin_end(self) -> None:
        """Ask worker and process to stop; `end` waits for them."""
        if self._process.is_alive() and not self._ending:
            self._pipe.send(("__end__",))
        self._ending = True

    def wait(self, timeout_s: float = ANSWER_S) -> int | None:
        """The exit code of a process that ends by itself; None: it is still there."""
        self._process.join(timeout_s)
        return self._process.exitcode

    def end(self) -> int | None:
        """Stop worker and process; its exit code."""
        self.begin_end()
        self._process.join(END_S)
        self.kill()
        return self._process.exitcode

    def kill(self) -> None:
        """End the process at once, if it is there, as SIGKILL would."""
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        atexit.unregister(self._process.kill)


class HostedGroup:
    """`rltrain.workers.sync.controller.Group` over hosted workers; they are called at the same time."""

    def __init__(self, *members: Hosted) -> None:
        self.members = members

    def all(self, method: str, *args: Any, deadline_s: float = 0.0, doing: str = "") -> list[Any]:
        for member in self.members:
            member.begin(method, *args)
        return [member.finish() for member in self.members]

    def each(self, method: str, args: Sequence[Any], *, deadline_s: float = 0.0, doing: str = "") -> list[Any]:
        for member, one in zip(self.members, args, strict=True):
            member.begin(method, one)
        return [member.finish() for member in self.members]

    def apply(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return self.all("__apply__", function, *args)

    def end(self) -> list[int | None]:
        for member in self.members:  # process groups of NCCL end together
            member.begin_end()
        return [member.end() for member in self.members]

    def kill(self) -> None:
        for member in self.members:
            member.kill()


def _serve(pipe: Connection, target: str, environ: Mapping[str, str]) -> None:
    os.environ.update({"OMP_NUM_THREADS": "1"} | dict(environ))
    module, _, name = target.partition(":")
    worker: Any = None
    while True:
        try:
            method, *args = pipe.recv()
        except EOFError:  # the tests' process is gone
            return
        try:
            if method in ("__build__", "__end__") and worker is not None:
                getattr(worker, "stop", getattr(worker, "shutdown", lambda: None))()
                worker = None
            if method == "__end__":
                return
            if method == "__build__":
                worker, answer = getattr(importlib.import_module(module), name)(*args), None
            elif method == "__apply__":
                answer = args[0](worker, *args[1:])
            else:
                member = getattr(worker, method)
                answer = member(*args) if callable(member) else member
            pipe.send(("value", answer))
        except Exception as error:
            traceback.print_exc()
            pipe.send(("error", (type(error).__name__, str(error))))
