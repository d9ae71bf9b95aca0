"""`rlcheck env`: collect or read facts, judge them, show the report, apply safe fixes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rlcheck import doctor as clinic
from rlcheck import fixes
from rlcheck.cli.app import UserError
from rlcheck.cli.options import Format
from rlcheck.cli.output import put
from rlcheck.config import ConfigError, Settings, load_settings
from rlcheck.facts.base import MissingKind, why_missing
from rlcheck.facts.document import Facts, FactsError, decode
from rlcheck.probes.context import ProbeContext
from rlcheck.probes.gather import gather
from rlcheck.probes.registry import Probe
from rlcheck.redact import redact
from rlcheck.report.model import Report
from rlcheck.report.render import render

_FACTS_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class EnvRequest:
    """The options of one call, as in `rlcheck env --help`."""

    format: Format = Format.TEXT
    output: Path | None = None
    strict: bool = False
    ignore: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    timeout_s: float | None = None
    facts: Path | None = None
    hosts: str = ""
    python: str = ""
    deep: bool = False
    fix: bool = False
    dry_run: bool = False
    yes: bool = False
    verbose: bool = False
    ascii_only: bool = False


def run_env(request: EnvRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, or a file that cannot be used.
    """
    started = time.perf_counter()
    _refuse_nonsense(request)
    without: dict[str, str] = {}
    try:
        settings = load_settings(Path(_working_directory()))
        doctor = clinic.summon()
        checks = doctor.select(request.select or settings.select)
        probes = doctor.probes_for(checks)
        context = make_context("" if request.hosts else request.python, request.deep)
        nodes, without = _nodes(request, context, probes)
        report = _examine(doctor, nodes, checks, settings, request, started)
        if request.fix:
            plan = fixes.plan(report)
            notes = fixes.carry_out(plan, dry_run=request.dry_run, yes=request.yes)
            if notes:
                again = (gather(fixes.context_after(plan, context), probes, request.timeout_s, show_waiting),)
                after = _examine(doctor, again, checks, settings, request, started)
                report = fixes.with_changes(report, after, notes)
    except (ConfigError, FactsError, clinic.SelectionError, fixes.FixError) as error:
        raise UserError(str(error)) from None
    report = without_the_asked_for(report, nodes[0], "" if request.hosts else request.python)
    report = without_hosts(report, without)
    show(report, request.format, request.output, request.verbose, request.ascii_only)
    return report.exit_code


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed under our feet: no settings there
        return "/"


def make_context(python: str, deep: bool) -> ProbeContext:
    """The machine, and the Python that `--python` names.

    Raises:
        UserError: there is no such interpreter or environment.
    """
    return ProbeContext(python=interpreter(python), deep=deep)


def interpreter(python: str) -> tuple[str, ...]:
    """The command line that starts the Python to examine; empty for the doctor's own.

    Raises:
        UserError: a directory without bin/python, or a path that does not exist.
    """
    if not python:
        return ()
    path = Path(python).expanduser()
    if os.path.isdir(path):
        for name in ("bin/python", "bin/python3"):
            if os.access(path / name, os.X_OK):
                return (str(path / name),)
        raise UserError(
            f"--python {python}: a directory without bin/python; name a venv, a conda environment or an interpreter"
        )
    try:
        words = (str(path),) if os.path.exists(path) else tuple(shlex.split(python))
    except ValueError as error:
        raise UserError(f"--python {python}: {error}") from None
    if not words:
        raise UserError("--python: names no interpreter")
    if os.sep in words[0] and not os.access(words[0], os.X_OK):
        raise UserError(f"--python {python}: no such interpreter; name one that can be executed")
    return words


def without_the_asked_for(report: Report, facts: Facts, python: str) -> Report:
    """The report, failed when the environment that `--python` names could not be examined: a typing error in a job
    script must not look like a healthy environment."""
    reason = why_missing(facts.python)
    if not python or reason is None or reason.kind is MissingKind.NOT_COLLECTED:
        return report
    note = f"--python {python} could not be examined: {reason.reason}"
    return msgspec.structs.replace(report, exit_code=1, notes=(*report.notes, note))


def without_hosts(report: Report, without: dict[str, str]) -> Report:
    """The report, failed when a machine of `--hosts` gave no facts: it must not look healthy."""
    if not without:
        return report
    notes = tuple(f"{name} gave no facts: {reason}" for name, reason in without.items())
    return msgspec.structs.replace(report, exit_code=1, notes=(*report.notes, *notes))


def show_waiting(sections: tuple[str, ...]) -> None:
    """Say on standard error what is still awaited, when somebody is looking."""
    if sys.stderr.isatty():
        line = f"waiting for: {', '.join(sections)}"
        # A longer line would go on below, where it cannot be taken away.
        sys.stderr.write(f"\r\x1b[K{line[: max(20, shutil.get_terminal_size().columns - 1)]}")
        sys.stderr.flush()


def show(report: Report, format: Format, output: Path | None, verbose: bool, ascii_only: bool) -> None:
    """Print or write the report, secrets removed.

    Raises:
        UserError: the output file cannot be written.
    """
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    clean = redact(report, Report, os.environ)
    put(
        lambda out: render(clean, format.value, out, verbose=verbose, ascii_only=ascii_only),
        output,
        utf8=format is not Format.TEXT,
    )


def _refuse_nonsense(request: EnvRequest) -> None:
    if request.facts is not None and (request.fix or request.python or request.deep or request.hosts):
        raise UserError(
            "--facts judges another machine's record; --fix, --python, --deep and --hosts need the machine itself"
        )
    if request.hosts and (request.fix or request.deep):
        raise UserError("--hosts examines other machines; --fix and --deep are for this one alone")
    if (request.dry_run or request.yes) and not request.fix:
        raise UserError("--dry-run and --yes go with --fix")


def _nodes(
    request: EnvRequest, context: ProbeContext, probes: tuple[Probe, ...]
) -> tuple[tuple[Facts, ...], dict[str, str]]:
    """The documents to judge, and the hosts that there are none of, with the reasons."""
    if request.hosts:
        from rlcheck.cli.active import Waiting
        from rlcheck.cluster.boards import facts_of_hosts

        with Waiting() as waiting:
            return facts_of_hosts(request.hosts, request.python, waiting)
    if request.facts is None:
        return (gather(context, probes, request.timeout_s, show_waiting),), {}
    return read_facts(request.facts), {}


def read_facts(path: Path) -> tuple[Facts, ...]:
    """The documents in a facts file; `-` is standard input.

    Raises:
        UserError: the file cannot be read.
        FactsError: it is no facts file.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(_FACTS_LIMIT_BYTES)
        else:
            with open(path, "rb") as file:
                data = file.read(_FACTS_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"--facts {path}: {getattr(error, 'strerror', None) or error}") from None
    return decode(data, str(path))


def _examine(
    doctor: clinic.Doctor,
    nodes: tuple[Facts, ...],
    checks: tuple[clinic.Check, ...],
    settings: Settings,
    request: EnvRequest,
    started: float,
) -> Report:
    return clinic.examine(
        doctor,
        nodes,
        checks,
        settings,
        command="env",
        ignore=request.ignore,
        named=request.select,
        strict=request.strict,
        started=started,
    )
