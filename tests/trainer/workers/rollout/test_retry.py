"""A request that the engine gives up is asked again, under its own seed; the others keep their answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rltrain.core.errors import RunFailure
from rltrain.workers.rollout.protocol import Completion, Request
from rltrain.workers.rollout.vllm.retry import Answer, answered

REQUESTS = [Request((1, 2), seed) for seed in range(5)]
GIVEN_UP = "vllm returned 0 tokens for a prompt of 2 (finish reason: abort, stop reason: None)"


class Engine:
    """Gives up each request as often as it is told to, by seed."""

    def __init__(self, faults: dict[int, int]) -> None:
        self._faults, self.asked = dict(faults), list[list[int]]()

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        self.asked.append([request.seed for request in requests])
        return [self._answer(request.seed) for request in requests]

    def _answer(self, seed: int) -> Answer:
        if self._faults.get(seed, 0):
            self._faults[seed] -= 1
            return GIVEN_UP
        return Completion((seed,), (-1.0,), "stop")


def test_only_what_was_given_up_is_asked_again_and_the_order_stays() -> None:
    engine = Engine({1: 1, 4: 2})
    found = answered(engine.ask, REQUESTS, max_retries=2)
    assert [one.token_ids for one in found] == [(0,), (1,), (2,), (3,), (4,)]
    assert engine.asked == [[0, 1, 2, 3, 4], [1, 4], [4]]


def test_without_a_fault_the_engine_is_asked_once() -> None:
    engine = Engine({})
    answered(engine.ask, REQUESTS, max_retries=2)
    assert len(engine.asked) == 1


def test_what_is_given_up_each_time_is_an_error_of_one_line() -> None:
    engine = Engine({3: 9})
    with pytest.raises(
        RunFailure, match=r"finish reason: abort.* in each of 3 tries .*max_retries=2\), 1 of 5"
    ) as error:
        answered(engine.ask, REQUESTS, max_retries=2)
    assert "\n" not in str(error.value)
    assert len(engine.asked) == 3
