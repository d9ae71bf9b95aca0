"""The agent's loop: requests come in as lines, each is answered by a line, and everything ends with the asker.

Requests that start or stop processes are carried out at once, in order and in the main thread (the kernel ties a
child's life to the thread that started it); those that wait for something get a thread each.
"""

import os
import platform
import signal
import socket
import sys
import threading
from typing import Any, Callable, Dict

from . import collecting, machine, processes, wires
from .ranks import Ranks

LIFETIME_S = 3600.0


class End(BaseException):
    """Time to go: a signal, the end of the lifetime, or nobody there any more."""


class Agent:
    """One agent: its options, its wire, its listeners and its ranks."""

    def __init__(self, options: Dict[str, Any], wire: Any) -> None:
        self.options = options
        self.wire = wire
        self.ranks = Ranks(self.say, options)
        self.wires = wires.Wires()
        self.slow: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {
            "facts": lambda request: {"machine": machine.facts(options, float(request.get("timeout_s", 2.0)))},
            "listen": self.wires.listen,
            "connect": wires.connect,
            "collect": lambda request: collecting.collect(options, request),
            "hang": lambda request: collecting.hang(options, request),
        }
        self.quick: Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]] = {
            "clock": wires.clock,
            "unlisten": self.wires.unlisten,
            "start_rank": self.ranks.start,
            "tell": self.ranks.tell,
            "kill": self.ranks.kill,
            "tail": self.ranks.tail,
            "read": self.ranks.read,
        }

    def say(self, message: Dict[str, Any]) -> None:
        """Send a message; when nobody reads, end."""
        try:
            self.wire.say(message)
        except OSError:
            os.kill(os.getpid(), signal.SIGTERM)

    def serve(self) -> None:
        """Answer requests until the asker quits or goes away."""
        self.say(hello(self.options))
        while True:
            request = self.wire.hear()
            if request is None or request.get("do") == "quit":
                return
            do = str(request.get("do"))
            if do in self.quick:
                self.answer(self.quick[do], request)
            elif do in self.slow:
                threading.Thread(target=self.answer, args=(self.slow[do], request), daemon=True).start()
            else:
                self.say({"re": request.get("id"), "error": "this agent knows no %r" % do})

    def answer(self, method: Callable[[Dict[str, Any]], Dict[str, Any]], request: Dict[str, Any]) -> None:
        """Carry out a request and answer it, whatever becomes of it. One without an id wants no answer."""
        try:
            reply = method(request)
        except Exception as error:
            reply = {"error": " ".join(("%s: %s" % (type(error).__name__, error)).split())[:500]}
        if request.get("id") is not None:
            self.say(dict(reply, re=request["id"]))

    def close(self) -> None:
        """End everything that was started or opened here."""
        self.wires.close()
        self.ranks.close()
        processes.end_all()


def hello(options: Dict[str, Any]) -> Dict[str, Any]:
    """The first message: that the agent runs, in which Python, and the address that this machine was reached at."""
    return {
        "event": "hello",
        "pid": os.getpid(),
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "address": own_address(str(options.get("reached_by", ""))),
    }


def own_address(reached_by: str) -> str:
    """This machine's address on the way to whoever started the agent by ssh or srun; "" when it is not known."""
    if reached_by == "ssh":  # client address, client port, server address, server port
        parts = os.environ.get("SSH_CONNECTION", "").split()
        return parts[2] if len(parts) == 4 else ""
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "") if reached_by == "srun" else ""
    if not launcher:
        return ""
    family = socket.AF_INET6 if ":" in launcher else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((launcher, 9))  # sends nothing: it only makes the kernel choose a route
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def main(options: Dict[str, Any], wire: Any) -> None:
    """Run the agent; never returns."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _end)
    signal.setitimer(signal.ITIMER_REAL, float(options.get("lifetime_s", LIFETIME_S)))
    processes.adopt_orphans()
    agent = Agent(options, wire)
    try:
        agent.serve()
    except (End, OSError, ValueError):
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        agent.close()
        sys.stderr.flush()
        os._exit(0)  # threads may be stuck in the kernel; nothing of theirs is to be saved


def _end(number: int, frame: Any) -> None:
    raise End
