"""Processes that the agent starts for the doctor: ranks of a measurement, or any other program of ours.

Each has a process group of its own, gets its program and its messages on standard input and sends messages on a
private descriptor; what it prints is kept (the last lines) and never mixed with them.
"""

import collections
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional

from . import processes

NUM_LINES = 200
LINE_LIMIT = 2000
DRAIN_S = 0.5
READ_LIMIT_BYTES = 4 << 20


class Rank:
    """One process, with a thread each that writes to it, reads its messages, reads what it prints and waits for it."""

    def __init__(
        self, key: Any, command: List[str], environ: Dict[str, str], say: Callable[[Dict[str, Any]], None]
    ) -> None:
        self.key = key
        self.say = say
        self.lines: Deque[str] = collections.deque(maxlen=NUM_LINES)
        self.letters: "queue.Queue[Optional[bytes]]" = queue.Queue()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
        self.readers = [
            threading.Thread(target=self._read_messages, daemon=True),
            threading.Thread(target=self._read_lines, daemon=True),
        ]
        for thread in (*self.readers, threading.Thread(target=self._write, daemon=True)):
            thread.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def send(self, message: Dict[str, Any]) -> None:
        """Have the message written; never waits."""
        self.letters.put(json.dumps(message).encode() + b"\n")

    def _write(self) -> None:
        while True:
            letter = self.letters.get()
            if letter is None:
                return
            try:
                self.process.stdin.write(letter)
                self.process.stdin.flush()
            except (OSError, ValueError):
                return

    def _read_messages(self) -> None:
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                # Written before the bootstrap put descriptor 1 aside, by a site customization for example.
                self.lines.append(line.decode("utf-8", "replace").rstrip()[:LINE_LIMIT])
                continue
            self.say({"event": "rank", "rank": self.key, "message": message})

    def _read_lines(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.decode("utf-8", "replace").rstrip()[:LINE_LIMIT])

    def _wait(self) -> None:
        # Without reaping: as long as the process is a zombie, its group cannot be somebody else's.
        with contextlib.suppress(OSError):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        processes.kill_tree(self.process.pid)
        code = self.process.wait()
        deadline = time.monotonic() + DRAIN_S
        for thread in self.readers:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.letters.put(None)
        how = "exit %d" % code if code >= 0 else "signal %d" % -code
        self.say({"event": "rank_ended", "rank": self.key, "how": how, "last_lines": list(self.lines)})


class Ranks:
    """The processes of this agent, by the key that the doctor gave each, and a directory for their files."""

    def __init__(self, say: Callable[[Dict[str, Any]], None], options: Dict[str, Any]) -> None:
        self.say = say
        self.options = options
        self.by_key: Dict[Any, Rank] = {}
        self.directory = ""

    def temp(self) -> str:
        """The directory for files of ranks, made when first asked for and removed at the end."""
        if not self.directory:
            self.directory = tempfile.mkdtemp(prefix="rlcheck-")
        return self.directory

    def start(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Start a process. `{temp}` in a value of `environ` is the directory; a value of null removes a variable.

        The program is called as `entry(argument, wire)`.
        """
        key = request["rank"]
        if key in self.by_key:
            self.by_key[key].letters.put(None)
            processes.kill_tree(self.by_key[key].process.pid)
        environ = dict(os.environ)
        for name, value in (request.get("environ") or {}).items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = str(value).replace("{temp}", self.temp())
        command = request.get("python") or self.options.get("python") or [sys.executable]
        command = [command] if isinstance(command, str) else list(command)
        rank = Rank(key, [*command, "-u", "-c", self.options["one_liner"]], environ, self.say)
        self.by_key[key] = rank
        rank.send(
            {
                "boot": self.options["boot"],
                "sources": request["sources"],
                "entry": request["entry"],
                "options": request.get("argument") or {},
                "parent": os.getpid(),
            }
        )
        return {"pid": rank.process.pid, "temp": self.directory}

    def rank(self, request: Dict[str, Any]) -> Rank:
        """The rank that a request is about."""
        key = request.get("rank")
        if key not in self.by_key:
            raise LookupError("no rank %r was started here" % (key,))
        return self.by_key[key]

    def tell(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Pass a message to a rank."""
        self.rank(request).send(request["message"])
        return {}

    def kill(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Kill a rank and all that it started; of one that has ended nothing is left to kill."""
        rank = self.rank(request)
        if rank.process.returncode is None:
            processes.kill_tree(rank.process.pid)
        return {}

    def tail(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The last lines that a rank printed."""
        return {"lines": list(self.rank(request).lines)[-int(request.get("num_lines", NUM_LINES)) :]}

    def read(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The end of a file below the directory of this agent, at most `limit_bytes` of it."""
        root = os.path.realpath(self.temp())
        path = os.path.realpath(os.path.join(root, str(request["path"])))
        if not path.startswith(root + os.sep):
            raise PermissionError("%s is not a file of a rank" % request["path"])
        limit = min(int(request.get("limit_bytes", READ_LIMIT_BYTES)), READ_LIMIT_BYTES)
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return {"text": file.read(limit).decode("utf-8", "replace")}

    def close(self) -> None:
        """Kill all ranks and remove the directory."""
        for rank in list(self.by_key.values()):
            if rank.process.returncode is None:
                processes.kill_tree(rank.process.pid)
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
