"""One child process for all engine tests: vLLM is imported once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rltrain.config.schema import RunConfig
from rltrain.workers.rollout.protocol import Completion
from rltrain.workers.sync import WeightSync
from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.cycle import CPU_LIMITS, GPU_LIMITS, Limits
from tests.trainer.workers.rollout.hosted import HostedGroup
from tests.trainer.workers.rollout.pair import rank_processes
from tests.trainer.workers.rollout.servers import server_for, sglang_keys
from tests.trainer.workers.rollout.tiny import DEVICE, config_of, make_model, randomize
from tests.trainer.workers.sync.local import LocalGroup, Rank

HERE = ["hf-qwen2", "hf-opt", "vllm-qwen2", "vllm-llama", "vllm-opt", "remote_vllm-qwen2"]
CASES = os.environ.get("RLTRAIN_TEST_ENGINES", ",".join(HERE)).split(",")
"""On a GPU (`RLTRAIN_TEST_DEVICE=cuda`), for example: `vllm-qwen2,sglang-qwen2,sglang-llama,remote_sglang-qwen2`."""
GPU_ROLLOUT = {"gpu_memory_utilization": 0.2, "engine_kwargs": {"sglang": sglang_keys(skip_tokenizer_init=False)}}


@pytest.fixture(scope="session")
def child() -> Iterator[Child]:
    child = Child()
    try:
        yield child
        assert not child.is_alive or child.end() == 0
    finally:
        child.kill()


@pytest.fixture(scope="session")
def ranks() -> Iterator[HostedGroup]:
    """Two processes for training ranks."""
    group = rank_processes([{}, {}])
    try:
        yield group
        assert group.end() == [0, 0]
    finally:
        group.kill()


@dataclass
class Bench:
    """An engine, and the model whose weights it gets."""

    name: str
    config: RunConfig
    child: Child
    model: torch.nn.Module
    sync: WeightSync
    version: int = 0
    num_changes: int = 0
    limits: Limits = CPU_LIMITS

    @property
    def is_served(self) -> bool:
        """Behind HTTP: a server puts requests together as they come."""
        return self.config.actor_rollout_ref.rollout.name in ("sglang", "remote")

    def take(self) -> None:
        """Bring the model's weights into the engine (checksums compared)."""
        self.version += 1
        self.sync.sync(self.version)

    def passes(self, count: int) -> dict[int, Completion]:
        """What ends in COUNT passes of the engine."""
        found: dict[int, Completion] = {}
        for _ in range(count):
            found |= dict(self.child.collect(0.0))
        return found

    def change(self) -> None:
        """Other weights in the model; the engine keeps the old ones."""
        self.num_changes += 1
        randomize(self.model, seed=100 + self.num_changes)


@pytest.fixture(scope="module", params=CASES)
def running(request: pytest.FixtureRequest, child: Child, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    engine, kind = request.param.split("-")
    directory = tmp_path_factory.mktemp(request.param)
    rollout = dict(GPU_ROLLOUT) if DEVICE == "cuda" else {}
    if not engine.startswith("remote_"):
        yield start(child, engine, kind, directory, **rollout)
        return
    make_model(kind, directory)
    with server_for(engine.removeprefix("remote_"), directory, directory / "server.log") as url:
        rollout["engine_kwargs"] = {"remote": {"url": url}}
        yield start(child, "remote", kind, directory, **rollout)


@pytest.fixture
def bench(running: Bench) -> Bench:
    """The running engine with the model's weights of now."""
    running.take()
    return running


def start(child: Child, engine: str, kind: str, directory: Path, **rollout: object) -> Bench:
    make_model(kind, directory)
    config = config_of(directory, engine, **rollout)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=config.actor_rollout_ref.rollout.dtype)
    child.make(config)
    rank = Rank(config, model.to(DEVICE))
    bench = Bench(f"{engine}-{kind}", config, child, model, WeightSync(LocalGroup(rank), LocalGroup(child), 60.0))
    bench.limits = GPU_LIMITS if DEVICE == "cuda" else CPU_LIMITS
    return bench
