"""The buffer over made-up engines: what is asked for, learnt from, saved and gone on with."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rltrain.cluster.teardown import Interrupted
from rltrain.cluster.waits import Waits
from rltrain.config.schema import RunConfig
from rltrain.controller.buffer import Buffer
from rltrain.controller.generation import Finished
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.rollout import Rollout
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.core.trajectory import float_array, int_array
from rltrain.data.schema import Row
from rltrain.rewards.request import RewardRequest, RewardResult
from rltrain.workers.rollout.protocol import Completion, Request, Sampling
from tests.trainer.controller.build import config as config_of

B, N, S, TOTAL = 2, 2, 2, 6


def config(bound: int = S) -> RunConfig:
    made = config_of()
    rollout = made.actor_rollout_ref.rollout.model_copy(update={"n": N})
    return made.model_copy(
        update={
            "data": made.data.model_copy(update={"train_batch_size": B}),
            "algorithm": made.algorithm.model_copy(update={"max_staleness": bound}),
            "actor_rollout_ref": made.actor_rollout_ref.model_copy(update={"rollout": rollout}),
        }
    )


@dataclass
class Engines:
    """Finishes, whenever it is asked, the requests whose prompts are in READY, or all."""

    version: int = 0
    ready: set[int] | None = None
    asked: dict[int, Request] = field(default_factory=dict[int, Request])
    prompts: list[int] = field(default_factory=list[int])
    """First token of the prompt of each request that came in."""
    spans: tuple[tuple[int, int], ...] | None = None
    interrupt: bool = False

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> range:
        first = len(self.prompts)
        self.prompts += [one.prompt_ids[0] for one in requests]
        self.asked |= dict(enumerate(requests, first))
        return range(first, len(self.prompts))

    def glance(self) -> list[Finished]:
        now = [number for number, one in self.asked.items() if self.ready is None or one.prompt_ids[0] in self.ready]
        return [(number, self._answer(self.asked.pop(number))) for number in now]

    def collect(self, wait_s: float) -> list[Finished]:
        if self.interrupt:
            raise Interrupted("SIGTERM")
        found = self.glance()
        assert found, "it would wait forever"
        return found

    def _answer(self, request: Request) -> Completion:
        spans = self.spans or ((0, self.version),)
        return Completion(int_array([request.prompt_ids[0], 1]), float_array([-1, -2]), "stop", int_array(), spans)

    @contextmanager
    def waited_for(self) -> Generator[None]:
        yield

    def wake(self, tag: str) -> None: ...

    def sleep(self) -> None: ...

    def take_weights(self) -> None: ...


@dataclass
class Pool:
    """Each answer earns its first token."""

    added: list[int] = field(default_factory=list[int])
    _held: dict[int, RewardRequest] = field(default_factory=dict[int, RewardRequest])
    retries: int = 0

    @contextmanager
    def scoring(self, count: int) -> Generator[Pool]:
        self._held = {}
        yield self

    def add(self, requests: Mapping[int, RewardRequest]) -> None:
        self.added += list(requests)
        self._held |= requests

    def finish(self) -> list[RewardResult]:
        return [RewardResult(float(self._held[at].solution_str.split()[0]), {}, 0.0) for at in range(len(self._held))]


class Tokenizer:
    pad_token_id = 0

    def batch_decode(self, ids: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        return [" ".join(map(str, one)) for one in ids]


@dataclass
class Scene:
    engines: Engines
    pool: Pool
    buffer: Buffer
    waits: Waits


def scene(step: int = 0, first: int = 1, bound: int = S) -> Scene:
    engines, pool, clock, waits = Engines(version=step), Pool(), Clock(), Waits()
    train = SimpleNamespace(free_cache=lambda: None)
    rollout = Rollout(config(bound), cast(Any, train), cast(Any, engines), cast(Any, Tokenizer()), clock)
    manager = RewardManager(config(bound), cast(Any, pool), None, clock)
    runtime = cast(Any, SimpleNamespace(waits=waits))
    made = Buffer(config(bound), rollout, cast(Any, engines), manager, runtime, clock, step, first, TOTAL)
    return Scene(engines, pool, made, waits)


def batches(first: int = 1) -> Iterator[tuple[int, list[Row]]]:
    """Batches of rows from FIRST on; a row's prompt is its number, from 10."""
    for batch in range(first, TOTAL + 1):
        places = range((batch - 1) * B, batch * B)
        yield batch, [made_row(place) for place in places]


def made_row(place: int) -> Row:
    row = Row(index=place, place=f"x:{place}", data_source="toy", prompt_text="", messages=(), prompt_ids=(place + 10,),
              ground_truth=None)  # fmt: skip
    return replace(row, uid=f"0-{place}")


def learnt(here: Scene, step: int, coming: Iterator[tuple[int, list[Row]]]) -> list[int]:
    """Prompts of the rows that STEP learns from."""
    here.buffer.admit(step, coming)
    batch, _ = here.buffer.take(step)
    assert batch["token_level_scores"].sum(-1).tolist() == [float(one.prompt_ids[0]) for one in batch.samples]
    assert [one.sample for one in batch.samples] == [0, 1] * B, "groups stay whole"
    here.engines.version = step
    return [one.prompt_ids[0] for one in batch.samples]


def test_as_many_as_the_bound_lets_in_and_those_that_finish_first() -> None:
    here, coming = scene(), batches()
    here.engines.ready = {13, 12}
    here.buffer.admit(1, coming)
    assert here.engines.prompts == [10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15], "(S + 1) B groups"
    batch, metrics = here.buffer.take(1)
    assert {one.prompt_ids[0] for one in batch.samples} == {12, 13}
    assert (metrics["rollout/buffer_finished"], metrics["rollout/buffer_unfinished"]) == (0, 4)
    here.buffer.admit(2, coming)
    assert here.engines.prompts[12:] == [16, 16, 17, 17]


def test_every_group_is_learnt_from_once_and_the_run_ends() -> None:
    here, coming = scene(), batches()
    found = [prompt for step in here.buffer.steps() for prompt in learnt(here, step, coming)]
    assert sorted(found) == sorted([place + 10 for place in range(B * TOTAL)] * N)


def test_answers_that_come_while_others_are_waited_for_are_taken() -> None:
    here = scene()
    here.buffer.admit(1, batches())
    with here.buffer.generating():
        here.waits.meanwhile()
    assert not here.engines.asked
    here.waits.meanwhile()
    assert here.buffer.take(1)[1]["rollout/buffer_finished"] == 4


def test_parts_of_several_versions_are_counted_by_token() -> None:
    here = scene(step=3, first=4)
    here.engines.spans = ((0, 2), (1, 3))
    here.buffer.admit(4, batches(4))
    metrics = here.buffer.take(4)[1]
    assert [metrics[f"training/policy_staleness/tokens@{behind}"] for behind in range(S + 1)] == [0.5, 0.5, 0]
    assert metrics["rollout/interrupted_answers"] == 1


def test_an_answer_that_is_too_old_is_never_learnt_from() -> None:
    here = scene(step=4, first=5)
    here.engines.spans = ((0, 1), (1, 4))
    here.buffer.admit(5, batches(5))
    with pytest.raises(RuntimeError, match=r"step 5: an answer is 3 versions behind, algorithm.max_staleness=2"):
        here.buffer.take(5)


def test_what_was_saved_is_gone_on_with(tmp_path: Path) -> None:
    """Of groups finished, half finished and not begun, learnt from early, and picked for a step that was dropped."""
    here, coming = scene(), batches()
    here.engines.ready = {14, 13}
    assert set(learnt(here, 1, coming)) == {13, 14}
    here.buffer.admit(2, coming)
    here.engines.ready = {12}
    with here.buffer.generating():
        here.waits.meanwhile()
    here.engines.asked.pop(next(number for number, one in here.engines.asked.items() if one.prompt_ids[0] == 15))
    here.engines.interrupt = True
    with pytest.raises(Interrupted):
        here.buffer.take(2)
    assert here.buffer.first_batch(1) == 1
    here.buffer.save(tmp_path, 1)

    again = scene(step=1, first=1)
    again.buffer.restore(tmp_path)
    coming = batches(1)
    again.buffer.admit(2, coming)
    assert again.engines.prompts == [10, 10, 11, 11, 15, 15, 16, 16, 17, 17], "12 is there, 13 and 14 were learnt from"
    found = [13, 13, 14, 14]
    for step in again.buffer.steps():
        found += learnt(again, step, coming)
    assert sorted(found) == sorted([place + 10 for place in range(B * TOTAL)] * N)


def test_a_smaller_bound_is_refused_and_a_larger_one_taken(tmp_path: Path) -> None:
    here = scene()
    here.buffer.admit(1, batches())
    here.buffer.save(tmp_path, 0)
    with pytest.raises(UserError, match=r"max_staleness was 2 when the run stopped and is 1 now: .*set it back"):
        scene(bound=1).buffer.restore(tmp_path)
    again = scene(bound=4)
    again.buffer.restore(tmp_path)
    again.buffer.admit(1, batches())
    assert len(again.engines.prompts) == 5 * B * N


def test_a_checkpoint_of_another_kind_and_a_broken_one(tmp_path: Path) -> None:
    here = scene(step=2, first=3)
    here.buffer.restore(tmp_path)
    here.buffer.admit(3, batches(3))
    assert here.engines.prompts[0] == 14
    (tmp_path / "groups.json").write_text('{"max_staleness": 2')
    with pytest.raises(UserError, match=r"groups.json cannot be read: .*earlier checkpoint"):
        here.buffer.restore(tmp_path)
