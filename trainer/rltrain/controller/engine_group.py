"""The rollout engines as one: deal requests, take weights, and survive the death of one of them once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rltrain.cluster.calls import Call, gather
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.runtime import Runtime
from rltrain.config.schema import RunConfig
from rltrain.controller.train_group import TrainGroup
from rltrain.core.errors import RunFailure
from rltrain.workers.rollout.protocol import Completion, Request, Sampling, WakeTag
from rltrain.workers.sync.controller import WeightSync

NO_WEIGHTS = -1
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
        self._connected = False
        self._restarted = False
        self.policy_version = NO_WEIGHTS
        """Of the weights that the engines hold: `TrainGroup.policy_version` at the last sync."""

    def begin_start(self) -> Call:
        """Begin to load the engines; wait with `calls.gather`."""
        return self.workers.begin("start", [()] * len(self.workers.slots))

    def take_weights(self) -> None:
        """Bring the actor's weights into the engines, unless they hold them already. Weights are awake."""
        self._surviving(self._take_weights)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Answers in the order of REQUESTS. Each engine gets neighbours: samples of a prompt share its cached prefix.

        Raises:
            RunFailure: an engine died a second time, failed, or did not answer in time.
        """

        def answers() -> list[Completion]:
            self._take_weights()  # an engine that was restarted has none
            return self._generate(requests, sampling)

        return self._surviving(answers)

    def checksums(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Of the weights NAMES, as each engine reads them back. Weights are awake.

        Raises:
            RunFailure: an engine cannot say.
        """
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
            dead = self._dead()
            if not dead:
                raise
            names = ", ".join(self.workers.name(rank) for rank in dead)
            if self._restarted:
                raise RunFailure(
                    f"{failure}; an engine had been restarted before: once in a run is the limit"
                ) from None
            self._restarted = True
            self._runtime.say(f"{failure}; restarting {names}")
            self._revive(dead)
            return act()

    def _take_weights(self) -> None:
        if not self._connected:
            self._sync.connect()
            self._connected = True
        if self.policy_version != self._train_group.policy_version:
            self._sync.sync(self._train_group.policy_version)
            self.policy_version = self._train_group.policy_version

    def _generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        size = -(-len(requests) // len(self.workers.slots))
        shards = [requests[start : start + size] for start in range(0, len(requests), size)]
        call = self.workers.begin("generate", [(list(shard), sampling) for shard in shards], ranks=range(len(shards)))
        parts: list[list[Completion]] = gather(
            self._runtime, [call], self._settings.generate_timeout_s, "generating responses"
        )[0]
        return [answer for part in parts for answer in part]

    def _dead(self) -> list[int]:
        return [
            rank
            for rank in range(len(self.workers.slots))
            if self.workers.ask_node(rank, "is_alive", self.workers.pids[rank]) is False
        ]

    def _revive(self, ranks: Sequence[int]) -> None:
        """Start engines again on devices that training has left: an engine takes its share of all memory."""
        deadline_s = self._settings.start_timeout_s
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
        self._connected, self.policy_version = False, NO_WEIGHTS

    def _call(self, method: str, *args: Any, doing: str) -> list[Any]:
        return self.workers.all(method, *args, deadline_s=self._settings.start_timeout_s, doing=doing)
