"""One rank: says hello, joins the groups that it is told to, runs their steps and reports each before and after.

Messages in: join, run, leave, status, ras. Messages out carry `at`: hello, unfit, store, enter, leave, failed, left,
status, ras. A second thread answers `status` even while a step hangs: who waits and who is gone can be distinguished.
"""

from __future__ import annotations

import importlib
import os
import queue
import re
import sys
import threading
import time
import traceback
import warnings
from datetime import timedelta
from typing import Any, Optional

from . import correctness, device, group, timing, work

SETTINGS = ("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_")
NO_SETTINGS = ("NCCL_VERSION",)
"""What NVIDIA's images say of themselves; no library reads it."""
LOG_VARIABLE = "RLCHECK_NCCL_LOG"
"""The file for NCCL's log; without it the settings of NCCL_DEBUG stay as they are."""
LOG_LIMIT_BYTES = 256 << 10
_FRAMES = 4


class Program:
    """The state of a rank: its device, the group it is in, what it is doing."""

    def __init__(self, argument: dict[str, Any], wire: Any) -> None:
        self.argument = argument
        self.wire = wire
        self.inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.doing = "starting"
        self.num_calls = 0
        self.main_thread = threading.get_ident()
        self.torch: Any = None
        self.device: Any = None
        self.place: Any = None
        self.store: Any = None
        self.log_offset = 0
        self.history = timing.History(0.0)

    def listen(self) -> None:
        """Read messages forever; when the doctor is gone, end at once, whatever the main thread hangs in."""
        while True:
            message = self.wire.hear()
            if message is None:
                os._exit(0)
            if message.get("do") == "status":
                self.wire.say(self.status())
            elif message.get("do") == "ras":
                threading.Thread(target=self.ask_ras, args=(float(message["deadline_s"]),), daemon=True).start()
            else:
                self.inbox.put(message)

    def status(self) -> dict[str, Any]:
        """What the main thread is doing, and where in the code: the innermost frames, the innermost last."""
        frame = sys._current_frames().get(self.main_thread)
        stack = traceback.extract_stack(frame)[-_FRAMES:] if frame is not None else []
        lines = ["%s:%d in %s" % (entry.filename, entry.lineno or 0, entry.name) for entry in stack]
        return {"at": "status", "doing": self.doing, "num_calls": self.num_calls, "stack": lines}

    def ask_ras(self, deadline_s: float) -> None:
        """What NCCL's own diagnostics of this job say."""
        ras = importlib.import_module((__package__ or "") + ".ras")  # sent along, from the directory above
        self.wire.say({"at": "ras", "answer": ras.ask(deadline_s)})

    def before_call(self, what: str) -> None:
        """Told by those who call a collective."""
        self.doing = what
        self.num_calls += 1

    def serve(self) -> None:
        """Say hello, then carry out one message after the other."""
        try:
            self.wire.say(self.hello())
        except Exception as error:
            self.wire.say({"at": "unfit", "error": _describe(error)})
            return
        methods = {"join": self.join, "run": self.run, "leave": self.leave}
        while True:
            self.doing = "waiting for the next step"
            message = self.inbox.get()
            try:
                methods[message["do"]](message)
            except Exception as error:
                self.wire.say({"at": "failed", "step": self.doing, "error": _describe(error)})

    def hello(self) -> dict[str, Any]:
        """Import torch, take the device."""
        self.doing = "importing torch"
        names = sorted(name for name in os.environ if name.startswith(SETTINGS) and name not in NO_SETTINGS)
        settings = {name: os.environ[name] for name in names}
        self.set_environ()
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self.torch = torch
        found = device.hello(torch, self.argument["backend"], int(self.argument["local_rank"]))
        is_gpu = found["device"] != "cpu"
        self.device = torch.device("cuda", torch.cuda.current_device()) if is_gpu else torch.device("cpu")
        return dict(found, settings=settings)

    def set_environ(self) -> None:
        """Settings of ours where the user has none; NCCL's log always, into a file that the agent will remove."""
        if self.argument.get("interface"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", self.argument["interface"])
        log = os.environ.get(LOG_VARIABLE)
        if log:
            os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,GRAPH,ENV", NCCL_DEBUG_FILE=log)

    def join(self, message: dict[str, Any]) -> None:
        """Make or reach the store and form the group."""
        self.wire.say({"at": "enter", "step": "init"})
        started = time.perf_counter()
        self.log_offset = _log_size()
        self.history = timing.History(float(message["limit_s"]))
        timeout = timedelta(seconds=float(message["timeout_s"]))
        store = message["store"]
        self.doing = "opening the store on %s" % store["host"]
        if not store.get("port"):
            self.store = group.open_store(self.torch.distributed, store["host"], timeout)
            self.wire.say({"at": "store", "port": self.store.port})
        else:
            self.doing = "connecting to the store at %s:%d" % (store["host"], store["port"])
            self.store = group.reach_store(self.torch.distributed, store["host"], store["port"], timeout)
        self.doing = "init_process_group"
        use_gpu = message["backend"] == "nccl"
        where = self.device if use_gpu else self.torch.device("cpu")
        group.join(self.torch.distributed, message, self.store, timeout, where if use_gpu else None)
        self.place = correctness.Place(
            self.torch, self.torch.distributed, int(message["index"]), int(message["size"]), where
        )
        self.wire.say({"at": "leave", "step": "init", "seconds": time.perf_counter() - started})

    def run(self, message: dict[str, Any]) -> None:
        """Run steps in order; the first that fails ends it."""
        for step in message["steps"]:
            self.wire.say({"at": "enter", "step": step["name"]})
            self.doing = step["name"]
            started = time.perf_counter()
            result = self.step(step)
            self.wire.say(dict(result, at="leave", step=step["name"], took_s=time.perf_counter() - started))

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        """One step of a group."""
        kind = step["kind"]
        if kind == "connect":
            found = correctness.check(self.place, "all_reduce", ["float32"], self.before_call)
            return dict(found, log=self.log()) if step.get("log") else found
        if kind == "check":
            return correctness.check(self.place, step["collective"], step["dtypes"], self.before_call)
        if kind == "work":
            return work.measure(self.place, self.before_call)
        num_bytes, budget_s = int(step["num_bytes"]), float(step["budget_s"])
        return timing.measure(self.place, step["collective"], num_bytes, budget_s, self.history, self.before_call)

    def leave(self, message: dict[str, Any]) -> None:
        """Take the group apart; the store of a leader stays until the next, others may still be at it."""
        self.doing = "destroy_process_group"
        self.torch.distributed.destroy_process_group()
        self.place = None
        self.wire.say({"at": "left"})

    def log(self) -> str:
        """What NCCL has written since this group began."""
        try:
            with open(os.environ.get(LOG_VARIABLE, ""), "rb") as file:
                file.seek(self.log_offset)
                return file.read(LOG_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def _log_size() -> int:
    try:
        return os.path.getsize(os.environ.get(LOG_VARIABLE, ""))
    except OSError:
        return 0


def _describe(error: BaseException) -> str:
    # Torch adds its C++ stack, gloo where in its sources it was and what such errors usually mean.
    text = re.sub(r"\[/\S+:\d+\] ", "", re.split("Exception raised from|This is typically caused", str(error))[0])
    return " ".join(("%s: %s" % (type(error).__name__, text)).split())[:500]


def main(argument: dict[str, Any], wire: Any) -> None:
    """The entry. `argument`: backend, local_rank, interface (of this machine's address; "" leaves gloo to itself)."""
    warnings.simplefilter("ignore")
    program = Program(argument, wire)
    threading.Thread(target=program.listen, daemon=True).start()
    code: Optional[int] = 1
    try:
        program.serve()
        code = 0
    except OSError:  # nobody reads any more
        pass
    finally:
        os._exit(code)
