"""Speeds and lengths of an earlier run, read from files as a run writes them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rltrain.core.errors import UserError
from rltrain.records.speeds import Quantiles, read_speeds

MODEL = {"hidden_size": 64}
ROUND = {
    "engine": 0, "requests": 8, "prompt_tokens": 80, "tokens": 80, "passes": 12, "first_s": 0.12, "wall_s": 0.3,
    "most": 8, "lengths": [8.0] * 20 + [30.0], "paces": [[8.0, 10, 0.2], [2.0, 10, 0.1]],
}  # fmt: skip


def a_run(place: Path, *, rounds: list[dict[str, Any]] | None = None, staleness: int = 0, steps: int = 3) -> Path:
    config = {
        "actor_rollout_ref": {"rollout": {"tensor_model_parallel_size": 1, "n": 2}, "model": {"path": None}},
        "algorithm": {"max_staleness": staleness},
        "data": {"train_batch_size": 4},
        "trainer": {"nnodes": 1, "n_gpus_per_node": 2},
        "toy": {"model": MODEL},
    }
    place.mkdir(exist_ok=True)
    (place / "run.json").write_text(json.dumps({"config": config}))
    stages = {"timing_s/gen": 1.0, "timing_s/update_weights": 0.5, "timing_s/testing": 2.0, "timing_s/reward": 0.25}
    record = {"timing_s/step": 5.1, "perf/total_num_tokens": 160.0, **stages}
    found = rounds if rounds is not None else [ROUND]
    (place / "metrics.jsonl").write_text("".join(json.dumps({"step": n, **record}) + "\n" for n in range(1, steps + 1)))
    lines = [json.dumps({"step": n, "rounds": found}) for n in range(1, steps + 1)]
    (place / "clock.jsonl").write_text("\n".join([*lines, '{"step": 9, "rou']))
    return place


def test_what_a_step_was_made_of(tmp_path: Path) -> None:
    speeds = read_speeds(a_run(tmp_path), 1, MODEL)
    assert speeds.paces == (pytest.approx((2.0, 0.01)), pytest.approx((8.0, 0.02)))
    assert speeds.prompt == 10.0
    assert speeds.prefill_s == pytest.approx((0.12 - 0.02) / 80)
    assert speeds.train_s == pytest.approx(2 * (5.1 - 1.0 - 0.5 - 2.0) / 160), "rewards and all that is left are theirs"
    assert (speeds.sync_s, speeds.steps) == (0.5, 3)


def test_draws_have_the_mean_that_was_measured() -> None:
    """The last twentieth of a long tail is mostly near its lower end: a straight line would overrate it."""
    tail = Quantiles((*(100.0,) * 20, 4000.0), mean=100 * 0.95 + 0.05 * 800)
    random = Random(1)
    drawn = [tail.at(random.random()) for _ in range(100_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(tail.mean, rel=0.03)
    assert 3000 < max(drawn) <= 4000


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rounds": []}, "no step has a round of 8 answers"),
        ({"rounds": [ROUND, {**ROUND, "requests": 3}]}, "trainer.test_freq=-1"),
        ({"staleness": 2}, "give a run with 0 or 1"),
    ],
)
def test_records_that_do_not_serve(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_speeds(a_run(tmp_path, **changed), 1, MODEL)


def test_records_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run.json is missing"):
        read_speeds(tmp_path / "nowhere", 1, MODEL)
    place = a_run(tmp_path)
    with pytest.raises(UserError, match="its engines have 1 devices each"):
        read_speeds(place, 2, MODEL)
    with pytest.raises(UserError, match="its model is another toy"):
        read_speeds(place, 1, "/models/other")
    (place / "run.json").write_text('{"config": {"model": {}}}')
    with pytest.raises(UserError, match="holds no config of rltrain run"):
        read_speeds(place, 1, MODEL)
