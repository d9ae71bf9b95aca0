"""Ends a run that makes no progress, and says who waits for whom and where everybody hangs."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType

from rlcheck.facts.hang import Hang
from rlcheck.measure.hang.nodes import verdict_of
from rltrain.cluster.placement import Node
from rltrain.cluster.runtime import Runtime
from rltrain.core.errors import RunFailure

REPORT = "stall.txt"
GRACE_S = 10.0
"""How long the controller may take to notice; it does not when it hangs itself, outside any wait."""
WATCHED_S = 3.0
"""For how long the report looks at the processes: nothing has moved for the whole time limit by then."""
_AT_ONCE = 16
_SEEN_BESIDES = ("stopped", "gone")
"""What `hindrances` say of a process."""


class StallWatchdog(AbstractContextManager["StallWatchdog"]):
    """Watches from a thread for the time of a block.

    A beat is a stage begun (`beat`) or a worker's answer (which the waits note themselves). After TIMEOUT_S without
    one the report goes to `LOGS/stall.txt`, and the controller's wait raises `RunFailure`. A controller that hangs
    outside any wait is ended here, with all processes of the run and exit code 1.
    """

    def __init__(self, runtime: Runtime, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall-watchdog", daemon=True)
        self._controller = threading.get_ident()

    def beat(self, what: str) -> None:
        """Note that the run has reached WHAT."""
        self._runtime.waits.beat(what)

    def __enter__(self) -> StallWatchdog:
        self.beat("the start")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        waits = self._runtime.waits
        while not self._over.wait(min(1.0, self._timeout_s / 10)):
            if time.monotonic() - waits.last_beat.at > self._timeout_s:
                message = self._report()
                waits.interrupt(RunFailure(message))
                if not self._noticed():
                    self._runtime.say(message)
                    self._runtime.end_now()
                    os._exit(1)
                return

    def _noticed(self) -> bool:
        deadline = time.monotonic() + GRACE_S
        while self._runtime.waits.is_interrupted and time.monotonic() < deadline:
            if self._over.wait(0.1):
                return True
        return not self._runtime.waits.is_interrupted

    def _report(self) -> str:
        """Write the report; returns its first line and its place."""
        waits = self._runtime.waits
        silence = time.monotonic() - waits.last_beat.at
        current = waits.current
        who = current.sentence() if current else "the controller waits for no worker, and hangs itself"
        headline = f"no progress for {silence:.0f} s since {waits.last_beat.what}; {who}"
        groups = tuple(self._runtime.groups)
        found, unknown = self._verdict()
        if found is not None and any(one.kind not in _SEEN_BESIDES for one in found.culprits):
            headline += f"; {found.said}"
        headline += "".join(f"; {words}" for group in groups for words in group.hindrances())
        place = self._runtime.logs / REPORT
        parts = [headline, f"-- controller (process {os.getpid()})\n{_own_stacks(self._controller)}"]
        if found is not None:
            waits = [f"{one.who} waits for {', '.join(one.whom) or 'none seen'} in {one.call}" for one in found.waits]
            parts.insert(1, "\n".join(["-- who waits for whom", found.said, *waits, *found.steps]))
        parts += [unknown] if unknown else []
        for group in groups:
            parts += [f"-- {group.title(rank)}\n{group.stacks(rank)}" for rank in range(len(group.slots))]
        place.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        return f"{headline}; the stacks of all ranks: {place} (trainer.stall_timeout_s={self._timeout_s:g})"

    def _verdict(self) -> tuple[Hang | None, str]:
        """Who waits for whom, or why that is not known: the report and the end come without it, too."""
        try:
            return who_waits(self._runtime), ""
        except Exception as error:
            return None, f"-- who waits for whom is not known: {type(error).__name__}: {error}"


def who_waits(runtime: Runtime) -> Hang | None:
    """The verdict of `rlcheck hang` on the run, from all its nodes; None where there is none."""
    if not runtime.nodes:
        return None
    nodes = {slot.node.ray_id: slot.node for group in runtime.groups for slot in group.slots}
    nodes[runtime.home.ray_id] = runtime.home
    run_dir = runtime.logs.parent

    def look(node: Node) -> bytes | None:
        return runtime.ask_node(node, "hang", run_dir, WATCHED_S)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(look, nodes.values()))
    named = [f"{node.name} ({node.address})" for node in nodes.values()]
    return verdict_of({name: answer or b"" for name, answer in zip(named, answers, strict=True)})


def _own_stacks(thread: int) -> str:
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, in spite of its name
    return "".join(traceback.format_stack(frames[thread])).rstrip()
