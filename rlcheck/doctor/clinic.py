"""One run of the doctor: which checks and probes, the facts, the findings, the report."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from rlcheck import __version__, judging
from rlcheck.check import Check
from rlcheck.checks import builtin_checks, family_checks
from rlcheck.doctor.plugins import Plugin, load_plugins
from rlcheck.doctor.run_fixes import in_own_words
from rlcheck.doctor.settings import Settings, waivers
from rlcheck.errors import UserError
from rlcheck.facts.base import MissingKind, why_missing
from rlcheck.facts.document import Facts
from rlcheck.families import FAMILIES, MEASURED
from rlcheck.finding import ACTIONS, Finding, Next, Report, Waiver, exit_code, next_of, summarize
from rlcheck.measure.machine.registry import PROBES, Probe
from rlcheck.playbook import DIRECTORY, Library
from rlcheck.report.by_family import exhibits, family_lines


class SelectionError(UserError):
    """An ID or family that does not exist. The message names the nearest one."""


class Doctor(msgspec.Struct, frozen=True):
    """The checks, probes and playbooks of this installation, plug-ins included."""

    checks: tuple[Check, ...]
    probes: tuple[Probe, ...]
    families: dict[str, str]
    library: Library
    notes: tuple[str, ...] = ()

    def select(self, wanted: Iterable[str]) -> tuple[Check, ...]:
        """The checks that `wanted` names by ID or family (all, when it names none).

        Raises:
            SelectionError: a name that is neither.
        """
        names = tuple(map(self.require, wanted))
        return tuple(c for c in self.checks if not names or c.id in names or c.family in names)

    def require(self, name: str) -> str:
        """Return the check or family that `name` is, whatever its case.

        Raises:
            SelectionError: it is neither.
        """
        known = {*self.families, *(check.id for check in self.checks)}
        if (found := name if name in known else name.upper()) not in known:
            # An ID whose number was typed without its zeros, before one with other digits.
            family, digits = re.sub(r"\d", "", name.upper()), re.sub(r"\D", "", name)
            same = [f"{family}{digits:0>3}"] if f"{family}{digits:0>3}" in known else []
            near = same or difflib.get_close_matches(name.upper(), sorted(known), 1)
            hint = f"; did you mean {near[0]}?" if near else "; `rlcheck list` names them all"
            raise SelectionError(f"no check or family {name!r}{hint}")
        return found

    def probes_for(self, checks: Iterable[Check]) -> tuple[Probe, ...]:
        """The probes whose sections these checks or the family headlines read."""
        sections = {"platform", "environ"}
        for check in checks:
            for need in check.needs:
                root, _, rest = need.partition(".")
                sections.add(rest.partition(".")[0] if root == "plugins" else root)
        return tuple(probe for probe in self.probes if probe.section in sections)


def summon(families: tuple[str, ...] = tuple(FAMILIES)) -> Doctor:
    """The doctor with the checks of `families` and whatever plug-ins bring."""
    plugins, notes = load_plugins()
    checks = builtin_checks() if len(families) == len(FAMILIES) else _checks_of(families)
    merged, check_clashes = _merge(checks, plugins)
    probes, probe_clashes = _merge_probes(plugins)
    directories = (DIRECTORY, *(plugin.playbooks for plugin in plugins if plugin.playbooks is not None))
    titles = {id: family.title for id, family in FAMILIES.items()}
    for plugin in plugins:
        titles = {**plugin.families, **titles}
    return Doctor(
        checks=merged,
        probes=probes,
        families={**titles, **{c.family: titles.get(c.family, c.family) for c in merged}},
        library=Library(tuple(Path(directory) for directory in directories)),
        notes=notes + check_clashes + probe_clashes,
    )


def examine(
    doctor: Doctor,
    nodes: tuple[Facts, ...],
    checks: tuple[Check, ...],
    settings: Settings,
    *,
    command: str,
    ignore: tuple[str, ...] = (),
    named: tuple[str, ...] = (),
    strict: bool = False,
    started: float,
) -> Report:
    """Judge the facts of every node and make the report.

    Args:
        doctor: see `summon`.
        nodes: the facts documents.
        checks: what to check.
        settings: of the user's settings file.
        command: the rlcheck command, for the report's head.
        ignore: IDs waived on the command line.
        named: IDs that the user asked for; such a check is made even where nothing was measured for it.
        strict: warnings and what could not run count as failures.
        started: `time.perf_counter()` at the start of the command.

    Raises:
        SelectionError: an ignored ID does not exist.
    """
    ignored, notes = waived(doctor, settings, ignore)
    found = tuple(
        finding
        for facts in nodes
        for finding in in_own_words(
            judging.judge(facts, measured(checks, facts, named), doctor.library, ignored), facts
        )
    )
    return make_report(doctor, nodes, found, command=command, strict=strict or settings.strict, started=started,
                       notes=notes)  # fmt: skip


def waived(doctor: Doctor, settings: Settings, ignore: tuple[str, ...]) -> tuple[dict[str, Waiver], tuple[str, ...]]:
    """The waivers of command line and settings, by ID or family; and notes on those that have expired.

    Raises:
        SelectionError: an ignored ID does not exist.
    """
    ignored, notes = waivers(settings, ignore, date.today())
    return {doctor.require(id): waiver for id, waiver in ignored.items()}, notes


def make_report(
    doctor: Doctor,
    nodes: tuple[Facts, ...],
    found: tuple[Finding, ...],
    *,
    command: str,
    strict: bool,
    started: float,
    notes: tuple[str, ...] = (),
) -> Report:
    """The report of what was found; arguments as for `examine`."""
    ordered = judging.in_order(found, tuple(doctor.families))
    summary = summarize(ordered)
    return Report(
        version=__version__,
        command=command,
        collected_at=nodes[0].collected_at if nodes else "",
        nodes=tuple(facts.node for facts in nodes),
        duration_ms=round((time.perf_counter() - started) * 1e3, 1),
        strict=strict,
        exit_code=exit_code(summary, strict),
        next=next_of(ordered, strict),
        summary=summary,
        families=family_lines(nodes, ordered, doctor.families),
        exhibits=exhibits(nodes),
        checks=ordered,
        notes=doctor.notes + notes,
        data=_computed(nodes),
    )


def fail_if_python_missing(report: Report, facts: Facts, python: str) -> Report:
    """Return the report, failed when the environment that `--python` names could not be examined.

    A typing error in a job script must not look like a healthy environment.
    """
    reason = why_missing(facts.python)
    if not python or reason is None or reason.kind is MissingKind.NOT_COLLECTED:
        return report
    return failed(report, f"--python {python} could not be examined: {reason.reason}")


def fail_if_hosts_missing(report: Report, without: Mapping[str, str]) -> Report:
    """Return the report, failed when a machine of `--hosts` gave no facts: it must not look healthy."""
    notes = [f"{name} gave no facts: {reason}" for name, reason in without.items()]
    return failed(report, *notes, next=Next("restart-without", tuple(without), "; ".join(notes)))


def failed(report: Report, *notes: str, next: Next | None = None) -> Report:
    """Return the report with exit code 1 and the notes that say why; unchanged without any.

    NEXT is what to do because of them (a fix), where the report says nothing graver.
    """
    if not notes:
        return report
    found = report.exit_code != 0  # what could not be judged alone is no reason to hide who gave no facts
    mine = next or Next("fix", why=notes[0])
    graver = found and ACTIONS.index(report.next.action) <= ACTIONS.index(mine.action)
    return msgspec.structs.replace(
        report, exit_code=1, notes=(*report.notes, *notes), next=report.next if graver else mine
    )


def _computed(nodes: tuple[Facts, ...]) -> dict[str, Any]:
    """What programs read of the report besides its findings."""
    memory = next((facts.memory.value for facts in nodes if facts.memory.value is not None), None)
    run = next((facts.config.value for facts in nodes if facts.config.value is not None), None)
    computed: dict[str, Any] = {}
    if memory is not None:
        from rlcheck.measure.memory.summary import data

        computed["memory"] = data(memory)
    if run is not None:
        from rlcheck.report.topics.config import config_data

        computed["config"] = config_data(run)
    return computed


def measured(checks: Iterable[Check], facts: Facts, named: Iterable[str] = ()) -> tuple[Check, ...]:
    """`checks` without those on sections that another command measures and that these facts do not have.

    A check whose ID is in `named` stays, so that it says what it lacks.
    """
    lacking = {section for section in MEASURED if why_missing(getattr(facts, section)) is not None}
    wanted = set(named)
    return tuple(
        check
        for check in checks
        if check.id in wanted or not any(need.partition(".")[0] in lacking for need in check.needs)
    )


def _checks_of(families: tuple[str, ...]) -> tuple[Check, ...]:
    return tuple(check for family in families for check in family_checks(family))


def _merge(checks: tuple[Check, ...], plugins: tuple[Plugin, ...]) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Add the plug-ins' checks; an ID that is taken is left out and noted."""
    merged = {check.id: check for check in checks}
    notes: list[str] = []
    for plugin in plugins:
        for check in plugin.checks:
            if check.id in merged:
                notes.append(f"plug-in {plugin.name}: check ID {check.id} is taken; that check is left out")
            else:
                merged[check.id] = check
    return tuple(merged.values()), tuple(notes)


def _merge_probes(plugins: tuple[Plugin, ...]) -> tuple[tuple[Probe, ...], tuple[str, ...]]:
    """Add the plug-ins' probes; a section that is taken is left out and noted."""
    merged = {probe.section: probe for probe in PROBES}
    notes: list[str] = []
    for plugin in plugins:
        for probe in plugin.probes:
            if probe.section in merged:
                notes.append(f"plug-in {plugin.name}: section {probe.section} is taken; that probe is left out")
            else:
                merged[probe.section] = probe
    return tuple(merged.values()), tuple(notes)
