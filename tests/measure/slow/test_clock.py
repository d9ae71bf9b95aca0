"""rltrain's `clock.jsonl`: who is slow, how rounds end, and the floor that the engine itself has shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.measure.slow.answer import answer, slow_rank
from rlcheck.measure.slow.clock import read_clock
from rlcheck.measure.slow.look import look
from tests.measure.slow import made


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
