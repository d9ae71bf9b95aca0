"""What `rlcheck diagnose` needs besides the logs, and the answer that it then gives on them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from rlcheck.cli.hydra_options import sorted_words
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.requests.answers import DiagnoseRequest
from rlcheck.cli.requests.report import Format
from rlcheck.cli.waiting import clear_line, show_waiting
from rlcheck.diagnose import signatures
from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.model import Answer, CondensedLog, Diagnosis
from rlcheck.diagnose.source.installed import Environment, environment
from rlcheck.doctor.log_choice import chosen, require
from rlcheck.doctor.settings import settings_here
from rlcheck.errors import UserError
from rlcheck.playbook import Library, PlaybookError
from rlcheck.report.diagnosis.report import DiagnosisReport, best_of_each, make_report

if TYPE_CHECKING:  # they bring every probe, or every framework's keys; few calls need them
    from rlcheck.diagnose.hang.find import Found
    from rlcheck.facts.config import ConfigFacts
    from rlcheck.facts.document import Facts

_CONFIRM = "--here holds this against this machine, --facts FILE against a record of `rlcheck collect` from another"
_CONFIG = "--config CONFIG words the settings above as overrides of the run's config"


@dataclass(frozen=True)
class Consultation:
    """Everything that an answer needs besides the logs."""

    request: DiagnoseRequest
    logs: tuple[str, ...]
    index: signatures.Index
    library: Library
    run: ConfigFacts | None
    facts: tuple[Facts, ...] | None
    sources: Environment

    def report(self, logs: Sequence[CondensedLog], dumps: Found | None = None) -> DiagnosisReport:
        """What LOGS say, and what DUMPS of the ranks beside them."""
        request = self.request
        answer = diagnose(logs, self.index, self.library, self.sources)
        if dumps is not None:
            answer = msgspec.structs.replace(
                answer, hang=dumps.hang, dumps=dumps.read, notes=(*answer.notes, *dumps.notes)
            )
        answer, left_out = chosen(answer, request.select, request.ignore, self.library)
        if answer.diagnoses and (request.here or self.facts is not None):
            answer = self._confirmed(answer)
        if answer.diagnoses and self.run is not None:
            from rlcheck.doctor.config_fixes import with_overrides

            answer = with_overrides(answer, self.run, self.library)
        report = make_report(answer, everything=request.everything, strict=request.strict, hints=self._hints(answer))
        return msgspec.structs.replace(report, left_out=left_out)

    def _confirmed(self, answer: Answer) -> Answer:
        from rlcheck.cli.interpreter import make_context
        from rlcheck.diagnose.confirm import checks_of, confirm
        from rlcheck.doctor.clinic import summon
        from rlcheck.measure.machine.gather import gather

        doctor = summon()
        checks = checks_of(answer, doctor.checks)
        facts = self.facts
        if facts is None:
            probes = doctor.probes_for(checks) if checks else ()
            facts = (gather(make_context("", False), probes, self.request.timeout_s, show_waiting),)
            clear_line()
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
        UserError: options that do not go together, or a config or facts that cannot be read.
    """
    _refuse_nonsense(request)
    settings = settings_here()
    library = Library()
    for name in (*request.select, *request.ignore):
        require(name, library)
    files, overrides = sorted_words(request.words)
    if overrides and not request.config:
        raise UserError(f"{overrides[0]}: an override needs --config, and a file of that name does not exist")
    if not files and sys.stdin.isatty():
        raise UserError("give a LOG: a file, a directory of logs, or - for standard input")
    run = _run(request, overrides)
    return Consultation(
        request=replace(request, strict=request.strict or settings.strict),
        logs=files or ("-",),
        index=signatures.load(),
        library=library,
        run=run,
        facts=_facts(request),
        sources=_sources(request, run),
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


def _run(request: DiagnoseRequest, overrides: tuple[str, ...]) -> ConfigFacts | None:
    if not request.config:
        return None
    from rlcheck.measure.config.errors import ReadError
    from rlcheck.measure.config.read import read_run

    try:
        return read_run(request.config, overrides, framework=request.framework)
    except ReadError as error:
        raise UserError(f"--config: {error}") from None


def _sources(request: DiagnoseRequest, run: ConfigFacts | None) -> Environment:
    words = interpreter(request.python)
    config = {key: str(value) for key, value in run.values.items()} if run is not None else {}
    sources = environment(words[0] if words else "", config)
    if words and not sources.sites:
        raise UserError(f"--python {request.python}: no site-packages beside it; name a venv or its interpreter")
    return sources


def _facts(request: DiagnoseRequest) -> tuple[Facts, ...] | None:
    if request.facts is None:
        return None
    from rlcheck.cli.facts_files import recorded

    return recorded(request.facts)
