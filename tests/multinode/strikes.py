"""Hitting one rank of a measurement while it measures."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from tests.multinode.netns import Node

# For sitecustomize on a node: what its rank puts into a sum is off by one in the last element.
WRONG_SUM = """
import importlib.abc, importlib.machinery, sys
class Spoil(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed.distributed_c10d":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            honest = module.all_reduce
            def all_reduce(tensor, *arguments, **keywords):
                if tensor.numel() > 1:
                    tensor[-1] += 1
                return honest(tensor, *arguments, **keywords)
            module.all_reduce = all_reduce
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Spoil())
"""


def strike(node: Node, number: signal.Signals, delay_s: float = 0.0, within_s: float = 60.0) -> threading.Thread:
    """Send a signal to the node's rank `delay_s` after it is connected to another machine; join what is returned."""
    thread = threading.Thread(target=_strike, args=(node, number, delay_s, within_s), daemon=True)
    thread.start()
    return thread


def _strike(node: Node, number: signal.Signals, delay_s: float, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for pid in ranks(node):
            if _num_connected(pid) > 0:
                time.sleep(delay_s)
                os.kill(pid, number)
                return
        time.sleep(0.01)


def ranks(node: Node) -> list[int]:
    """Processes of the node that have torch loaded."""
    return [pid for pid in node.pids("python") if _has_torch(pid)]


def _has_torch(pid: int) -> bool:
    try:
        return "libtorch_cpu" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def _num_connected(pid: int) -> int:
    """How many sockets of the process are connections (state 01) to elsewhere than port 22."""
    try:
        own = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
        lines = [line.split() for name in ("tcp", "tcp6") for line in _lines(pid, name)]
    except OSError:
        return 0
    return sum(f"socket:[{words[9]}]" in own for words in lines if words[3] == "01")


def _lines(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
