"""Requests go in at any time and come out as they finish; what is given up is asked again, under its own seed."""

from __future__ import annotations

import gc
from collections.abc import Collection

import pytest

from rltrain.core.errors import RunFailure
from rltrain.core.trajectory import float_array, int_array
from rltrain.workers.rollout.protocol import Answer, Completion, Request, Sampling
from rltrain.workers.rollout.stream import Stream, generate
from tests.trainer.workers.rollout.compare import PLAIN, tokens_of

REQUESTS = [Request((1, 2), seed) for seed in range(5)]
GIVEN_UP = "vllm returned 0 tokens for a prompt of 2 (finish reason: abort, stop reason: None)"


class Engine:
    """Ends one request a step, the latest first; gives each up as often as it is told to, by seed."""

    def __init__(self, faults: dict[int, int] | None = None) -> None:
        self._faults, self.asked, self._left = dict(faults or {}), list[int](), list[tuple[int, int]]()

    def add(self, number: int, request: Request, sampling: Sampling) -> None:
        if len(request.prompt_ids) > 2:
            raise RunFailure("too long")
        self.asked.append(request.seed)
        self._left.append((number, request.seed))

    def step(self) -> list[tuple[int, Answer]]:
        number, seed = self._left.pop()
        if self._faults.get(seed, 0):
            self._faults[seed] -= 1
            return [(number, GIVEN_UP)]
        return [(number, Completion(int_array([seed]), float_array([-1.0]), "stop"))]

    def abort(self, numbers: Collection[int]) -> None:
        self._left = [pair for pair in self._left if pair[0] not in numbers]

    def sampled(self, sampling: Sampling) -> dict[str, object]:
        return {}


def test_only_what_was_given_up_is_asked_again_and_the_order_stays() -> None:
    engine = Engine({1: 1, 4: 2})
    found = generate(engine, REQUESTS, PLAIN, max_retries=2)
    assert tokens_of(found) == [(0,), (1,), (2,), (3,), (4,)]
    assert sorted(engine.asked) == [0, 1, 1, 2, 3, 4, 4, 4]


def test_what_is_given_up_each_time_is_an_error_of_one_line_and_leaves_nothing() -> None:
    stream = Stream(Engine({3: 9}), max_retries=2)
    stream.submit(list(enumerate(REQUESTS)), PLAIN)
    with pytest.raises(RunFailure, match=r"finish reason: abort.* in each of 3 tries .*max_retries=2\)") as error:
        stream.collect(60)
    assert "\n" not in str(error.value)
    assert stream.under_way == 0
    assert gc.isenabled()


def test_answers_come_out_as_they_finish_and_others_join() -> None:
    heard: list[tuple[int, int]] = []
    stream = Stream(Engine(), 0, lambda done, total: heard.append((done, total)))
    stream.submit(list(enumerate(REQUESTS[:3])), PLAIN)
    assert [number for number, _ in stream.collect(0)] == [2], "one step at least"
    assert not gc.isenabled(), "the collector rests while something is under way"
    stream.submit([(7, REQUESTS[4])], PLAIN)
    stream.abort([1, 99])
    assert [number for number, _ in stream.collect(60)] == [7, 0]
    assert gc.isenabled()
    assert heard == [(0, 3), (1, 3), (1, 4), (2, 3), (3, 3)]
    assert stream.collect(60) == [], "nothing is under way: it does not wait"


def test_while_paused_nothing_is_computed_and_nothing_is_lost() -> None:
    stream = Stream(Engine(), 0)
    stream.submit(list(enumerate(REQUESTS)), PLAIN)
    stream.pause()
    assert (stream.collect(60), stream.under_way) == ([], 5)
    stream.resume()
    assert len(stream.collect(60)) == 5


def test_a_request_that_is_refused_takes_its_fellows_along() -> None:
    stream = Stream(Engine(), 0)
    with pytest.raises(RunFailure, match="too long"):
        stream.submit([(0, REQUESTS[0]), (1, Request((1, 2, 3), 0))], PLAIN)
    assert stream.under_way == 0
    assert gc.isenabled()
