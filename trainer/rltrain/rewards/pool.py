"""The pool: rules and a user's function in child processes, each call under a time limit."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rltrain.core.errors import UserError
from rltrain.rewards.process import Child
from rltrain.rewards.request import RewardRequest, RewardResult
from rltrain.rewards.round import POLL_S, Round
from rltrain.rewards.spec import spec_of

if TYPE_CHECKING:
    from rltrain.config.schema import RunConfig


_LOG = logging.getLogger(__name__)


class Scoring:
    """One batch whose requests come bit by bit."""

    def __init__(self, check: Callable[[Sequence[RewardRequest]], None], work: Round | None) -> None:
        """CHECK refuses what nothing scores; WORK of None: nothing is to be done."""
        self._check, self._work = check, work
        self._count = 0

    @property
    def retries(self) -> int:
        """Calls that were made again."""
        return 0 if self._work is None else self._work.retries

    def add(self, requests: Mapping[int, RewardRequest]) -> None:
        """REQUESTS by their places in the batch; the scores that are ready are taken meanwhile.

        Raises:
            UserError: a sample that nothing scores.
        """
        self._check(list(requests.values()))
        self._count += len(requests)
        if self._work is not None:
            if requests:
                self._work.add(requests)
            self._work.turn(0)

    def finish(self) -> list[RewardResult]:
        """All results, in the order of their places.

        Raises:
            UserError: as `RewardPool.score`.
        """
        return [RewardResult(0.0, {}, 0.0)] * self._count if self._work is None else self._work.run()


class RewardPool:
    """Scores requests in `reward_model.num_processes` long-lived processes; results do not depend on their number.

    Works in any process, a Ray actor too: children start as new processes (no fork of threads) in a session of their
    own, and die with the process that holds the pool.

    Raises:
        UserError: the config names no reward, or one that cannot be.
    """

    def __init__(self, config: RunConfig) -> None:
        self._spec = spec_of(config)
        self._model_covers = config.reward_model.enable
        self._num_processes = config.reward_model.num_processes
        self._start_timeout_s = config.reward_model.start_timeout_s
        self._children: list[Child] = []
        self.num_retries = 0
        """Calls that were made again since the pool was opened."""
        self.on_poll: Callable[[int], None] = _go_on
        """Called many times a second while rewards are computed, with how many of a call are done; may raise."""

    def check(self) -> None:
        """Start the processes, and load rules and functions in them.

        Raises:
            UserError: what cannot be loaded, with file and line.
        """
        if self._spec.part_names:
            self._start(self._num_processes)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """The results, in the order of REQUESTS.

        Raises:
            UserError: a sample that nothing scores; or one whose scoring raised, gave no finite number, hung, or killed
                its process, each time that it was tried, where there is no `reward_model.default_score`. Of several,
                the first in order. The pool stays usable.
        """
        with self.scoring(len(requests)) as scoring:
            scoring.add(dict(enumerate(requests)))
            return scoring.finish()

    @contextmanager
    def scoring(self, count: int) -> Generator[Scoring]:
        """In the block, score COUNT requests that come bit by bit; one such block at a time.

        Raises:
            UserError: as `score`.
        """
        if not self._spec.part_names or not count:
            yield Scoring(self._check_covered, None)
            return
        self._start(min(self._num_processes, count))
        work = Round(self._spec, self._children, self._renew, self.on_poll)
        try:
            yield Scoring(self._check_covered, work)
            self.num_retries += work.retries
            if work.defaults:
                first = work.defaults[min(work.defaults)]
                _LOG.warning(
                    "%d samples were given reward_model.default_score, the first: %s", len(work.defaults), first
                )
        finally:
            work.close()
            # After an error some hang or are dead, and some still work on what nobody waits for any more.
            self._drop([*work.busy, *work.broken])

    def close(self) -> None:
        """End all processes and what they have started."""
        self._drop(list(self._children))

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drop(self, children: Sequence[Child]) -> None:
        for child in children:
            if child in self._children:  # one that died may have been dropped when another was started
                self._children.remove(child)
                child.kill()

    def _renew(self, child: Child) -> Child:
        """A child that is ready, in place of CHILD."""
        self._drop([child])
        return self._add(1)[0]

    def _check_covered(self, requests: Sequence[RewardRequest]) -> None:
        if self._model_covers:
            return
        sources = {request.data_source for request in requests}
        uncovered = {source for source in sources if not self._spec.covers(source)}
        for request in requests:
            if request.data_source in uncovered:
                raise UserError(
                    f"nothing scores data_source '{request.data_source}' of {request.words()}: name it in "
                    "`data_sources` of one of reward_model.rules, or set custom_reward_function.path"
                )

    def _start(self, number: int) -> None:
        self._drop([child for child in self._children if child.ended() is not None])
        self._add(number - len(self._children))

    def _add(self, number: int) -> list[Child]:
        """NUMBER more that are ready. Others may be dead and still belong to a round, which drops them."""
        new = [Child(self._spec) for _ in range(number)]
        self._children += new
        try:
            for child in new:
                self._await_ready(child)
        finally:
            self._drop([child for child in new if not child.ready])
        return new

    def _await_ready(self, child: Child) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        what = f"loading the reward {', '.join(self._spec.part_names)}"
        with selectors.DefaultSelector() as selector:
            selector.register(child, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                selector.select(POLL_S)
                try:
                    reply = child.receive()
                except EOFError:
                    raise UserError(f"{what} {child.how_it_ended()}; its output is in the log") from None
                if reply is not None:
                    if reply[0] is not None:
                        raise UserError(reply[0])
                    child.ready = True
                    return
        raise UserError(f"{what} took longer than reward_model.start_timeout_s = {self._start_timeout_s:g} s")


def _go_on(_done: int) -> None:
    """Nobody listens."""
