"""One child process for all engine tests: vLLM is imported once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rltrain.config.schema import RunConfig
from rltrain.workers.sync import WeightSync
from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.hosted import HostedGroup
from tests.trainer.workers.rollout.pair import rank_processes
from tests.trainer.workers.rollout.tiny import config_of, make_model, randomize
from tests.trainer.workers.sync.local import LocalGroup, Rank

CASES = ["hf-qwen2", "hf-opt", "vllm-qwen2", "vllm-llama", "vllm-opt"]


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

    def take(self) -> None:
        """Bring the model's weights into the engine (checksums compared)."""
        self.version += 1
        self.sync.sync(self.version)

    def change(self) -> None:
        """Other weights in the model; the engine keeps the old ones."""
        self.num_changes += 1
        randomize(self.model, seed=100 + self.num_changes)


@pytest.fixture(scope="module", params=CASES)
def running(request: pytest.FixtureRequest, child: Child, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    engine, kind = request.param.split("-")
    return start(child, engine, kind, tmp_path_factory.mktemp(request.param))


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
    rank = Rank(config, model)
    return Bench(f"{engine}-{kind}", config, child, model, WeightSync(LocalGroup(rank), LocalGroup(child), 60.0))
