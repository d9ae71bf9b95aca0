"""Requests over several engines on a real Ray: answers as they finish, and an engine that dies meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.placement import plan
from rltrain.cluster.runtime import Runtime
from rltrain.controller.engine_group import EngineGroup
from rltrain.controller.generation import Finished
from rltrain.controller.train_group import TrainGroup
from rltrain.core.errors import RunFailure, UserError
from rltrain.core.trajectory import int_array
from rltrain.workers.rollout.protocol import Answer, Completion, Request, Sampling, SoFar
from rltrain.workers.rollout.stream import Stream
from tests.trainer.cluster.workers import config, spawn

pytestmark = pytest.mark.timeout(400)
SAMPLING = Sampling(1.0, 1.0, -1, 0, 16, (), (), False)
DEADLINE_S = 240.0
REQUESTS = [Request((seed // 4,), seed) for seed in range(40)]


class Slow:
    """An engine whose answer to a request is its seed, one every fifth of a second, the latest first."""

    def __init__(self) -> None:
        self._left: list[tuple[int, int]] = []

    def add(self, number: int, request: Request, sampling: Sampling) -> None:
        if sampling.temperature > 4:
            raise UserError("it does not sample like that")
        self._left.append((number, request.seed))

    def step(self) -> list[tuple[int, Answer]]:
        time.sleep(0.2)
        number, seed = self._left.pop()
        return [(number, Completion(int_array([seed]), None, "stop"))]

    def abort(self, numbers: Collection[int]) -> None:
        self._left = [pair for pair in self._left if pair[0] not in numbers]

    def so_far(self, numbers: Collection[int]) -> dict[int, SoFar]:
        return {number: SoFar(int_array([]), None) for number in numbers}

    def sampled(self, sampling: Sampling) -> dict[str, Any]:
        return {}


class SlowWorker:
    """What a run calls of an engine's process."""

    def __init__(self) -> None:
        self._stream = Stream(Slow(), 0)
        for name in ("submit", "collect", "abort", "pause", "interrupt", "resume"):
            setattr(self, name, getattr(self._stream, name))

    def start(self) -> None:
        """Nothing to load."""

    def under_way(self) -> int:
        return self._stream.under_way

    def running(self) -> int:
        return self._stream.running


class Syncs:
    """In place of weight sync: how often weights were taken."""

    def __init__(self, workers: WorkerGroup) -> None:
        self.count, self._workers = 0, workers
        self.running: list[int] = []
        """Requests that engines held meanwhile."""

    def connect(self) -> None:
        """Nothing to meet."""

    def sync(self, version: int) -> None:
        self.count += 1
        self.running += self._workers.all("running", deadline_s=DEADLINE_S)


@pytest.fixture(scope="module")
def workers(runtime: Runtime) -> WorkerGroup:
    slots = plan(config(), runtime.nodes).train
    return spawn(runtime, SlowWorker, slots, [()] * 2, deadline_s=DEADLINE_S)


@pytest.fixture
def engines(runtime: Runtime, workers: WorkerGroup) -> Iterator[EngineGroup]:
    train_group = SimpleNamespace(workers=None, policy_version=3, park=lambda: None, unpark=lambda: None)
    settings = config()
    settings = settings.model_copy(
        update={
            "actor_rollout_ref": settings.actor_rollout_ref.model_copy(
                update={"rollout": settings.actor_rollout_ref.rollout.model_copy(update={"max_num_seqs": 8})}
            )
        }
    )
    group = EngineGroup(runtime, workers, cast(TrainGroup, train_group), settings)
    group._sync = cast(Any, Syncs(workers))
    yield group
    workers.all("abort", range(1000), deadline_s=DEADLINE_S)


def seeds(answers: Sequence[Completion]) -> list[int]:
    return [int(answer.token_ids[0]) for answer in answers]


def killing(workers: WorkerGroup, rank: int, heard: list[int], after: int) -> Any:
    """Kills RANK when AFTER requests have been heard of."""

    def on_finished(finished: Sequence[Finished]) -> None:
        before = len(heard)
        heard.extend(place for place, _ in finished)
        if before < after <= len(heard):
            os.kill(workers.pids[rank], signal.SIGKILL)

    return on_finished


def test_answers_come_as_they_finish_and_go_back_into_order(engines: EngineGroup) -> None:
    heard: list[list[int]] = []
    answers = engines.generate(REQUESTS, SAMPLING, lambda some: heard.append([place for place, _ in some]))
    assert seeds(answers) == list(range(40))
    assert sum(bool(some) for some in heard) > 3
    arrived = [place for some in heard for place in some]
    assert sorted(arrived) == list(range(40))
    assert arrived != sorted(arrived)


def test_what_a_dead_engine_had_goes_to_the_other_and_it_comes_back(
    engines: EngineGroup, runtime: Runtime, said: list[str]
) -> None:
    said.clear()
    heard: list[int] = []
    first = engines.workers.pids[1]
    assert seeds(engines.generate(REQUESTS, SAMPLING, killing(engines.workers, 1, heard, 4))) == list(range(40))
    assert sorted(heard) == list(range(40)), "each is heard of once"
    told = "\n".join(said)
    assert "was killed by SIGKILL" in told
    assert "requests go to train-0" in told
    assert told.count("restarting train-1") == 1
    assert psutil.pid_exists(engines.workers.pids[1])
    assert engines.workers.pids[1] != first
    assert engines.policy_version == -1, "it has no weights yet"
    assert seeds(engines.generate(REQUESTS[:9], SAMPLING)) == list(range(9))
    assert engines.policy_version == 3
    with pytest.raises(RunFailure, match=r"SIGKILL.*an engine had been restarted before: once in a run is the limit"):
        engines.generate(REQUESTS, SAMPLING, killing(engines.workers, 0, [], 2))
    engines.workers.restart(0, deadline_s=DEADLINE_S)


def test_after_an_error_nothing_is_left_under_way(engines: EngineGroup) -> None:
    with pytest.raises(UserError, match="it does not sample like that"):
        engines.generate(REQUESTS, Sampling(9.0, 1.0, -1, 0, 16, (), (), False))
    assert seeds(engines.generate(REQUESTS[:8], SAMPLING)) == list(range(8))
    assert engines.workers.all("under_way", deadline_s=DEADLINE_S) == [0, 0]


def all_of(engines: EngineGroup, numbers: range) -> dict[int, Completion]:
    """Answers to NUMBERS, as they are waited for."""
    found: dict[int, Completion] = {}
    with engines.waited_for():
        while len(found) < len(numbers):
            found |= dict(engines.collect(0.25))
    return found


def test_weights_go_in_while_answers_are_written(engines: EngineGroup) -> None:
    engines.take_weights()
    numbers = engines.submit(REQUESTS, SAMPLING)
    cast(Any, engines._train_group).policy_version = 4
    engines.take_weights()
    syncs = cast(Any, engines._sync)
    assert (syncs.count, syncs.running, engines.policy_version) == (2, [0] * 4, 4)
    assert sum(engines.workers.all("under_way", deadline_s=DEADLINE_S)) > 0, "nothing was forgotten"
    found = all_of(engines, numbers)
    assert seeds([found[number] for number in numbers]) == list(range(40))


def test_answers_that_finish_while_others_are_waited_for_are_kept(engines: EngineGroup) -> None:
    numbers = engines.submit(REQUESTS[:12], SAMPLING)
    assert seeds(engines.generate(REQUESTS[20:30], SAMPLING)) == list(range(20, 30))
    found = all_of(engines, numbers)
    assert seeds([found[number] for number in numbers]) == list(range(12))


def test_an_engine_that_died_while_nobody_waited_is_back_with_the_next_weights(
    engines: EngineGroup, said: list[str]
) -> None:
    """With the other at work: seen by a look, or by the sync itself."""
    said.clear()
    engines.take_weights()
    numbers = engines.submit(REQUESTS, SAMPLING)
    os.kill(engines.workers.pids[1], signal.SIGKILL)
    found: dict[int, Completion] = {}
    deadline = time.monotonic() + 60
    while not engines._lost and time.monotonic() < deadline:
        found |= dict(engines.glance())
        time.sleep(0.1)
    assert engines._lost == [1]
    cast(Any, engines._train_group).policy_version = 4
    engines.take_weights()
    assert (engines._lost, engines.policy_version) == ([], 4)
    assert "\n".join(said).count("restarting train-1") == 1
    found |= all_of(engines, range(40 - len(found)))
    assert seeds([found[number] for number in numbers]) == list(range(40))


def test_paused_engines_answer_nothing_until_they_go_on(engines: EngineGroup) -> None:
    numbers = engines.submit(REQUESTS[:4], SAMPLING)
    engines.pause()
    assert not engines.collect(1.0)
    engines.resume()
    found: dict[int, Completion] = {}
    deadline = time.monotonic() + 60
    while len(found) < 4 and time.monotonic() < deadline:
        found |= dict(engines.collect(0.25))
    assert seeds([found[number] for number in numbers]) == [0, 1, 2, 3]
