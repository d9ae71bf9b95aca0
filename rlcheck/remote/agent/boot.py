"""The start of every program that the doctor sends to another interpreter: agents, ranks, the Ray driver.

`python -u -c ONE_LINER` (see `rlcheck/measure/cluster/program.py`) reads one line of JSON from standard input: this
text as `boot`, the program's `sources` (module name to text), its `entry` (`module:function`) and what else it needs.
Then `run` calls the entry as `function(argument, wire)`.
"""

import importlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import threading
from typing import Any, Dict, Optional

PR_SET_PDEATHSIG = 1


class Wire:
    """Lines of JSON both ways: standard input, and what standard output was when the program began.

    Descriptor 1 itself leads to standard error, because libraries print.
    """

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def say(self, message: Dict[str, Any]) -> None:
        """Send one message. Raises OSError when nobody reads any more."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._out, data) :]

    def hear(self) -> Optional[Dict[str, Any]]:
        """The next message; None when the other side has gone."""
        line = sys.stdin.buffer.readline()
        return json.loads(line) if line else None


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules from a mapping of names to texts."""

    def __init__(self, sources: Dict[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module of ours; a name with others below it is a package."""
        if name not in self.sources:
            return None
        is_package = any(other.startswith(name + ".") for other in self.sources)
        return importlib.util.spec_from_loader(name, self, is_package=is_package)

    def create_module(self, spec: Any) -> None:
        """As usual."""

    def exec_module(self, module: Any) -> None:
        """Run the text."""
        code = compile(self.sources[module.__name__], "<" + module.__name__ + ">", "exec")
        exec(code, module.__dict__)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which started it, dies.

    Only on Linux, and not where a wrapper (`docker exec`, `uv run`) is between: there the end of standard input is
    all that tells.
    """
    if os.getppid() != parent:
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


def run(payload: Dict[str, Any]) -> None:
    """Make the sources importable and call the entry with its argument and the wire."""
    sys.dont_write_bytecode = True
    wire = Wire()
    if payload.get("parent"):
        die_with_parent(payload["parent"])
    sys.meta_path.insert(0, Finder(payload["sources"]))
    module, _, function = payload["entry"].partition(":")
    getattr(importlib.import_module(module), function)(payload.get("options") or {}, wire)
