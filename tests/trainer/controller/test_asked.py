"""Of which answers the engine is asked for log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from rltrain.config.schema import RunConfig
from rltrain.controller.asked import asked_rows


def config(asked: bool | None = None, seed: int = 1, **correction: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "actor_rollout_ref": {"rollout": {"name": "hf", "calculate_log_probs": asked}},
            "algorithm": {"rollout_correction": correction},
            "trainer": {"seed": seed},
        }
    )


@pytest.mark.parametrize(("count", "wanted"), [(20, 20), (32, 32), (400, 32), (1024, 64), (1025, 65)])
def test_where_nothing_learns_from_them_it_is_one_in_16_and_at_least_32(count: int, wanted: int) -> None:
    rows = asked_rows(config(), count, 3, "0-7")
    assert len(rows) == wanted
    assert rows <= set(range(count))


def test_the_draw_is_the_runs_the_steps_and_the_prompts() -> None:
    first = asked_rows(config(), 400, 3, "0-7")
    assert first == asked_rows(config(), 400, 3, "0-7")
    others = [
        asked_rows(config(seed=2), 400, 3, "0-7"),
        asked_rows(config(), 400, 4, "0-7"),
        asked_rows(config(), 400, 3, "0-8"),
    ]
    assert first not in others


@pytest.mark.parametrize("correction", [{"rollout_is": "token"}, {"rollout_rs": "token_k2"}, {"bypass_mode": True}])
def test_all_where_the_algorithm_reads_them(correction: dict[str, Any]) -> None:
    assert asked_rows(config(**correction), 400, 3, "0-7") == set(range(400))


def test_all_or_none_where_the_config_says_so() -> None:
    assert asked_rows(config(True), 400, 3, "0-7") == set(range(400))
    assert asked_rows(config(False), 400, 3, "0-7") == frozenset()
