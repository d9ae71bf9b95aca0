"""What `rlcheck diagnose` has to say: what every renderer shows and what `--format json` prints."""

from __future__ import annotations

import msgspec

from rlcheck import __version__
from rlcheck.diagnose.model import Answer, Diagnosis, Quote, Raised, Unknown
from rlcheck.diagnose.recipes import without_holes
from rlcheck.facts.base import Struct
from rlcheck.facts.hang import Culprit, Hang
from rlcheck.finding import ACTIONS, Action, Next

DIAGNOSIS_SCHEMA_VERSION = "1.0"
_CONFIDENCE = {
    "high": "The log names it: confidence is high.",
    "medium": "The log fits it: confidence is medium.",
    "low": "The log hints at it, no more: confidence is low.",
}
_OF_HANGS: dict[str, Action] = {"gone": "restart", "not started": "restart-without"}
"""What to do about a rank that holds up a job, by why it does; anything else is to be fixed first."""


class DiagnosisReport(Struct, frozen=True, omit_defaults=False):
    """An answer with what the command adds.

    `diagnoses` stand best first; without `--all` they are the best one of each incident, and `more` counts the others.
    `left_out` are the IDs that `--select` or `--ignore` took away. `unknown` is an error that no playbook knows;
    `diagnoses` is empty then. `hints` say what the command could add. `hang` is a job that stands still, by the `dumps`
    of its ranks that could be read.
    """

    version: str
    exit_code: int
    command: str = "diagnose"
    schema_version: str = DIAGNOSIS_SCHEMA_VERSION
    tool: str = "rlcheck"
    strict: bool = False
    diagnoses: tuple[Diagnosis, ...] = ()
    unknown: Unknown | None = None
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    more: int = 0
    left_out: tuple[str, ...] = ()
    files: int = 0
    lines: int = 0
    bytes: int = 0
    dumps: int = 0
    hang: Hang | None = None
    next: Next = Next("fix", why="nothing was judged")

    @property
    def silent(self) -> bool:
        """Whether there is nothing to show."""
        return not self.diagnoses and self.unknown is None and self.hang is None

    @property
    def open(self) -> bool:
        """Whether there is nothing to show, and that is no all-clear: not all could be read or judged."""
        return self.silent and bool(self.notes)


def make_report(
    answer: Answer, *, everything: bool = False, strict: bool = False, hints: tuple[str, ...] = ()
) -> DiagnosisReport:
    """The report of ANSWER; with `everything` also what ranks lower, and echoes."""
    answer = without_holes(answer)
    shown = answer.diagnoses if everything else best_of_each(answer.diagnoses)
    return DiagnosisReport(
        version=__version__,
        exit_code=exit_code(answer, strict),
        strict=strict,
        diagnoses=shown,
        unknown=answer.unknown,
        remarks=answer.remarks,
        notes=answer.notes,
        hints=hints,
        more=len(answer.diagnoses) - len(shown),
        files=answer.files,
        lines=answer.lines,
        bytes=answer.bytes,
        dumps=answer.dumps,
        hang=answer.hang,
        next=next_of(answer, strict),
    )


def next_of(answer: Answer, strict: bool = False) -> Next:
    """What to do next: the gravest of what failed; never `go` where something could not be read."""
    found = [_next_of_hang(answer.hang)] if answer.hang is not None else []
    for one in best_of_each(answer.diagnoses):
        if one.status == "fail" or (strict and one.status == "warn"):
            nodes = tuple(sorted({quote.node for quote in one.evidence if quote.node}))
            found.append(_without(one.next, nodes, f"{one.title} ({one.id})"))
    if answer.unknown is not None:
        found.append(Next("fix", why="an error that no playbook knows"))
    if found:
        return min(found, key=lambda one: ACTIONS.index(one.action))
    if answer.notes or not (answer.lines or answer.dumps):
        return Next("fix", why=f"not all could be read: {answer.notes[0] if answer.notes else 'there was nothing'}")
    return Next("go", why="no error in what was read")


def _next_of_hang(hang: Hang) -> Next:
    named: list[tuple[Action, Culprit]] = [(_OF_HANGS.get(one.kind, "fix"), one) for one in hang.culprits]
    actions: list[Action] = [mine for mine, _ in named] or ["fix"]
    action = min(actions, key=ACTIONS.index)
    nodes = tuple(sorted({one.node for mine, one in named if mine == action and one.node}))
    return _without(action, nodes, f"the job stands still: {hang.said}")


def _without(action: Action, nodes: tuple[str, ...], why: str) -> Next:
    if action != "restart-without":
        return Next(action, (), why)
    return Next(action, nodes, why if nodes else f"{why}; which node it is on was not read")


def best_of_each(diagnoses: tuple[Diagnosis, ...]) -> tuple[Diagnosis, ...]:
    """The best diagnosis of each incident; no echoes, unless there is nothing else."""
    best: dict[int, Diagnosis] = {}
    for found in diagnoses:
        if not found.echo:
            best.setdefault(found.incident, found)
    return tuple(best.values()) or diagnoses[:1]


def exit_code(answer: Answer, strict: bool) -> int:
    """1 for an error, known or not; with `strict` for a warning or what could not be read or judged, too."""
    doubtful = bool(answer.notes) or any(found.status == "warn" for found in answer.diagnoses)
    return 1 if answer.failed or (strict and doubtful) else 0


def diagnosis_schema() -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of the report."""
    schema = msgspec.json.schema(DiagnosisReport)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rlcheck diagnosis", **schema}


def place(quote: Quote) -> str:
    """Where QUOTE stands and who wrote it: `run.log:4, rank 3, node gpu-07, process 4711`."""
    file = f"line {quote.line} of standard input" if quote.file == "-" else f"{quote.file}:{quote.line}"
    writer = (("rank", quote.rank), ("node", quote.node), ("process", quote.pid))
    return ", ".join((file, *(f"{word} {value}" for word, value in writer if value)))


def where(quotes: tuple[Quote, ...]) -> str:
    """The place of the first of `quotes` in parentheses; "" without any."""
    return f" ({place(quotes[0])})" if quotes else ""


def sureness(found: Diagnosis) -> str:
    """How sure it is, in a sentence, and on what the playbook rests if not on a source."""
    verdicts = {confirmation.verdict for confirmation in found.confirmations}
    words = _CONFIDENCE[found.confidence]
    if "confirmed" in verdicts:
        words = "The facts confirm it: confidence is high."
    elif verdicts == {"ruled out"}:
        words = "The facts speak against it: confidence is low."
    if found.basis == "source":
        return f"{source_words(found)}: confidence is {found.confidence}."
    basis = "" if found.grounds == "sourced" else " The playbook rests on general knowledge, not on a source."
    return words + basis


def source_words(found: Diagnosis) -> str:
    """Which source an answer that no playbook gave is from: `From the source of vllm 0.23.0, vllm/config.py line 7`."""
    site = found.site
    if site is None:
        return "From a table of error codes"
    if site.releases:
        words = f"From the source of {site.package} {' to '.join(dict.fromkeys(site.releases))}, {site.file}"
        return f"{words}; the log is of {site.version}, which is none of these" if site.outside else words
    words = f"From the source of {f'{site.package} {site.version}'.strip()}"
    if site.exact:
        return f"{words}, {site.file} line {site.line}"
    return f"{words} here, {site.file} line {site.line}; the log's line is another, and its version is not known"


def more_of(found: Diagnosis) -> str:
    """The command that shows more of it; "" where no playbook knows it."""
    return f"rlcheck explain {found.id}" if found.basis == "playbook" else ""


def raised_words(raised: Raised) -> str:
    """Where an exception was raised: `pets.py line 3 in main, your own code`."""
    whose = f"in the package {raised.package}" if raised.package else "your own code, or a checkout"
    return f"{raised.type} at {raised.file} line {raised.line} in {raised.function}; {whose}"


def culprit_words(one: Culprit) -> str:
    """What is known of a rank that holds up a job: `rank 3: has not called all_reduce 7 of default_pg; last: …`."""
    sits = one.kind in ("circle", "mismatch", "not started")
    words = [f"has not called {one.lacks}"] if one.lacks else []
    words += [f"{'is in' if sits else 'its last call:'} {one.call}"] if one.call else []
    words += [f"it is at {one.stack[0]}"] if one.stack else []
    who = f"rank {one.rank}" + "".join(f", {word}" for word in (one.role, one.node) if word)
    return f"{who}: {'; '.join(words) or 'nothing is known of its calls'}"


def nothing_found(report: DiagnosisReport) -> str:
    """What to say where there is nothing to show."""
    what = "; not all could be judged" if report.open else ""
    return f"No {'other ' if report.left_out else ''}error in what was read: {was_read(report)}{what}"


def notes_of(report: DiagnosisReport) -> list[str]:
    """What is to be said below the diagnoses."""
    left_out = [f"left out by --select or --ignore: {', '.join(report.left_out)}"] if report.left_out else []
    return [*report.notes, *left_out]


def was_read(report: DiagnosisReport) -> str:
    """What was read: `2 logs, 1,204 lines, 88 KiB`."""
    logs = "1 log" if report.files == 1 else f"{report.files} logs"
    lines = "1 line" if report.lines == 1 else f"{report.lines:,} lines"
    dumps = "1 dump of a rank" if report.dumps == 1 else f"{report.dumps} dumps of ranks"
    if report.dumps and not report.files:
        return dumps
    return f"{logs}, {lines}, {_size(report.bytes)}" + (f", {dumps}" if report.dumps else "")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def verdict(report: DiagnosisReport) -> str:
    """What the exit code means, in a sentence."""
    failed = [found for found in report.diagnoses if found.status == "fail"]
    if report.hang is not None:
        more = ", and its logs show an error" if failed or report.unknown is not None else ""
        return f"exit code 1: the job stands still{more}"
    if report.unknown is not None:
        return "exit code 1: an error that no playbook knows"
    if failed and all(found.basis == "source" for found in failed):
        return "exit code 1: an error that no playbook knows; the source explains it"
    if failed:
        incidents = len({found.incident for found in failed})
        return "exit code 1: " + ("an error was diagnosed" if incidents == 1 else f"{incidents} errors were diagnosed")
    if report.exit_code:
        return "exit code 1: --strict counts warnings and what could not be judged"
    if report.diagnoses:
        return "exit code 0: no error (--strict would count the warnings)"
    return "exit code 0: no error" + (" in what was read; not all could be judged" if report.open else "")
