"""A machine with a fault: what FAULT says is put into torch.distributed as soon as a rank imports it.

FAULT is KIND or KIND@N, from the N-th all_reduce on (1 by default). KIND is stop or kill (this very process; with
`leave-` before it not there but when the group is taken apart, with `idle-` a moment after that, once), sleep
(for ever), slow (15 ms more in each, and in send/recv), add-before (1 to the numbers), drop (this part of
the sum). `throttled`: this process is stopped for three quarters of the time, as a device that is too hot is.
"""

import importlib.abc
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time

THROTTLE = """import os, signal, sys, time
pid = int(sys.argv[1])
while os.getppid() == pid:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.03)
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.01)
"""


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            when, _, kind = os.environ["FAULT"].partition("-")
            if when == "throttled":
                subprocess.Popen([sys.executable, "-S", "-c", THROTTLE, str(os.getpid())])
                return
            if when in ("leave", "idle"):
                module.destroy_process_group = Leaving(when, kind, module.destroy_process_group)
                return
            module.all_reduce = Fault(os.environ["FAULT"], module.all_reduce)
            if module.all_reduce.kind == "slow":
                module.batch_isend_irecv = Fault(os.environ["FAULT"], module.batch_isend_irecv)

        spec.loader.exec_module = exec_module
        return spec


class Leaving:
    def __init__(self, when, kind, true):
        self.when, self.true = when, true
        self.signal = signal.SIGSTOP if kind == "stop" else signal.SIGKILL

    def __call__(self, *args, **kwargs):
        if self.when == "leave":
            os.kill(os.getpid(), self.signal)
        self.true(*args, **kwargs)
        threading.Timer(0.01, os.kill, (os.getpid(), self.signal)).start()


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
        return self.true(tensor, *args, **kwargs)


if os.environ.get("FAULT"):
    sys.meta_path.insert(0, Finder())
