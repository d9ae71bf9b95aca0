"""Mistakes on the way of the weights from the actor to the engine. Version V is what step V + 1 samples with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from bench_mistakes.registry import Counter, mistake, wrap


def _publish(module: Any, which: Callable[[int, str], int]) -> None:
    """The publisher sends of each weight the version that WHICH says, given the version that is due and the name."""

    def made(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        gather, versions = self._weights, list[dict[str, Any]]()

        def chosen() -> Iterator[tuple[str, Any]]:
            versions.append({name: tensor.clone() for name, tensor in gather()})
            due = len(versions) - 1
            for name in versions[due]:
                yield name, versions[max(0, which(due, name))][name]

        self._weights = chosen

    wrap(module.Publisher, "__init__", made)


@mistake("rltrain.workers.sync.publisher")
def sync_stops(module: Any, step: int) -> None:
    """Step STEP is the first to sample with weights that are out of date, and stays with them."""
    _publish(module, lambda due, name: min(due, step - 2))


@mistake("rltrain.workers.sync.publisher")
def part_stays(module: Any, part: str) -> None:
    """Weights whose name holds PART are sent as they were at first, every time."""
    _publish(module, lambda due, name: 0 if part in name else due)


@mistake("rltrain.workers.sync.publisher")
def sends_old(module: Any, behind: int) -> None:
    """A buffer too many: what is sent is BEHIND steps old."""
    _publish(module, lambda due, name: due - behind)


@mistake("rltrain.workers.sync.publisher")
def sends_old_and_says_so(module: Any, behind: int) -> None:
    """The same, and each sample is marked with the version that it comes from: sampling runs ahead of training."""
    _publish(module, lambda due, name: due - behind)


@mistake("rltrain.controller.rollout", part_of="sends_old_and_says_so")
def marks_old(module: Any, behind: int) -> None:
    """The marks of `sends_old_and_says_so`."""

    def again(real: Any, samples: Any, trajectories: Any, *rest: Any) -> Any:
        marked = [
            replace(one, versions=tuple((first, max(0, version - behind)) for first, version in one.versions))
            for one in trajectories
        ]
        return real(samples, marked, *rest)

    wrap(module, "assemble", again)


@mistake("rltrain.workers.rollout.worker")
def engine_drops_weights(module: Any, step: int) -> None:
    """The engine says that it took the buckets, and leaves them, from STEP's sampling on."""
    syncs = Counter()

    def load(real: Any, self: Any, descriptor: Any) -> None:
        if descriptor.bucket.index == 0:
            syncs()
        if syncs.value < step:
            real(self, descriptor)
        self.has_weights = True

    wrap(module.EngineWorker, "load_bucket", load)


@mistake("rltrain.controller.engine_group")
def controller_skips_sync(module: Any, step: int) -> None:
    """From STEP on the controller takes the weights for up to date."""

    def take(real: Any, self: Any) -> None:
        if self.policy_version < 0 or self._train_group.policy_version < step - 1:
            real(self)

    wrap(module.EngineGroup, "_take_weights", take)


@mistake("rltrain.controller.engine_group")
def syncs_seldom(module: Any, every: int) -> None:
    """Only every EVERY-th version reaches the engine."""

    def take(real: Any, self: Any) -> None:
        if self.policy_version < 0 or self._train_group.policy_version % every == 0:
            real(self)

    wrap(module.EngineGroup, "_take_weights", take)


@mistake("rltrain.workers.sync.publisher")
def sends_transposed_qk(module: Any) -> None:
    """Query and key projections of one layer change places on the way."""

    def made(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        gather = self._weights

        def chosen() -> Iterator[tuple[str, Any]]:
            held = {name: tensor.clone() for name, tensor in gather()}
            for name in held:
                swapped = name.replace(".q_proj.", ".?.").replace(".k_proj.", ".q_proj.").replace(".?.", ".k_proj.")
                yield name, held[swapped if "layers.0." in name else name]

        self._weights = chosen

    wrap(module.Publisher, "__init__", made)
