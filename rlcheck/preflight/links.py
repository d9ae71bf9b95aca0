"""The links of the chain, in the order in which they break, and which failures leave nothing to try further on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlcheck.facts.run import RunFacts


def _always(run: RunFacts) -> bool:
    del run
    return True


def several_nodes(run: RunFacts) -> bool:
    """Whether the run spans machines."""
    return run.spec.nodes > 1 or run.spec.rollout_nodes > 0


def _wide_engine(run: RunFacts) -> bool:
    """Whether one engine spans GPUs, so that it needs collectives by itself."""
    rollout = run.spec.rollout
    return rollout.tensor_parallel * rollout.pipeline_parallel * rollout.expert_parallel > 1


def _from_hub(run: RunFacts) -> bool:
    """Whether a model must come out of the cache: one that is no directory of this machine."""
    path = run.spec.actor.model.path or ""
    return bool(path) and not path.startswith(("/", "~", "."))


@dataclass(frozen=True)
class Need:
    """What must not have failed before a link can hold.

    link: the earlier one. failures: families or IDs whose failure there leaves nothing to try; empty: any.
    when: whether that is so for this run.
    """

    link: str
    failures: tuple[str, ...] = ()
    when: Callable[[RunFacts], bool] = _always


@dataclass(frozen=True)
class Link:
    """One link.

    families: whose checks belong to it. section: of the facts that it measures; checks that need it belong to it
    whatever their family. slow: it takes longer than the start of a run should.
    """

    name: str
    title: str
    families: tuple[str, ...]
    section: str = ""
    needs: tuple[Need, ...] = ()
    slow: bool = False


_MACHINE = Need("machine", ("SYS", "ENV", "GPU"))

LINKS: tuple[Link, ...] = (
    Link("machine", "this machine", ("SYS", "ENV", "GPU")),
    Link("network", "network and Ray", ("NET", "NCL", "RAY")),
    Link(
        "collectives", "collectives", (), "collectives", slow=True,
        needs=(_MACHINE, Need("network", ("NET", "NCL")), Need("network", ("RAY",), several_nodes)),
    ),
    Link("data", "cache and data", ("HFC", "DAT"), "dataset"),
    Link("config", "config", ("CFG",), "run"),
    Link("memory", "memory", ("MEM",), "memory"),
    Link(
        "rollout", "rollout engine", ("ROL",), "rollout", slow=True,
        needs=(
            _MACHINE,
            Need("collectives", (), _wide_engine),
            Need("data", ("HFC",), _from_hub),
            Need("config"),
            Need("memory", ("MEM004",)),
        ),
    ),
    Link(
        "smoke", "one training step", ("RUN",), "smoke", slow=True,
        needs=(
            _MACHINE, Need("network"), Need("collectives"), Need("data"), Need("config"), Need("memory"),
            Need("rollout"),
        ),
    ),
)  # fmt: skip
"""Config, data and memory are arithmetic and reading: they hold or break whatever the machine is like. MEM004: a KV
cache without room for one sequence, with which no engine starts; what else is too large shows in training only."""

NAMES = tuple(link.name for link in LINKS)
SLOW = tuple(link.name for link in LINKS if link.slow)
