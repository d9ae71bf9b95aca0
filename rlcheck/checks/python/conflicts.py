"""One analysis of the declared requirements, shared by the checks that report different parts of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rlcheck.checks.python.common import environment
from rlcheck.checks.python.compat import compat, stack_rank
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution, PythonFacts
from rlcheck.requirements import Demand, admits, by_package, common, demands, installed_by_name, version


class Conflict(msgspec.Struct, frozen=True):
    """A package in a version that another package rejects.

    `remedy` is a requirement that satisfies everyone who asked in METADATA; None when no version can.
    """

    package: str
    version: str
    violated: tuple[Demand, ...]
    others: tuple[Demand, ...]
    remedy: str | None


class Analysis(msgspec.Struct, frozen=True):
    """What came out. `missing` are demands on distributions that are not installed, presumed extras left out."""

    installed: dict[str, Distribution]
    in_force: tuple[Demand, ...]
    conflicts: tuple[Conflict, ...]
    extra_conflicts: tuple[Conflict, ...]
    missing: tuple[Demand, ...]
    invalid: tuple[tuple[str, str], ...]
    presumed_extras: tuple[tuple[str, str], ...]

    @property
    def num_demands(self) -> int:
        """How many requirements are in force."""
        return len(self.in_force)

    @property
    def num_owners(self) -> int:
        """How many distributions were read."""
        return sum(distribution.requires_read for distribution in self.installed.values())

    def requirement_for(self, package: str) -> str:
        """What to install for a package so that all who ask for it are content, as far as one version can be."""
        wanted = [d.requirement.specifier for d in self.in_force if d.requirement.name == package and not d.presumed]
        return package + (common(wanted) or "")


_last: tuple[PythonFacts, Analysis] | None = None


def analysis(facts: Facts) -> Analysis:
    """The analysis of one environment; the one made last is kept, since several checks ask in turn."""
    global _last
    python = environment(facts)
    kept = _last
    if kept is not None and kept[0] is python:
        return kept[1]
    made = _analyse(python)
    _last = (python, made)
    return made


def _analyse(python: PythonFacts) -> Analysis:
    installed = installed_by_name(python)
    presumed = tuple(
        (rule.framework, rule.extra)
        for rule in compat().engine_extras
        if rule.framework in installed and rule.engine in installed
    )
    found = demands(python, presumed)
    ours = tuple(demand for demand in found.in_force if not reported_elsewhere(demand))
    packages = by_package(ours)
    conflicts = _sorted(c for name in packages if (c := _conflict(installed, name, packages[name], presumed=False)))
    taken = {conflict.package for conflict in conflicts}
    extra = _sorted(
        c for name in packages if name not in taken and (c := _conflict(installed, name, packages[name], presumed=True))
    )
    lacking = tuple(d for d in ours if d.requirement.name not in installed and not d.presumed)
    return Analysis(installed, found.in_force, conflicts, extra, lacking, found.invalid, presumed)


def reported_elsewhere(demand: Demand) -> bool:
    """Whether a pin belongs to a check that knows more: torch's CUDA wheels and Triton, torchvision's torch."""
    target = demand.requirement.name
    if demand.owner in ("torch", "cuda-toolkit"):
        return target.startswith(("nvidia-", "cuda-")) or target == "triton"
    return target == "torch" and any(row.package == demand.owner for row in compat().companions)


def _conflict(
    installed: dict[str, Distribution], name: str, wanted: Iterable[Demand], presumed: bool
) -> Conflict | None:
    """The conflict over one package among demands in METADATA, or among those of presumed extras."""
    have = installed.get(name)
    if have is None or version(have.version) is None:
        return None
    violated = tuple(d for d in wanted if d.presumed == presumed and not admits(d.requirement.specifier, have.version))
    if not violated:
        return None
    others = tuple(d for d in wanted if d.requirement.specifier and d not in violated)
    counted = [d.requirement.specifier for d in (*violated, *others) if presumed or not d.presumed]
    together = common(counted)
    return Conflict(name, have.version, violated, others, None if together is None else f"{name}{together}")


def _sorted(found: Iterable[Conflict]) -> tuple[Conflict, ...]:
    """Root causes first: in the stack's order of importance, then by how many object."""
    rank = stack_rank()
    return tuple(sorted(found, key=lambda c: (rank.get(c.package, len(rank)), -len(c.violated), c.package)))
