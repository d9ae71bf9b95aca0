"""The process of one engine: a plain class that a Ray actor hosts, or that a test calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from rltrain.config.engines import ENGINES, loaded
from rltrain.config.schema import RunConfig
from rltrain.core import work
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.protocol import (
    Completion,
    Continues,
    Diagnoses,
    Numbered,
    Request,
    RolloutEngine,
    Sampling,
    Syncs,
    WakeTag,
)
from rltrain.workers.rollout.stream import Stream
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.transport import Descriptor

COLLECT_S = 60.0
"""How long the blocking call waits at a time."""
Ability = TypeVar("Ability")
_ABILITIES: dict[type, str] = {
    Syncs: "take weights from training ranks; choose another engine",
    Continues: "go on with answers under other weights; set algorithm.max_staleness=1, or choose another engine",
    Diagnoses: "be looked into; set trainer.verify_weight_sync=false, or choose another engine",
}
"""What an engine without them cannot do, and the way out."""


class EngineWorker:
    """The engine of `actor_rollout_ref.rollout.name`.

    The process sees only the engine's own devices (CUDA_VISIBLE_DEVICES is set before torch is imported).

    Args:
        config: resolved; `actor_rollout_ref.model.path` is the model's directory.
        index: of this engine among the replicas.
        saved_weights: begin with those of the model's files; otherwise with random ones, until others are loaded.
    """

    def __init__(self, config: RunConfig, index: int, saved_weights: bool = False) -> None:
        self._index, self._config = index, config
        self._processes = config.actor_rollout_ref.rollout.tensor_model_parallel_size
        self._engine = make_engine(config, saved_weights)
        self.has_weights = False
        """The engine holds the last published weights, whole; else random ones, or a part."""
        retries = config.actor_rollout_ref.rollout.max_retries
        self._stream = Stream(self._engine, retries, lambda done, total: self._note_progress(done, total))

    def start(self) -> dict[str, Any]:
        """Make the engine; facts about it.

        Raises:
            UserError: the config asks for what the engine does not have.
        """
        return self._engine.start()

    def submit(self, requests: Numbered, sampling: Sampling) -> None:
        """Take REQUESTS in, to be answered one by one through `collect`; returns at once.

        Raises:
            UserError: the engine does not sample like that.
            RunFailure: no weights were loaded, or a prompt is too long.
        """
        self._need_weights()
        self._stream.submit(requests, sampling)

    def collect(self, wait_s: float) -> list[tuple[int, Completion]]:
        """Generate for WAIT_S seconds, or until nothing is left; the requests that have finished, by their numbers.

        Raises:
            RunFailure: the engine gave a request up.
        """
        return self._stream.collect(wait_s)

    def take_notes(self) -> list[dict[str, Any]]:
        """How requests flowed, of each round that has ended since last asked; goes along with any answer."""
        return self._stream.take_rounds()

    def abort(self, numbers: Collection[int]) -> None:
        """Forget requests; nothing comes of them."""
        self._stream.abort(numbers)

    def pause(self) -> None:
        """Compute nothing until `resume`; what is under way stays."""
        self._stream.pause()

    def interrupt(self) -> None:
        """Take what is under way out of the engine, until `resume`: weights may come.

        Raises:
            UserError: the engine does not say what it has so far.
        """
        if self._stream.running:
            self._able(Continues)
        self._stream.interrupt()

    def resume(self) -> None:
        """Go on."""
        self._stream.resume()

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """One completion for each of REQUESTS, in their order, while nothing else is under way.

        Raises:
            UserError, RunFailure: as of `submit` and `collect`.
        """
        self.submit(list(enumerate(requests)), sampling)
        found: dict[int, Completion] = {}
        while self._stream.under_way:
            found |= dict(self.collect(COLLECT_S))
        return [found[number] for number in range(len(requests))]

    def sampled(self, sampling: Sampling) -> dict[str, Any]:
        """What the engine made of SAMPLING when it was last asked for it; empty: it was not."""
        return self._engine.sampled(sampling)

    def connect_sync(self, address: Address) -> None:
        """Meet the publisher for broadcasts; its group counts training rank 0 first, then all engines' processes."""
        self._able(Syncs).connect_sync(address, 1 + self._index * self._processes)

    def load_bucket(self, descriptor: Descriptor) -> None:
        """Load a bucket; with the last one, the prefix cache is reset, and the engine has weights.

        Raises:
            RunFailure: requests are under way: their keys and values are of the weights that they began with.
        """
        if running := self._stream.running:
            raise RunFailure(f"engine {self._index}: weights came while {running} requests were under way")
        self.has_weights = False
        engine = self._able(Syncs)
        engine.load_bucket(descriptor)
        if descriptor.bucket.is_last:
            engine.reset_prefix_cache()
            self.has_weights, self._stream.version = True, descriptor.version

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Checksums of what the engine holds under the published NAMES."""
        return self._able(Diagnoses).checksums(names)

    def wake(self, tag: WakeTag) -> None:
        """Bring back device memory of TAG."""
        self._able(Syncs).wake(tag)

    def sleep(self) -> bool:
        """Give device memory back, if the engine can; whether its weights are forgotten."""
        forgotten = self._able(Syncs).sleep()
        if forgotten:
            self.has_weights = False
        return forgotten

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes."""
        self._able(Syncs).reset_prefix_cache()

    def stop(self) -> None:
        """End the engine and its processes."""
        self._engine.stop()

    def _need_weights(self) -> None:
        if not self.has_weights:
            raise RunFailure(f"engine {self._index} has no weights yet: sync before generating")

    def _able(self, ability: type[Ability]) -> Ability:
        return able(self._engine, ability, self._config)

    def _note_progress(self, done: int, total: int) -> None:
        work.report(done, total)


def able(engine: RolloutEngine, ability: type[Ability], config: RunConfig) -> Ability:
    """ENGINE, as one that has ABILITY (`Syncs`, `Diagnoses`).

    Raises:
        UserError: it has not.
    """
    if isinstance(engine, ability):
        return engine
    name, lacks = config.actor_rollout_ref.rollout.name, _ABILITIES[ability]
    raise UserError(f"actor_rollout_ref.rollout.name={name}: this engine cannot {lacks}")


def make_engine(config: RunConfig, saved_weights: bool = False) -> RolloutEngine:
    """Make the engine that CONFIG (resolved) names, not started yet.

    With SAVED_WEIGHTS it starts with those of the model's files, not with random ones.
    """
    model_dir = config.actor_rollout_ref.model.path
    if model_dir is None:
        raise ValueError("actor_rollout_ref.model.path is not resolved")
    return loaded(ENGINES[config.actor_rollout_ref.rollout.name].engine)(config, model_dir, saved_weights)
