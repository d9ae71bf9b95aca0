"""What keeps a run from starting: torchrun, a port that is taken, an engine that does not come up in time."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rltrain.core.errors import UserError
from rltrain.workers.fsdp.rank import RankInfo, connect
from tests.trainer.end_to_end.runs import COMMAND, environ
from tests.trainer.failures.scene import PATIENCE_S, Watched, arguments, message

pytestmark = pytest.mark.timeout(900)


@pytest.mark.row("F67")
def test_torchrun(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-port=0", "--no-python")
    command = [*launcher, *COMMAND, *arguments(directory)]
    done = subprocess.run(command, env=environ(), cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("rltrain: ")]
    assert len(ours) == 1
    assert "Ray launches its ranks" in ours[0]
    assert not directory.exists()


def test_port_of_ray_is_taken(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ray_init = f"ray_kwargs.ray_init={{include_dashboard: true, dashboard_port: {port}}}"
        run = Watched(directory, *arguments(directory, ray_init)).finish()
    assert run.code == 1
    line = message(run)[0]
    assert str(port) in line
    assert "ray_kwargs.ray_init" in line


def test_port_of_the_training_ranks_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"could not meet the others at 127\.0\.0\.1:{port} .*in use.*port is free"
        ):
            connect(RankInfo(0, 1, "127.0.0.1", port, "cpu"), 5)


def test_what_the_engine_refuses_ends_with_its_diagnosis(tmp_path: Path) -> None:
    """vLLM's own words, and the playbook that knows them."""
    directory = tmp_path / "run"
    extra = "actor_rollout_ref.rollout.engine_kwargs={vllm: {kv_cache_memory_bytes: 1000}}"
    run = Watched(directory, *arguments(directory, "actor_rollout_ref.rollout.name=vllm", extra)).finish()
    assert run.code == 1
    lines = message(run)
    assert "No available memory for the cache blocks" in lines[0]
    assert lines[1].startswith("Known problem: ")
    assert "gpu_memory_utilization" in lines[1]
    assert lines[1].endswith("(rlcheck explain kv-cache-too-small)")


@pytest.mark.row("F22")
@pytest.mark.long
def test_engine_does_not_start_in_time(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    values = ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.start_timeout_s=1")
    run = Watched(directory, *arguments(directory, *values)).finish()
    assert run.code == 1
    line = message(run)[0]
    assert "loading the models and the rollout engine: no answer within 1 s from " in line
    assert "rollout.start of rank 0" in line
    assert "the limit is actor_rollout_ref.rollout.start_timeout_s" in line
    assert str(directory / "logs" / "rollout-0.log") in line
