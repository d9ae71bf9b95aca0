"""The front door: how a command that ends in a report is run, whatever it measures."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from rlcheck.check import Check
from rlcheck.cli.facts_files import write_record
from rlcheck.cli.output import ended, show
from rlcheck.cli.requests.report import ReportRequest
from rlcheck.doctor import clinic
from rlcheck.doctor.settings import Settings, settings_here
from rlcheck.facts.document import Facts
from rlcheck.families import FAMILIES, judged_by
from rlcheck.finding import Report
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.gather import gather


class Examination(msgspec.Struct, frozen=True):
    """One call of a command: what it was asked, and the doctor who answers.

    command: the rlcheck command, for the report's head. families: what is checked when neither options nor settings
    select anything; none: all. alone: the settings' selection, which is meant for machines, does not count. started:
    `time.perf_counter()` at its start.
    """

    request: ReportRequest
    command: str
    families: tuple[str, ...]
    alone: bool
    settings: Settings
    doctor: clinic.Doctor
    started: float

    def checks(self, sections: tuple[str, ...] = ()) -> tuple[Check, ...]:
        """Return the checks that are wanted; those on SECTIONS belong to the usual ones, whatever their family.

        Raises:
            SelectionError: a name that is neither a check nor a family.
        """
        on = [c.id for c in self.doctor.checks if any(need.partition(".")[0] in sections for need in c.needs)]
        selected = self.request.select or (() if self.alone else self.settings.select)
        return self.doctor.select(selected or (*self.families, *on))

    def own_facts(self, context: ProbeContext, sections: tuple[str, ...]) -> Facts:
        """Return the facts of this machine that the checks of this call read, and SECTIONS besides.

        Raises:
            SelectionError: a selected check does not exist.
        """
        checks = self.doctor.select(self.request.select or self.families)
        wanted = {*(probe.section for probe in self.doctor.probes_for(checks)), *sections}
        probes = [probe for probe in self.doctor.probes if probe.section in wanted]
        return gather(context, probes, self.request.timeout_s)

    def judge(self, nodes: Sequence[Facts], sections: tuple[str, ...] = ()) -> Report:
        """Return the report on the facts; what was measured is in the first document. SECTIONS as for `checks`.

        Raises:
            SelectionError: a name that is neither a check nor a family.
        """
        return clinic.examine(
            self.doctor,
            tuple(nodes),
            self.checks(sections),
            self.settings,
            command=self.command,
            ignore=self.request.ignore,
            named=self.request.select,
            strict=self.request.strict,
            started=self.started,
        )

    def conclude(self, nodes: Sequence[Facts], sections: tuple[str, ...] = ()) -> int:
        """Judge the facts and end; arguments and errors as for `judge` and `end`."""
        return self.end(self.judge(nodes, sections), nodes)

    def end(self, report: Report, nodes: Sequence[Facts]) -> int:
        """Show the report, write the record, and return the exit code.

        Raises:
            UserError: a file that cannot be written.
        """
        show(report, self.request)
        if self.request.record is not None:
            write_record(self.request.record, nodes)
        return ended(report, self.request)


def begin(
    request: ReportRequest, command: str, *, alone: bool = False, knows: tuple[str, ...] | None = None
) -> Examination:
    """Read the settings and summon the doctor; arguments as for `Examination`.

    Args:
        request: the options.
        command: see `Examination`; its families are those of `rlcheck.families`.
        alone: see `Examination`; of the checks, only its families and what the options name are imported, for commands
            that must answer at once.
        knows: families of which alone there can be facts; others are imported only where options name them. None: all.

    Raises:
        ConfigError: a settings file that cannot be used.
    """
    started = time.perf_counter()
    settings, families = settings_here(), judged_by(command)
    wanted = families if alone else knows
    doctor = clinic.summon() if wanted is None else clinic.summon(_named(wanted, request, settings))
    return Examination(request, command, families, alone, settings, doctor, started)


def _named(families: tuple[str, ...], request: ReportRequest, settings: Settings) -> tuple[str, ...]:
    """`families`, and those of all checks that the user names: what is named must be known."""
    named = {
        name[:3].upper()
        for name in (*request.select, *request.ignore, *settings.select, *(entry.id for entry in settings.ignore))
    }
    return tuple(family for family in FAMILIES if family in named or family in families)
