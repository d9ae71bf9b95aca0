"""From two FSDP2 ranks into a live vLLM engine: every shape of model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.cycle import CPU_LIMITS, cycle
from tests.trainer.workers.rollout.hosted import HostedGroup
from tests.trainer.workers.rollout.pair import PREFIX, start_crew, two_rank_config
from tests.trainer.workers.rollout.tiny import make_model

pytestmark = pytest.mark.timeout(400)


def segments() -> list[str]:
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(PREFIX)]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "opt"])
def test_sharded_weights_reach_the_engine(kind: str, ranks: HostedGroup, child: Child, tmp_path: Path) -> None:
    """Tied and untied heads, fused projections, learned positions; a batch at temperature 0.7, as a run reads it."""
    make_model(kind, tmp_path)
    cycle(start_crew(two_rank_config(tmp_path), ranks, child), CPU_LIMITS, versions=2)
    assert segments() == []
