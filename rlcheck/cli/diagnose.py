"""`rlcheck diagnose`: logs in, the cause out; confirmed by facts, and worded for the run's config, if given."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlcheck.cli.hydra_options import sorted_words
from rlcheck.cli.options import Format
from rlcheck.cli.output import put
from rlcheck.config import ConfigError, Settings, load_settings
from rlcheck.diagnose import signatures
from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.choice import chosen, require
from rlcheck.diagnose.condense import read_logs
from rlcheck.diagnose.model import Answer, CondensedLog, Diagnosis
from rlcheck.errors import UserError
from rlcheck.playbook import Library, PlaybookError
from rlcheck.redact import redact
from rlcheck.report.diagnosis import DiagnosisReport, best_of_each, make_report, render_diagnosis

if TYPE_CHECKING:  # they bring every probe, or every framework's keys; few calls need them
    from rlcheck.facts.document import Facts
    from rlcheck.facts.run import RunFacts

_CONFIRM = "--here holds this against this machine, --facts FILE against a record of `rlcheck collect` from another"
_CONFIG = "--config CONFIG words the settings above as overrides of the run's config"


@dataclass(frozen=True)
class DiagnoseRequest:
    """The options of one call, as in `rlcheck diagnose --help`."""

    words: tuple[str, ...] = ()
    follow: bool = False
    everything: bool = False
    facts: Path | None = None
    here: bool = False
    config: str = ""
    framework: str = "auto"
    format: Format = Format.TEXT
    output: Path | None = None
    strict: bool = False
    ignore: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    timeout_s: float | None = None
    verbose: bool = False
    ascii_only: bool = False


def run_diagnose(request: DiagnoseRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, or a log, a config or facts that cannot be read.
    """
    consultation = prepare(request)
    if request.follow:
        from rlcheck.cli.diagnose_follow import run_follow

        return run_follow(consultation)
    report = consultation.report(read_logs(consultation.logs, consultation.index))
    show(report, consultation.request)
    return report.exit_code


@dataclass(frozen=True)
class Consultation:
    """Everything that an answer needs besides the logs."""

    request: DiagnoseRequest
    logs: tuple[str, ...]
    index: signatures.Index
    library: Library
    run: RunFacts | None
    facts: tuple[Facts, ...] | None

    def report(self, logs: Sequence[CondensedLog]) -> DiagnosisReport:
        """What LOGS say."""
        request = self.request
        answer = diagnose(logs, self.index, self.library)
        answer, left_out = chosen(answer, request.select, request.ignore, self.library)
        if answer.diagnoses and (request.here or self.facts is not None):
            answer = self._confirmed(answer)
        if answer.diagnoses and self.run is not None:
            from rlcheck.diagnose.overrides import with_overrides

            answer = with_overrides(answer, self.run, self.library)
        report = make_report(answer, everything=request.everything, strict=request.strict, hints=self._hints(answer))
        return msgspec.structs.replace(report, left_out=left_out)

    def _confirmed(self, answer: Answer) -> Answer:
        from rlcheck.cli.env import make_context, show_waiting
        from rlcheck.diagnose.confirm import checks_of, confirm
        from rlcheck.doctor import summon
        from rlcheck.probes.gather import gather

        doctor = summon()
        checks = checks_of(answer, doctor.checks)
        facts = self.facts
        if facts is None:
            probes = doctor.probes_for(checks) if checks else ()
            facts = (gather(make_context("", False), probes, self.request.timeout_s, show_waiting),)
            if sys.stderr.isatty():
                sys.stderr.write("\r\x1b[K")
        return confirm(answer, facts, checks, self.library)

    def _hints(self, answer: Answer) -> tuple[str, ...]:
        """What other options would add to what is shown."""
        shown = best_of_each(answer.diagnoses)
        confirm = self.facts is None and not self.request.here and any(self._has_checks(found) for found in shown)
        config = self.run is None and any(fix.kind == "config" for found in shown for fix in found.fixes)
        return (*([_CONFIRM] if confirm else []), *([_CONFIG] if config else []))

    def _has_checks(self, found: Diagnosis) -> bool:
        try:
            return bool(self.library.get(found.id).checks)
        except PlaybookError:
            return False


def prepare(request: DiagnoseRequest) -> Consultation:
    """Read all that REQUEST names but the logs: an error in it must not come after a long reading.

    Raises:
        UserError: as `run_diagnose`.
    """
    _refuse_nonsense(request)
    settings = _settings()
    library = Library()
    for name in (*request.select, *request.ignore):
        require(name, library)
    files, overrides = sorted_words(request.words)
    if overrides and not request.config:
        raise UserError(f"{overrides[0]}: an override needs --config, and a file of that name does not exist")
    if not files and sys.stdin.isatty():
        raise UserError("give a LOG: a file, a directory of logs, or - for standard input")
    return Consultation(
        request=replace(request, strict=request.strict or settings.strict),
        logs=files or ("-",),
        index=signatures.load(),
        library=library,
        run=_run(request, overrides),
        facts=_facts(request),
    )


def show(report: DiagnosisReport, request: DiagnoseRequest) -> None:
    """Print or write the report, secrets removed.

    Raises:
        UserError: the output file cannot be written.
    """
    clean = redact(report, DiagnosisReport, os.environ)
    put(
        lambda out: render_diagnosis(
            clean, request.format.value, out, verbose=request.verbose, ascii_only=request.ascii_only
        ),
        request.output,
        utf8=request.format is not Format.TEXT,
    )


def _refuse_nonsense(request: DiagnoseRequest) -> None:
    if request.framework != "auto" and not request.config:
        raise UserError("--framework says what --config is of; give --config, too")
    if request.facts is not None and request.here:
        raise UserError("--facts and --here: give one of them, for the machine that the log is from")
    inputs = [*request.words, str(request.facts or ""), request.config]
    if inputs.count("-") > 1:
        raise UserError("standard input can be read once: it is given as more than one of LOG, --facts and --config")
    if request.follow and request.format is not Format.TEXT:
        raise UserError(f"--follow prints text as it goes on; it has no --format {request.format.value}")
    if request.follow and request.output is not None:
        raise UserError("--follow prints as it goes on; leave --output out, or send standard output to the file")


def _settings() -> Settings:
    try:
        return load_settings(Path.cwd())
    except ConfigError as error:
        raise UserError(str(error)) from None
    except OSError:  # the working directory is gone: no settings there
        return Settings()


def _run(request: DiagnoseRequest, overrides: tuple[str, ...]) -> RunFacts | None:
    if not request.config:
        return None
    from rlcheck.runs.errors import ReadError
    from rlcheck.runs.read import read_run

    try:
        return read_run(request.config, overrides, framework=request.framework)
    except ReadError as error:
        raise UserError(f"--config: {error}") from None


def _facts(request: DiagnoseRequest) -> tuple[Facts, ...] | None:
    if request.facts is None:
        return None
    from rlcheck.cli.active import recorded

    return recorded(request.facts)
