"""A machine with a fault: what FAULT says is put into torch.distributed as soon as a rank imports it.

FAULT is KIND or KIND@N, from the N-th all_reduce on (1 by default). KIND is stop or kill (this very process), sleep
(for ever), slow (15 ms more in each, and in send/recv), add-before or add-after (1 to the numbers), drop (this part of
the sum).
"""

import importlib.abc
import importlib.util
import os
import signal
import sys
import time


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.all_reduce = Fault(os.environ["FAULT"], module.all_reduce)
            if module.all_reduce.kind == "slow":
                module.batch_isend_irecv = Fault(os.environ["FAULT"], module.batch_isend_irecv)

        spec.loader.exec_module = exec_module
        return spec


class Fault:
    def __init__(self, text, true):
        self.kind, _, first = text.partition("@")
        self.first, self.count, self.true = int(first or 1), 0, true

    def __call__(self, tensor, *args, **kwargs):
        self.count += 1
        if self.count < self.first:
            return self.true(tensor, *args, **kwargs)
        if self.kind in ("stop", "kill"):
            os.kill(os.getpid(), signal.SIGSTOP if self.kind == "stop" else signal.SIGKILL)
        if self.kind in ("sleep", "slow"):
            time.sleep(3600 if self.kind == "sleep" else 0.015)
        if self.kind == "add-before":
            tensor += 1
        if self.kind == "drop":
            tensor.zero_()
        done = self.true(tensor, *args, **kwargs)
        if self.kind == "add-after":
            tensor += 1
        return done


if os.environ.get("FAULT"):
    sys.meta_path.insert(0, Finder())
