"""The links of the chain, in the order in which they break, and which failures leave nothing to try further on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlcheck.facts.config import ConfigFacts
from rlcheck.families import FAMILIES


def _always(run: ConfigFacts) -> bool:
    del run
    return True


def several_nodes(run: ConfigFacts) -> bool:
    """Whether the run spans machines."""
    return run.spec.nodes > 1 or run.spec.rollout_nodes > 0


def _wide_engine(run: ConfigFacts) -> bool:
    """Whether one engine spans GPUs, so that it needs collectives by itself."""
    rollout = run.spec.rollout
    return rollout.tensor_parallel * rollout.pipeline_parallel * rollout.expert_parallel > 1


def _from_hub(run: ConfigFacts) -> bool:
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
    when: Callable[[ConfigFacts], bool] = _always


@dataclass(frozen=True)
class Link:
    """One link.

    section: of the facts that it measures; checks that need it belong to it whatever their family.
    slow: it takes longer than the start of a run should.
    """

    name: str
    title: str
    section: str = ""
    needs: tuple[Need, ...] = ()
    slow: bool = False

    @property
    def families(self) -> tuple[str, ...]:
        """Families whose checks belong to it: those that name it in `rlcheck.families`."""
        return tuple(family.id for family in FAMILIES.values() if family.link == self.name)


_MACHINE = Need("machine", tuple(family.id for family in FAMILIES.values() if family.link == "machine"))

LINKS: tuple[Link, ...] = (
    Link("machine", "this machine"),
    Link("network", "network and Ray"),
    Link(
        "collectives", "collectives", "collectives", slow=True,
        needs=(_MACHINE, Need("network", ("NET", "NCL")), Need("network", ("RAY",), several_nodes)),
    ),
    Link("data", "cache and data", "data"),
    Link("config", "config", "config"),
    Link("memory", "memory", "memory"),
    Link(
        "rollout", "rollout engine", "rollout", slow=True,
        needs=(
            _MACHINE,
            Need("collectives", (), _wide_engine),
            Need("data", ("HFC",), _from_hub),
            Need("config"),
            Need("memory", ("MEM004",)),
        ),
    ),
    Link(
        "smoke", "one training step", "smoke", slow=True,
        needs=(
            _MACHINE, Need("network"), Need("collectives"), Need("data"), Need("config"), Need("memory"),
            Need("rollout"),
        ),
    ),
    Link(
        "rehearse", "a kill and a resume", "rehearsal", slow=True,
        needs=(
            _MACHINE, Need("network"), Need("collectives"), Need("data"), Need("config"), Need("memory"),
            Need("rollout"), Need("smoke"),
        ),
    ),
)  # fmt: skip
"""Config, data and memory are arithmetic and reading: they hold or break whatever the machine is like. MEM004: a KV
cache without room for one sequence, with which no engine starts; what else is too large shows in training only."""

NAMES = tuple(link.name for link in LINKS)
SLOW = tuple(link.name for link in LINKS if link.slow)
