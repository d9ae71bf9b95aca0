"""The stage: opened once for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer.end_to_end.matrix.stage import Played, Stage, opened


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with opened(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture(scope="package")
def grpo(stage: Stage) -> Played:
    """GRPO as it is: what its variants are held against."""
    return stage.play("algorithm.adv_estimator=grpo")
