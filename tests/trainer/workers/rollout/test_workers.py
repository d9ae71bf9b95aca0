"""An engine on two processes: tensor parallelism on vLLM's CPU build.

It comes last, because it ends with the death of the engine that the tests share.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.cycle import CPU_LIMITS, cycle
from tests.trainer.workers.rollout.hosted import HostedGroup
from tests.trainer.workers.rollout.pair import start_crew, two_rank_config
from tests.trainer.workers.rollout.tiny import make_model

pytestmark = pytest.mark.timeout(400)


def test_an_engine_on_two_processes_takes_weights_and_ends_with_either(
    ranks: HostedGroup, child: Child, tmp_path: Path
) -> None:
    """Tensor parallel 2; the one key-value head is on both."""
    make_model("qwen2", tmp_path)
    cycle(start_crew(two_rank_config(tmp_path, tensor_model_parallel_size=2), ranks, child), CPU_LIMITS, versions=2)
    workers = [one for one in psutil.Process(child.pid).children() if "Worker" in " ".join(one.cmdline())]
    assert len(workers) == 2, [one.cmdline() for one in psutil.Process(child.pid).children()]
    os.kill(workers[1].pid, signal.SIGKILL)
    # The engine ends with its worker, so that the run finds it dead and starts it anew.
    assert child.wait() == 1
    assert psutil.wait_procs(workers, timeout=60)[1] == []
