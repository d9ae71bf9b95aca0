"""Requests go in at any time and come out as they finish; what is given up is asked again, under its own seed."""

from __future__ import annotations

import gc
from collections.abc import Collection
from dataclasses import replace

import pytest

from rltrain.core.errors import RunFailure
from rltrain.core.trajectory import float_array, int_array
from rltrain.workers.rollout.protocol import Answer, Completion, Request, Sampling, SoFar
from rltrain.workers.rollout.stream import Stream, generate
from rltrain.workers.rollout.unfinished import seed_behind
from tests.trainer.workers.rollout.compare import PLAIN, tokens_of

REQUESTS = [Request((1, 2), seed) for seed in range(5)]
GIVEN_UP = "vllm returned 0 tokens for a prompt of 2 (finish reason: abort, stop reason: None)"


class Engine:
    """Ends one request a step, the latest first; gives each up as often as it is told to, by seed."""

    def __init__(self, faults: dict[int, int] | None = None) -> None:
        self._faults, self.asked, self._left = dict(faults or {}), list[int](), list[tuple[int, int]]()
        self.taken: dict[int, tuple[Request, Sampling]] = {}

    def add(self, number: int, request: Request, sampling: Sampling) -> None:
        if request.prompt_ids == (1, 2, 3):
            raise RunFailure("too long")
        self.asked.append(request.seed)
        self.taken[number] = (request, sampling)
        self._left.append((number, request.seed))

    def step(self) -> list[tuple[int, Answer]]:
        number, seed = self._left.pop()
        if self._faults.get(seed, 0):
            self._faults[seed] -= 1
            return [(number, GIVEN_UP)]
        prompt = int_array(self.taken[number][0].prompt_ids)
        return [(number, Completion(int_array([seed % 100]), float_array([-1.0]), "stop", prompt))]

    def so_far(self, numbers: Collection[int]) -> dict[int, SoFar]:
        """Two tokens of each but the latest, which has not begun."""
        latest = self._left[-1][0]
        return {
            number: SoFar(int_array([]), None)
            if number == latest
            else SoFar(int_array([8, 9]), float_array([-0.5, -0.25]))
            for number in numbers
        }

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


def test_what_is_interrupted_goes_on_from_its_tokens_and_is_whole_at_the_end() -> None:
    engine = Engine()
    stream, sampling = Stream(engine, 0), replace(PLAIN, min_tokens=3, max_tokens=16)
    stream.version = 4
    stream.submit([(0, REQUESTS[0]), (1, REQUESTS[1])], sampling)
    assert stream.running == 2
    stream.interrupt()
    stream.interrupt()
    assert (stream.running, stream.under_way, stream.collect(60)) == (0, 2, [])
    assert gc.isenabled(), "garbage may be collected meanwhile"
    stream.submit([(2, REQUESTS[2])], sampling)
    assert len(engine.asked) == 2, "new ones wait, too"
    stream.version = 5
    stream.resume()
    rest, left = engine.taken[0]
    assert rest.prompt_ids == (1, 2, 8, 9)
    assert (left.min_tokens, left.max_tokens) == (1, 14)
    assert rest.seed == seed_behind(REQUESTS[0].seed, 2) not in (0, seed_behind(0, 1))
    assert engine.taken[1] == (REQUESTS[1], sampling), "it had not begun"
    found = dict(stream.collect(60))
    assert list(found[0].token_ids) == [8, 9, rest.seed % 100]
    assert list(found[0].log_probs) == [-0.5, -0.25, -1.0]
    assert list(found[0].prompt_ids) == [1, 2]
    assert found[0].versions == ((0, 4), (2, 5))
    assert [found[number].versions for number in (1, 2)] == [((0, 5),)] * 2
    rounds = stream.take_rounds()
    assert [one["requests"] for one in rounds] == [2, 3], "a round ends where weights come"
    assert [one["tokens"] for one in rounds] == [2, 3], "each token is counted in the round that made it"


def test_interrupted_twice_and_given_up_in_between() -> None:
    """A later try asks for the rest again, not for the whole."""
    first = seed_behind(REQUESTS[0].seed, 2)
    engine = Engine({first: 1})
    stream = Stream(engine, 1)
    stream.version = 1
    stream.submit([(0, REQUESTS[0]), (1, REQUESTS[1])], PLAIN)
    stream.interrupt()
    stream.resume()
    found = dict(stream.collect(0))
    assert list(found) == [1]
    stream.submit([(3, REQUESTS[3])], PLAIN)
    found = dict(stream.collect(60))
    assert engine.asked.count(first) == 2
    assert list(found[0].token_ids) == [8, 9, first % 100]
    assert found[0].versions == ((0, 1),)


def test_what_is_interrupted_can_be_aborted() -> None:
    stream = Stream(Engine(), 0)
    stream.submit(list(enumerate(REQUESTS)), PLAIN)
    stream.interrupt()
    stream.abort([0, 1, 2, 3, 9])
    stream.resume()
    assert [number for number, _ in stream.collect(60)] == [4]


def test_a_request_that_is_refused_takes_its_fellows_along() -> None:
    stream = Stream(Engine(), 0)
    with pytest.raises(RunFailure, match="too long"):
        stream.submit([(0, REQUESTS[0]), (1, Request((1, 2, 3), 0))], PLAIN)
    assert stream.under_way == 0
    assert gc.isenabled()
