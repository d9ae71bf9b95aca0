"""What `rlcheck ray` and `rlcheck nccl` share: options, judging what was measured, keeping a record of it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlcheck import doctor as clinic
from rlcheck.checks import FAMILIES
from rlcheck.cli.app import UserError
from rlcheck.cli.env import read_facts, show, show_waiting
from rlcheck.cli.options import Format
from rlcheck.config import ConfigError, Settings, load_settings
from rlcheck.facts.document import Facts, FactsError, encode
from rlcheck.probes.context import ProbeContext
from rlcheck.probes.gather import gather
from rlcheck.redact import redact_bytes
from rlcheck.report.model import Report

_TICK_S = 0.5
_SHOWN = 4


@dataclass(frozen=True)
class ReportRequest:
    """The options that say what becomes of the report, as in `--help`."""

    format: Format = Format.TEXT
    output: Path | None = None
    strict: bool = False
    ignore: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    timeout_s: float | None = None
    facts: Path | None = None
    record: Path | None = None
    python: str = ""
    verbose: bool = False
    ascii_only: bool = False


def judge_and_show(
    request: ReportRequest,
    nodes: Sequence[Facts],
    families: tuple[str, ...],
    command: str,
    started: float,
    sections: tuple[str, ...] = (),
    *,
    alone: bool = False,
) -> int:
    """Judge the facts, show the report, write the record, and return the exit code; arguments as for `judged`.

    Raises:
        UserError: an option or a settings file that cannot be used.
    """
    report = judged(request, nodes, families, command, started, sections, alone=alone)
    show(report, request.format, request.output, request.verbose, request.ascii_only)
    if request.record is not None:
        write_record(request.record, nodes)
    return report.exit_code


def judged(
    request: ReportRequest,
    nodes: Sequence[Facts],
    families: tuple[str, ...],
    command: str,
    started: float,
    sections: tuple[str, ...] = (),
    *,
    alone: bool = False,
) -> Report:
    """The report on the facts.

    Args:
        request: the options.
        nodes: the facts documents; what was measured is in the first.
        families: what is checked when neither options nor settings select anything.
        command: the rlcheck command, for the report's head.
        started: `time.perf_counter()` at the start of the command.
        sections: checks on these sections are made, too, whatever their family.
        alone: only `families` and what the options name are imported, and the settings' selection, which is meant
            for machines, does not count: for commands that must answer at once.

    Raises:
        UserError: an option or a settings file that cannot be used.
    """
    try:
        settings = load_settings(Path(_working_directory()))
        doctor = clinic.summon(_named_families(families, request, settings)) if alone else clinic.summon()
        usual = (*families, *_checks_on(doctor, sections))
        return clinic.examine(
            doctor,
            tuple(nodes),
            doctor.select(request.select or (() if alone else settings.select) or usual),
            settings,
            command=command,
            ignore=request.ignore,
            named=request.select,
            strict=request.strict,
            started=started,
        )
    except (ConfigError, clinic.SelectionError) as error:
        raise UserError(str(error)) from None


def own_facts(
    context: ProbeContext, request: ReportRequest, families: tuple[str, ...], sections: tuple[str, ...]
) -> Facts:
    """The facts of this machine that the checks of this call read, and `sections` besides.

    Raises:
        UserError: a selected check does not exist.
    """
    doctor = clinic.summon()
    try:
        wanted = {probe.section for probe in doctor.probes_for(doctor.select(request.select or families))}
    except clinic.SelectionError as error:
        raise UserError(str(error)) from None
    probes = [probe for probe in doctor.probes if probe.section in {*wanted, *sections}]
    return gather(context, probes, request.timeout_s)


def _named_families(families: tuple[str, ...], request: ReportRequest, settings: Settings) -> tuple[str, ...]:
    """`families`, and those of all checks that the user names: what is named must be known."""
    named = {name[:3] for name in (*request.select, *request.ignore, *(entry.id for entry in settings.ignore))}
    return tuple(family for family in FAMILIES if family in named or family in families)


def _checks_on(doctor: clinic.Doctor, sections: tuple[str, ...]) -> list[str]:
    return [c.id for c in doctor.checks if any(need.partition(".")[0] in sections for need in c.needs)]


def recorded(path: Path) -> tuple[Facts, ...]:
    """The documents of `--facts`.

    Raises:
        UserError: the file cannot be used.
    """
    try:
        return read_facts(path)
    except FactsError as error:
        raise UserError(str(error)) from None


def write_record(path: Path, nodes: Sequence[Facts]) -> None:
    """Keep the facts for `--facts`, secrets removed.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.write_bytes(redact_bytes(encode(tuple(nodes)), os.environ))
    except OSError as error:
        raise UserError(f"--record {path}: {error.strerror or error}") from None
    sys.stderr.write(f"wrote {path}; secrets are left out, but read it before you send it\n")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


@dataclass
class Waiting:
    """Says on standard error, twice a second and only to a terminal, what the command waits for, and for how long."""

    what: tuple[str, ...] = ()
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._tick, daemon=True, name="waiting")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * _TICK_S)
            sys.stderr.write("\r\x1b[K")

    def on(self, *what: str) -> None:
        """What is awaited from now on."""
        self.what = what

    def on_names(self, names: tuple[str, ...]) -> None:
        """What is awaited from now on, as a list; a long one is cut."""
        self.what = (*names[:_SHOWN], f"{len(names) - _SHOWN} more") if len(names) > _SHOWN else names

    def _tick(self) -> None:
        started = time.monotonic()
        while not self._stop.wait(_TICK_S):
            if self.what:
                show_waiting((*self.what, f"{time.monotonic() - started:.0f} s"))
