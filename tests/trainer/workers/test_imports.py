"""What is imported for workers is what they are made of."""

from __future__ import annotations

import pytest

from rltrain.cluster.placement import nodes_as_asked, plan, plan_ranks
from rltrain.config.engines import ENGINES, loaded
from rltrain.workers.fsdp.worker import TrainWorker
from rltrain.workers.imports import imports_of
from rltrain.workers.rollout.worker import EngineWorker
from tests.trainer.cluster.workers import config


@pytest.mark.parametrize("num_cpus", [1, 4, 9])
def test_ranks_and_engine_are_imported_with_their_threads(num_cpus: int) -> None:
    placement = plan(config(), nodes_as_asked(config(), num_cpus))
    imports = imports_of(config(), (*placement.train, *placement.rollout))
    assert imports is not None
    engine = loaded(ENGINES["hf"].engine).__module__
    assert imports.modules == (TrainWorker.__module__, EngineWorker.__module__, engine)
    assert imports.num_threads == max(slot.num_threads for slot in (*placement.train, *placement.rollout))


def test_ranks_alone_need_no_engine() -> None:
    imports = imports_of(config(), plan_ranks(config(), nodes_as_asked(config(), 2)).train)
    assert imports is not None
    assert imports.modules == (TrainWorker.__module__,)


def test_a_single_process_imports_for_itself() -> None:
    alone = config(n_gpus_per_node=1)
    assert imports_of(alone, plan_ranks(alone, nodes_as_asked(alone, 2)).train) is None
