"""The rollout engines as one: answer requests, take weights, and survive the death of one of them once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rltrain.cluster.calls import Call, gather
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.runtime import Runtime
from rltrain.config.schema import RunConfig
from rltrain.controller.generation import Finished, Generation
from rltrain.controller.train_group import TrainGroup
from rltrain.core.errors import RunFailure
from rltrain.workers.rollout.protocol import Completion, Request, Sampling, WakeTag
from rltrain.workers.sync.controller import WeightSync

NO_WEIGHTS = -1
POLL_S = 0.25
"""How long to wait for an answer before looking at what else there is to do."""
OnFinished = Callable[[Sequence[Finished]], None]
"""Told again and again, at least every `POLL_S`, which requests of a call have finished, by their place in it."""
T = TypeVar("T")


class EngineGroup:
    """All engines of one run."""

    def __init__(self, runtime: Runtime, workers: WorkerGroup, train_group: TrainGroup, config: RunConfig) -> None:
        self.workers = workers
        self._runtime = runtime
        self._train_group = train_group
        self._settings = config.actor_rollout_ref.rollout
        # On a CPU there is no device to give back, and engines with GPUs of their own may stay awake.
        shares = config.trainer.device == "cuda" and config.actor_rollout_ref.hybrid_engine
        self._sleeps = shares and self._settings.free_cache_engine
        self._sync = WeightSync(train_group.workers, workers, self._settings.start_timeout_s)
        self._held: list[dict[str, str]] = []
        """By engine, what it has read back in the last call of `take_weights`, if that was a sync which is verified."""
        self._generation = Generation(runtime, workers, self._settings)
        self._connected = False
        self._restarted = False
        self._lost: list[int] = []
        """Engines that died while others answered their requests: they are started again after that."""
        self._kept: list[Finished] = []
        """Requests that finished while something else was waited for."""
        self.policy_version = NO_WEIGHTS
        """Of the weights that the engines hold: `TrainGroup.policy_version` at the last sync."""

    def begin_start(self) -> Call:
        """Begin to load the engines; wait with `calls.gather`."""
        return self.workers.begin("start", [()] * len(self.workers.slots))

    def take_weights(self) -> None:
        """Bring the actor's weights into the engines, unless they hold them already. Weights are awake.

        What is under way is interrupted for it, and goes on from its tokens so far.
        """
        self._held = []
        with self._runtime.waits.undisturbed():
            while self._generation.troubled:
                self._kept += self.collect(0)
            self._bring_back()
            self._surviving(self._take_weights)

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> range:
        """Take REQUESTS in; returns at once, with the numbers under which `collect` gives their answers.

        Engines hold weights (`take_weights`). Each gets neighbours: samples of a prompt share its cached prefix.
        """
        return self._generation.submit(requests, sampling)

    def collect(self, wait_s: float) -> list[Finished]:
        """Requests that have finished, in the order in which they did, after WAIT_S seconds at most.

        What a dead engine had in flight goes to the others, or to itself once it is started again.

        Raises:
            RunFailure: an engine died a second time, failed, or none finished a request in time.
        """
        kept, self._kept = self._kept, []
        try:
            return kept + self._generation.collect(0 if kept else wait_s)
        except RunFailure as failure:
            self._go_on_without(failure)
            return kept

    def glance(self) -> list[Finished]:
        """As `collect`, beside other work: what has finished by now. Engines go on meanwhile.

        Of a dead engine's requests others take care at once; where there are none, the next `collect` does.
        """
        if self._generation.troubled and len(self._dead()) < len(self._generation.engines):
            return self.collect(0)
        kept, self._kept = self._kept, []
        return kept + self._generation.glance()

    @contextmanager
    def waited_for(self) -> Generator[None]:
        """A block that waits for what was submitted; at its end dead engines are started again."""
        with self._generation.waited_for():
            yield
        self._bring_back()

    def abort(self, numbers: Collection[int]) -> None:
        """Forget requests; nothing comes of them."""
        self._generation.abort(numbers)

    def pause(self) -> None:
        """Let engines compute nothing until `resume`; what is under way stays there."""
        self._call("pause", doing="pausing the engines")

    def resume(self) -> None:
        """Let them go on."""
        self._call("resume", doing="resuming the engines")

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_finished: OnFinished | None = None
    ) -> list[Completion]:
        """Answers in the order of REQUESTS, whatever the order in which they finish.

        Raises:
            RunFailure: as of `collect`. What was under way is forgotten.
        """
        self.take_weights()  # an engine that was restarted has none
        found: dict[int, Completion] = {}
        others: list[Finished] = []
        with self.waited_for():
            numbers = self.submit(requests, sampling)
            while len(found) < len(numbers):
                arrived = self.collect(POLL_S)
                finished = [(number - numbers.start, answer) for number, answer in arrived if number in numbers]
                others += [one for one in arrived if one[0] not in numbers]
                found |= dict(finished)
                if on_finished is not None:
                    on_finished(finished)
        self._kept += others
        return [found[number] for number in range(len(numbers))]

    def checksums(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Of the weights NAMES, as each engine reads them back, or has just done for a sync. Weights are awake.

        Raises:
            RunFailure: an engine cannot say.
        """
        if self._held and all(name in held for held in self._held for name in names):
            return [{name: held[name] for name in names} for held in self._held]
        return self._call("checksums", names, doing="reading weights back from engines")

    def sampled(self, sampling: Sampling) -> list[dict[str, Any]]:
        """What each engine made of SAMPLING when it was last asked for it, by the engine's own names."""
        return self._call("sampled", sampling, doing="asking how engines sampled")

    def wake(self, tag: WakeTag) -> None:
        """Bring back what TAG names."""
        if self._sleeps:
            self._surviving(lambda: self._call("wake", tag, doing=f"waking the engines' {tag}"))

    def sleep(self) -> None:
        """Free the device for training."""
        if self._sleeps:
            forgotten = self._surviving(lambda: self._call("sleep", doing="putting the engines to sleep"))
            if any(forgotten):
                self.policy_version = NO_WEIGHTS

    def stop(self) -> None:
        """End the engines in order."""
        self.await_stop(self.begin_stop())

    def begin_stop(self) -> Call:
        """Begin to end the engines in order. One that has died since the last answer is no loss any more."""
        dead = self._dead()
        alive = [rank for rank in range(len(self.workers.slots)) if rank not in dead]
        return self.workers.begin("stop", [()] * len(alive), ranks=alive)

    def await_stop(self, call: Call) -> None:
        """Wait for what `begin_stop` has begun."""
        gather(self._runtime, [call], self._settings.start_timeout_s, "ending the engines")

    def _surviving(self, act: Callable[[], T]) -> T:
        """Do ACT. An engine that died meanwhile or before is restarted, and ACT done again: once in a run."""
        try:
            return act()
        except RunFailure as failure:
            dead = self._found_dead(failure)
            self._runtime.say(f"{failure}; restarting {self._names(dead)}")
            self._revive(dead)
            return act()

    def _go_on_without(self, failure: RunFailure) -> None:
        """After FAILURE in a generation, let others answer what a dead engine had; or itself, where there are none."""
        dead = self._found_dead(failure)
        left = [rank for rank in self._generation.engines if rank not in dead]
        if left:
            num_lost = self._generation.lost(dead)
            self._runtime.say(f"{failure}; its {num_lost} requests go to {self._names(left)}")
            self._lost = dead
            return
        self._runtime.say(f"{failure}; restarting {self._names(dead)}")
        with self._runtime.waits.undisturbed():
            self._revive(dead)
            self._take_weights()

    def _found_dead(self, failure: RunFailure) -> list[int]:
        """The engines whose death explains FAILURE, the first in this run.

        Raises:
            RunFailure: FAILURE, where no engine is dead, or one had been before.
        """
        dead = self._dead()
        if not dead:
            raise failure
        if self._restarted:
            raise RunFailure(f"{failure}; an engine had been restarted before: once in a run is the limit") from None
        self._restarted = True
        return dead

    def _names(self, ranks: Sequence[int]) -> str:
        return ", ".join(self.workers.name(rank) for rank in ranks)

    def _take_weights(self) -> None:
        if not self._connected:
            self._sync.connect()
            self._connected = True
        if self.policy_version != self._train_group.policy_version:
            with self._interrupted():
                self._held = self._sync.sync(self._train_group.policy_version)
            self.policy_version = self._train_group.policy_version

    @contextmanager
    def _interrupted(self) -> Generator[None]:
        """A block in which engines hold no requests; those that are under way go on after it."""
        if not self._generation.under_way:
            yield
            return
        self._call("interrupt", doing="interrupting the engines")
        yield
        self._call("resume", doing="resuming the engines")

    def _bring_back(self) -> None:
        """Start engines again that died while others answered their requests; with weights, if there is work left."""
        if self._lost:
            self._runtime.say(f"restarting {self._names(self._lost)}")
            with self._runtime.waits.undisturbed():
                self._revive(self._lost)
                if self._generation.under_way:
                    self._take_weights()

    def _dead(self) -> list[int]:
        return [
            rank
            for rank in range(len(self.workers.slots))
            if self.workers.ask_node(rank, "is_alive", self.workers.pids[rank]) is False
        ]

    def _revive(self, ranks: Sequence[int]) -> None:
        """Start engines again on devices that training has left: an engine takes its share of all memory."""
        deadline_s = self._settings.start_timeout_s
        self._generation.lost(ranks)
        parked = self._train_group.park()
        if parked is not None:
            self._runtime.say(f"the training ranks' models are on the host ({parked / 2**20:.1f} MiB) meanwhile")
        for rank in ranks:
            self.workers.restart(rank, deadline_s=deadline_s)
            call = self.workers.begin("start", [()], ranks=[rank])
            gather(self._runtime, [call], deadline_s, f"loading {self.workers.name(rank)} again")
        self._train_group.unpark()
        if parked is not None:
            self._runtime.say("the training ranks' models are back")
        self._connected, self.policy_version, self._lost = False, NO_WEIGHTS, []
        self._generation.back(ranks)

    def _call(self, method: str, *args: Any, doing: str) -> list[Any]:
        return self.workers.all(method, *args, deadline_s=self._settings.start_timeout_s, doing=doing)
