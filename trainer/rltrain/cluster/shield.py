"""The signals that ask a run to stop are the controller's: the other processes of the run do not die of them.

Ctrl-C goes to a process group, and Slurm's `scancel` and systemd signal every process of a job. Ranks, engines and
Ray's own processes have to outlive that, or nobody is left to finish the step and to save it. They end when the
controller ends them, and with SIGKILL alone; should the controller die, the guards do it (`rltrain.cluster.guard`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def for_children() -> Generator[None]:
    """What this thread starts in the block is born with the signals blocked, and all that descends from it.

    Blocked, not ignored: Ray's daemons install handlers of SIGTERM, which undo that it is ignored. This thread takes
    none of them meanwhile; another thread of the process has to, or they come at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def this_process() -> None:
    """As `for_children`, for a worker that was started without it, on a cluster that was joined.

    Ignored as well, since its other threads are there already.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
