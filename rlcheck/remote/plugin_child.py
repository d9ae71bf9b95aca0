"""Runs one measuring plug-in in the examined interpreter; started by `rlcheck.measure.plugin` as `python -u -c SOURCE`.

The request is one line of JSON on standard input: `{"probe": NAME, "request": {...}, "paths": [...]}`, the paths being
searched after the interpreter's own. Standard input then stays open: its end means that the doctor has gone, and that
everything started here must go, too. Answers are lines of JSON on the first standard output; what libraries print there
goes to standard error. `{"stage": S, "done": N, "total": M}` and `{"partial": {...}}` come from the plug-in; the last
line is `{"result": {...}}` or `{"error": "one line", "kind": "user" | "crash" | "missing"}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, Callable

GROUP = "rlcheck.measurements"
BUILT_IN = {
    "canary": "rltrain.measure.canary.plugin:run",
    "drift": "rltrain.measure.drift.plugin:run",
    "memory": "rltrain.measure.memory.plugin:run",
    "rehearse": "rltrain.measure.rehearse.plugin:run",
    "replay": "rltrain.measure.replay.plugin:run",
    "reward": "rltrain.measure.reward.plugin:run",
    "rollout": "rltrain.measure.rollout.plugin:run",
    "smoke": "rltrain.measure.smoke.plugin:run",
    "step": "rltrain.proof.plugin:run",
}
"""Where a checkout that is not installed has them."""
GRACE_S = 3.0
POLL_S = 0.05


def children_of(parents: set[int]) -> set[int]:
    """All living descendants, whatever their session."""
    parent_of: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    parent_of[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    fresh = set(parents)
    while fresh:
        fresh = {pid for pid, parent in parent_of.items() if parent in fresh} - found - parents
        found |= fresh
    return found


def guard(stdin: int, ward: int) -> int:
    """Wait for the end of `ward` or of standard input, end all that is left, and return the ward's exit status.

    A process, not a thread: native code may hold the interpreter's lock forever. And the parent of the ward, so that
    orphans come to it, whatever session they made for themselves.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (1, 2):
        os.close(descriptor)
    status = None
    while status is None:
        ready = select.select([stdin], [], [], POLL_S)[0]
        status = reap(ward)
        if ready and not os.read(stdin, 1 << 16):
            break
    until = time.monotonic() + GRACE_S
    send(children_of({os.getpid()}), signal.SIGTERM)
    while children_of({os.getpid()}):
        if time.monotonic() > until:
            send(children_of({os.getpid()}), signal.SIGKILL)
        time.sleep(0.02)
        ended = reap(ward)
        status = ended if status is None else status
        if time.monotonic() > until + GRACE_S:  # stuck in the kernel
            break
    return status or 0


def reap(ward: int) -> int | None:
    """Take the exit statuses of all that have ended; that of `ward`, as a shell gives it, if it is among them."""
    found = None
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == ward:
                found = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            pid, status = os.waitpid(-1, os.WNOHANG)
    except OSError:  # no child left
        pass
    return found


def adopt_orphans() -> None:
    """Descendants whose parent has ended become ours, not init's (prctl PR_SET_CHILD_SUBREAPER, 36)."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def send(pids: set[int], number: int) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def read_line(descriptor: int) -> bytes:
    """The first line, and not a byte more."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            break
        line += chunk
    return line


def find(name: str) -> Callable[..., Any] | None:
    """The plug-in of this interpreter, or None."""
    from importlib import import_module
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return entry.load()
    module, _, attribute = BUILT_IN.get(name, "").partition(":")
    if not module or find_spec(module.partition(".")[0]) is None:
        return None
    return getattr(import_module(module), attribute)


def in_one_line(error: BaseException) -> str:
    """What was raised first: libraries wrap it into one that only says that they failed.

    Not a failed look into a table (KeyError: 'qwen9') of which somebody made a sentence.
    """
    import traceback

    for _ in range(20):
        deeper = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        is_told = isinstance(deeper, LookupError) and isinstance(error, (ValueError, TypeError, OSError, ImportError))
        if deeper is None or is_told:
            break
        error = deeper
    return " ".join("".join(traceback.format_exception_only(type(error), error)).split())[:600]


def work(job: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the plug-in; the last line to answer."""
    import traceback

    name = job["probe"]
    try:
        run = find(name)
    except Exception as error:
        traceback.print_exc()
        return {"error": "the plug-in '%s' cannot be imported: %s" % (name, in_one_line(error)), "kind": "missing"}
    if run is None:
        return {"error": "", "kind": "missing"}
    try:
        return {"result": run(job["request"], answer)}
    except BaseException as error:
        if any(kind.__name__ == "UserError" for kind in type(error).__mro__):
            return {"error": " ".join(str(error).split()), "kind": "user"}
        traceback.print_exc()
        return {"error": in_one_line(error), "kind": "crash"}


def main() -> None:
    """Read the request, run the plug-in, answer, and end without running what libraries leave to do at exit."""
    import faulthandler

    sys.path[:1] = [entry for entry in sys.path[:1] if entry]
    with contextlib.suppress(OSError):  # its own session already
        os.setsid()
    stdin, stdout = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    job = json.loads(read_line(stdin))
    with contextlib.suppress(OSError, AttributeError):
        adopt_orphans()
    ward = os.fork()
    if ward:
        os.close(stdout)
        os._exit(guard(stdin, ward))
    os.close(stdin)
    faulthandler.enable()
    sys.path.extend(path for path in job.get("paths", ()) if path not in sys.path)
    lock = threading.Lock()

    def answer(line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        with lock:
            while data:
                data = data[os.write(stdout, data) :]

    last = work(job, answer)
    try:
        answer(last)
    except (TypeError, ValueError) as error:
        answer({"error": "the plug-in's result is no JSON: %s" % error, "kind": "crash"})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
