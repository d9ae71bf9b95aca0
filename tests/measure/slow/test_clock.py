"""rltrain's `clock.jsonl`: who is slow, how rounds end, and the floor that the engine itself has shown."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rlcheck.measure.slow.answer import answer, slow_rank
from rlcheck.measure.slow.clock import read_clock
from rlcheck.measure.slow.look import look
from tests.measure.slow import made
from tests.measure.slow.test_hostile import clock_of, named


def test_own_work_is_neither_waiting_nor_queueing(tmp_path: Path) -> None:
    clock = read_clock(made.clock(tmp_path / "clock.jsonl", own=(1.0, 1.0, 1.3, 1.02)))
    ranks = clock.ranks[0]
    assert ranks.own == pytest.approx((1.0, 1.0, 1.3, 1.02))
    assert slow_rank(ranks) == 2
    assert slow_rank(read_clock(made.clock(tmp_path / "clock.jsonl", own=(1.0, 1.05))).ranks[0]) is None


def test_a_tail_and_its_floor(tmp_path: Path) -> None:
    whole = read_clock(made.clock(tmp_path / "clock.jsonl"))
    assert whole.tail is not None
    assert (whole.tail.running, whole.tail.occupied) == (64, 1.0)
    assert whole.floor_s == pytest.approx(0.1 + 2.0)
    cut = read_clock(made.clock(tmp_path / "clock.jsonl", tail=True))
    assert cut.tail is not None
    assert (cut.tail.running, cut.tail.requests) == (4, 64)
    assert cut.tail.occupied == pytest.approx((4 * 1.8 + 64 * 0.4) / 2.2 / 64)
    assert cut.floor_s == pytest.approx(0.1 + 2000 / (64 * 20 / 0.4))


@pytest.mark.parametrize(
    ("paces", "tokens_per_s"),
    [
        ([[1, 50, 5.0], [24, 10, 1.0], [92, 10, 1.0]], 128 / 0.1),  # a pass takes as long for one as for all
        ([[1, 50, 0.5], [92, 10, 9.2]], 92 / 0.92),  # each request takes its time
        ([[24, 10, 1.48], [92, 10, 2.84]], 128 / (0.1 + 128 * 0.002)),  # both
        ([[24, 10, 9.0], [92, 10, 1.0]], 128 / 0.1),  # the machine was busy later
        ([[92, 10, 1.0]], 128 / 0.1),
        ([[128, 10, 1.0], [92, 5, 0.5]], 128 / 0.1),
    ],
)
def test_the_floor_is_of_passes_with_all_places_in_use(
    paces: list[list[float]], tokens_per_s: float, tmp_path: Path
) -> None:
    """The fullest passes of a round with a tail have lost many of its requests."""
    file = made.clock(tmp_path / "clock.jsonl", tail=True)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["rounds"][0] |= {"paces": paces, "most": 128, "tokens": 4096}
    file.write_text("\n".join(map(json.dumps, lines)))
    assert read_clock(file).floor_s == pytest.approx(0.1 + 4096 / tokens_per_s)


@pytest.mark.parametrize(
    ("more", "cause"),
    [({"tail": True}, "tail"), ({"preemptions": 90}, "KV preemption"), ({"own": (20.0, 80.0)}, "slow rank")],
)
def test_beside_a_run_it_says_why(tmp_path: Path, more: dict[str, object], cause: str) -> None:
    place = made.verl(tmp_path / "run", gen=20.0)
    made.clock(place / "clock.jsonl", **more)  # pyright: ignore
    assert answer(look([place])).cause == cause


def test_an_engine_that_does_not_say_how_full_its_cache_is_is_not_empty(tmp_path: Path) -> None:
    clock = made.clock(tmp_path / "clock.jsonl")
    assert read_clock(clock).engines[0].kv_usage == 0.9
    clock.write_text(clock.read_text().replace("0.9, 10]", "0.0, 10]"))
    assert read_clock(clock).engines[0].kv_usage == -1


def test_what_is_cut_or_foreign_is_told(tmp_path: Path) -> None:
    file = made.clock(tmp_path / "clock.jsonl")
    text = file.read_text()
    file.write_text(text + '{"step": 9, "train": {"update')
    assert len(read_clock(file).notes) == 1
    foreign = ("[" * 100_000, '{"step": "x"}', '{"step": 1, "train": {"a": {"ranks": [1, 2], "wall_s": [1]}}}',
               '{"step": 2, "rounds": [{"requests": 9, "slots": [[], [1]], "paces": [[1, 1, 0]]}]}', "\0")  # fmt: skip
    file.write_text("\n".join(foreign))
    found = read_clock(file)
    assert found.ranks == []
    assert found.floor_s == 0


def _windows(draw: random.Random, noise: float, slow: float, steps: int = 8) -> list[tuple[float, float]]:
    return [(draw.gauss(1, noise), draw.gauss(slow, noise)) for _ in range(steps)]


def test_a_rank_that_is_a_little_slower_is_named_where_steps_hardly_differ(tmp_path: Path) -> None:
    """As on two GPUs; an odd step of either rank changes nothing, and with fewer steps their spread is not known."""
    draw = random.Random(0)
    steady = _windows(draw, 0.004, 1.07)
    assert named(clock_of(tmp_path / "clock.jsonl", steady)) == {1}
    for odd in ((1.0, 3.0), (3.0, 1.0)):
        assert named(clock_of(tmp_path / "clock.jsonl", [*steady[1:], odd])) == {1}
        assert named(clock_of(tmp_path / "clock.jsonl", [*_windows(draw, 0.004, 1.0, 7), odd])) == set()
    assert named(clock_of(tmp_path / "clock.jsonl", steady[:7])) == set()
    noisy = [(1.0, 1.07 + 0.04 * (-1) ** number) for number in range(8)]
    assert named(clock_of(tmp_path / "clock.jsonl", noisy)) == set()
    assert named(clock_of(tmp_path / "clock.jsonl", _windows(draw, 0.004, 1.04))) == set()


def test_under_load_a_median_of_steps_that_differ_much_is_no_slow_rank(tmp_path: Path) -> None:
    """Seven of eight steps are slower, and none as much as another."""
    paces = (1.25, 1.3, 1.05, 1.4, 0.98, 1.2, 1.6, 1.1)
    assert named(clock_of(tmp_path / "clock.jsonl", [(1.0, pace) for pace in paces])) == set()
    assert named(clock_of(tmp_path / "clock.jsonl", [(1.0, pace + 0.5) for pace in paces])) == {1}


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.03])
def test_no_rank_of_many_healthy_windows_is_named(noise: float, tmp_path: Path) -> None:
    draw = random.Random(1)
    for _ in range(300):
        assert named(clock_of(tmp_path / "clock.jsonl", _windows(draw, noise, 1.0))) == set()
