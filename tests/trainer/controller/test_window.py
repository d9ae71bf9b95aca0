"""The window over simulated engines: no group is too old, none is lost, no step waits forever.

A few hundred cases here; ten thousand and new ones: RLCHECK_EXPLORE=1 .venv/bin/python -m pytest THIS_FILE (a minute).
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rltrain.controller.window import Window

EXPLORE = bool(os.environ.get("RLCHECK_EXPLORE"))


@dataclass(frozen=True)
class Case:
    """One run: what happens is drawn from SEED."""

    seed: int
    per_step: int
    max_staleness: int
    steps: int
    slots: int
    """Groups that engines write at a time."""
    tail: float
    """The larger, the longer are the longest groups beside the others."""
    learning: int
    """Ticks that engines have while ranks learn."""
    deaths: float
    """Share of ticks in which everything under way begins again."""
    restarts: float
    """Share of steps in which the run is stopped and goes on from what a checkpoint holds."""


@dataclass
class Sim:
    """Engines and ranks around a window."""

    case: Case
    window: Window
    rng: random.Random
    left: dict[int, int] = field(default_factory=dict[int, int])
    """Tokens to come of the groups under way, in the order in which they were asked for."""
    lengths: dict[int, int] = field(default_factory=dict[int, int])
    admitted_at: dict[int, int] = field(default_factory=dict[int, int])
    finished: set[int] = field(default_factory=set[int])
    trained: list[int] = field(default_factory=list[int])
    worst: int = 0

    def tick(self) -> None:
        """Engines write a token of each group that they hold."""
        if self.rng.random() < self.case.deaths:
            self.left = {number: self.lengths[number] for number in self.left}
        for number in list(self.left)[: self.case.slots]:
            self.left[number] -= 1
            if self.left[number] <= 0:
                del self.left[number]
                self.finished.add(number)
                self.window.finish(number)

    def admit(self, version: int) -> None:
        total = self.case.steps * self.case.per_step
        for _ in range(min(self.window.room(version), total - self.window.admitted)):
            number = self.window.admitted
            self.lengths[number] = self.left[number] = int(self.rng.paretovariate(1 / self.case.tail))
            self.lengths[number] = self.left[number] = min(self.left[number], 200)
            self.admitted_at[number] = version
            self.window.admit(number, version)

    def restart(self, version: int) -> None:
        """Only what `outstanding` and `admitted` say survives, and the answers that were whole."""
        outstanding, admitted = self.window.outstanding(version), self.window.admitted
        first = min(outstanding, default=admitted)
        self.window = Window(self.case.per_step, self.case.max_staleness, version, first)
        for number in range(first, admitted):
            if number not in outstanding:
                self.window.pass_over(number)
                continue
            self.window.admit(number, outstanding[number])
            if number in self.finished:
                self.window.finish(number)
        self.left = {number: self.lengths[number] for number in sorted(outstanding) if number not in self.finished}

    def step(self, version: int) -> Sequence[int]:
        before: list[int] = []
        for _ in range(10**5):
            picks = list(self.window.picks(version))
            assert picks[: len(before)] == before, "a pick is not taken back"
            assert set(picks) <= self.finished
            if len(picks) == self.case.per_step:
                return picks
            assert self.left, "everything is finished, and the step waits"
            before = picks
            self.tick()
        raise AssertionError("the step waits forever")

    def run(self) -> None:
        for version in range(self.case.steps):
            if self.rng.random() < self.case.restarts:
                self.restart(version)
            self.admit(version)
            picks = self.step(version)
            if self.rng.random() < self.case.restarts:  # a step that was begun and not learnt from
                self.restart(version)
                self.admit(version)
                picks = self.step(version)
            self.worst = max([self.worst, *(version - self.admitted_at[number] for number in picks)])
            self.trained += picks
            for _ in range(self.case.learning):
                self.tick()


def simulated(case: Case) -> Sim:
    sim = Sim(case, Window(case.per_step, case.max_staleness), random.Random(case.seed))
    sim.run()
    return sim


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32),
    per_step=st.integers(1, 6),
    max_staleness=st.integers(0, 6),
    steps=st.integers(1, 15),
    slots=st.integers(1, 40),
    tail=st.floats(0.1, 3.0),
    learning=st.integers(0, 30),
    deaths=st.sampled_from([0.0, 0.0, 0.002, 0.01]),
    restarts=st.sampled_from([0.0, 0.0, 0.2]),
)


@pytest.mark.timeout(1800)
@settings(
    max_examples=10_000 if EXPLORE else 300,
    derandomize=not EXPLORE,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(CASES)
def test_never_too_old_never_lost_never_stuck(case: Case) -> None:
    sim = simulated(case)
    assert sim.worst <= case.max_staleness
    # Each once, whatever its length: there is no choice of what is learnt from, only of when.
    assert sorted(sim.trained) == list(range(case.steps * case.per_step))
    assert sim.window.outstanding(case.steps) == {}


def test_with_a_bound_of_zero_steps_are_the_batches_of_the_data() -> None:
    sim = simulated(Case(1, 4, 0, 10, 3, 2.0, 5, 0.0, 0.0))
    assert [sorted(sim.trained[at : at + 4]) for at in range(0, 40, 4)] == [
        list(range(at, at + 4)) for at in range(0, 40, 4)
    ]


def test_the_bound_is_used() -> None:
    """Else a window that always waits for all would pass."""
    worst = [simulated(Case(seed, 4, 3, 20, 8, 2.0, 20, 0.0, 0.0)).worst for seed in range(5)]
    assert max(worst) == 3


def window(per_step: int, max_staleness: int, count: int) -> Window:
    made = Window(per_step, max_staleness)
    for number in range(count):
        made.admit(number, 0)
    return made


def test_admission_is_by_capacity() -> None:
    made = Window(4, 2)
    assert made.room(0) == 12
    made = window(4, 2, 12)
    assert (made.room(0), made.room(1), made.room(2)) == (0, 4, 8)


def test_groups_go_as_they_finish_while_no_deadline_is_near() -> None:
    made = window(2, 1, 4)
    for number in (3, 1, 0):
        made.finish(number)
    assert list(made.picks(0)) == [3, 1]
    assert made.unpicked == (1, 1)


def test_a_step_waits_for_what_is_due() -> None:
    made = window(2, 1, 4)
    made.finish(3)
    made.finish(1)
    assert list(made.picks(0)) == [3, 1]
    for number in (4, 5):
        made.admit(number, 1)
        made.finish(number)
    assert list(made.picks(1)) == [], "0 and 2 are due now"
    made.finish(2)
    assert list(made.picks(1)) == [2]
    made.finish(0)
    assert list(made.picks(1)) == [2, 0]
    assert made.outstanding(1) == {0: 0, 2: 0, 4: 1, 5: 1}
    assert made.outstanding(2) == {4: 1, 5: 1}


def test_a_step_leaves_no_more_for_a_later_deadline_than_its_steps_hold() -> None:
    """Of six that are due at version 1, four must go at version 0 … 1: two of each step, whatever else is there."""
    made = Window(2, 2)
    for number in range(4):
        made.admit(number, 0)
    for number in (4, 5):
        made.admit(number, 0)
    for number in (0, 1):
        made.finish(number)
    assert list(made.picks(0)) == [0, 1]
    made.admit(6, 1)
    made.admit(7, 1)
    made.finish(6)
    made.finish(7)
    assert list(made.picks(1)) == [], "the four that are due at 2 are more than one step holds"
    made.finish(5)
    made.finish(4)
    assert list(made.picks(1)) == [5, 4]
