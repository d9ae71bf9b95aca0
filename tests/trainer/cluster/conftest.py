"""One local Ray for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rltrain.cluster.placement import Slot, plan
from rltrain.cluster.runtime import Runtime, connect
from tests.trainer.cluster.workers import config


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the runtime told the user."""
    return []


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Iterator[Runtime]:
    with connect(config(), tmp_path_factory.mktemp("logs"), said.append) as connected:
        yield connected


@pytest.fixture
def slots(runtime: Runtime) -> tuple[Slot, ...]:
    return plan(config(), runtime.nodes).train
