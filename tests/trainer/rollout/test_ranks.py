"""From two FSDP2 ranks into a live vLLM engine: every shape of model, and an engine on two processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.trainer.rollout.child import Child
from tests.trainer.rollout.crew import PREFIX, crew, crew_config, rank_processes, start_crew
from tests.trainer.rollout.cycle import Limits, cycle
from tests.trainer.rollout.hosted import HostedGroup
from tests.trainer.rollout.tiny import make_model
from trainer.config.schema import RunConfig

pytestmark = pytest.mark.timeout(400)
LIMITS = Limits(log_prob=1e-5, prob=5e-6)


def config_of(directory: Path, **rollout: object) -> RunConfig:
    parts = {"actor": {"fsdp_config": {"dtype": "float32"}}}
    return crew_config(directory, ranks=2, parts=parts, dtype="float32", **rollout)


def segments() -> list[str]:
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(PREFIX)]


@pytest.fixture(scope="module")
def ranks() -> Iterator[HostedGroup]:
    group = rank_processes([{}, {}])
    yield group
    assert group.end() == [0, 0]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "opt"])
def test_sharded_weights_reach_the_engine(kind: str, ranks: HostedGroup, child: Child, tmp_path: Path) -> None:
    """Tied and untied heads, fused projections, learned positions; a batch at temperature 0.7, as a run reads it."""
    make_model(kind, tmp_path)
    cycle(start_crew(config_of(tmp_path), ranks, child), LIMITS)
    assert segments() == []


def test_an_engine_on_two_processes_takes_weights_and_ends_with_either(tmp_path: Path) -> None:
    """Tensor parallel 2; the one key-value head is on both."""
    make_model("qwen2", tmp_path)
    with crew(config_of(tmp_path, tensor_model_parallel_size=2), [{}, {}], {}) as running:
        cycle(running, LIMITS)
        engine = psutil.Process(running.engine.pid)
        workers = [one for one in engine.children() if "spawn_main" in " ".join(one.cmdline())]
        assert len(workers) == 2
        os.kill(workers[1].pid, signal.SIGKILL)
        # The engine ends with its worker, so that the run finds it dead and starts it anew.
        assert running.engine.wait() == 1
        assert psutil.wait_procs(workers, timeout=60)[1] == []
        running.engine_exit = 1
