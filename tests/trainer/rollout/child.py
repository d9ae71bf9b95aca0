"""A child process that holds one engine at a time, as an actor would: vLLM changes much in its process."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

from trainer.config.schema import RunConfig
from trainer.errors import RunFailure, UserError

ANSWER_S = 100.0


class Child:
    """Starts the process at once; `make` replaces its engine, everything else is called on the engine's worker."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()

    def make(self, config: RunConfig) -> dict[str, Any]:
        """Stop the engine that is there, and start one for CONFIG; its facts."""
        return self._ask("make", config)

    def call(self, method: str, *args: Any) -> Any:
        """Call METHOD of the `EngineWorker`; errors are raised here as there."""
        return self._ask(method, *args)

    def __getattr__(self, method: str) -> Any:
        return lambda *args: self._ask(method, *args)

    def end(self) -> int | None:
        """Stop engine and process; its exit code."""
        self._pipe.send(("end",))
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return self._process.exitcode

    def _ask(self, *message: Any) -> Any:
        self._pipe.send(message)
        if not self._pipe.poll(ANSWER_S):
            raise TimeoutError(f"no answer to {message[0]} in {ANSWER_S} s")
        kind, value = self._pipe.recv()
        if kind == "error":
            name, words = value
            raise {"RunFailure": RunFailure, "UserError": UserError}.get(name, RuntimeError)(words)
        return value


def _serve(pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    from trainer.rollout.worker import EngineWorker

    worker: EngineWorker | None = None
    while True:
        method, *args = pipe.recv()
        try:
            if method in ("make", "end") and worker is not None:
                worker.stop()
                worker = None
            if method == "end":
                return
            if method == "make":
                worker = EngineWorker(args[0], 0)
                pipe.send(("value", worker.start()))
            elif method == "load_without_reset":
                worker._engine.load_bucket(*args)
                pipe.send(("value", None))
            elif method == "version":
                pipe.send(("value", worker.policy_version))
            else:
                pipe.send(("value", getattr(worker, method)(*args)))
        except Exception as error:
            traceback.print_exc()
            pipe.send(("error", (type(error).__name__, str(error))))
