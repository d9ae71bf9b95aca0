"""Models made once, and the scenes of two ranks played once, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.workers.fsdp import ensemble, scenes, two_ranks
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import SHAPES, make_large, make_model, make_scorer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a play waits for all of its scenes."""
    for item in items:
        if {"played", "four"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(ensemble.TIMEOUT_S + 60))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Few cores, tiny models: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every model of SHAPES."""
    directory = tmp_path_factory.mktemp("models")
    for shape in SHAPES:
        make_model(directory, shape)
    return directory


@pytest.fixture(scope="session")
def scorer(models: Path) -> Path:
    """A reward model."""
    return make_scorer(models)


@pytest.fixture(scope="session")
def played(models: Path, scorer: Path) -> list[dict[str, Any]]:
    """The results of the two-rank scenes, by rank."""
    assert scorer.exists()
    make_large(models)
    return two_ranks.play(models)


@pytest.fixture(scope="session")
def single(models: Path) -> list[dict[str, float]]:
    """The measure of all others: one rank, micro batches of 8, packed."""
    return scenes.train(make_config(models / "qwen2"))
