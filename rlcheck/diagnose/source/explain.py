"""What the source of an installed library says of a failure that no playbook knows, as a diagnosis; or where it was
raised, if that is all that can be said."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from rlcheck.diagnose.failures import Failure
from rlcheck.diagnose.lines import Message
from rlcheck.diagnose.model import Diagnosis, Quote, Raised, Setting, Site
from rlcheck.diagnose.source.guards import conditions, settings, way_out
from rlcheck.diagnose.source.installed import (
    Environment,
    Module,
    elsewhere,
    is_library,
    is_stdlib,
    locate,
    package_of,
    read,
)
from rlcheck.diagnose.source.recall import recall
from rlcheck.diagnose.source.recorded import LOGGED
from rlcheck.diagnose.source.sites import Choice, Source, choose
from rlcheck.diagnose.source.tables import from_table
from rlcheck.diagnose.source.traces import Frame, Trace, exception_of, trace_of
from rlcheck.diagnose.source.values import with_value
from rlcheck.diagnose.source.wording import cause, fixes, identity
from rlcheck.playbook import Verify

Quoter = Callable[[Sequence[Message]], Quote]
_MOST_FAILURES = 8
_MOST_FILES = 3
_AROUND = 12
_LONGEST = 300


def explain(
    found: Sequence[Failure], logs: Sequence[Sequence[Message]], where: Environment, quote: Quoter
) -> tuple[tuple[Diagnosis, ...], Raised | None]:
    """The diagnoses that the sources of WHERE, or the record of releases, give of FOUND, best first; and, where there
    are none, where the first was raised. What comes after an exception of the user's own code is not looked at: that is
    the cause."""
    diagnoses: dict[tuple[str, int, str], Diagnosis] = {}
    first: Raised | None = None
    files, all_known = 0, True
    for failure in found[:_MOST_FAILURES]:
        log = logs[failure.message.log]
        trace = trace_of(failure, log)
        if trace is None:
            bare = _bare(failure, log, where, quote) if all_known else None
            all_known = all_known and (bare is not None or not failure.raised)
            if bare is not None and bare.site is not None:
                diagnoses.setdefault(_place(bare.site), bare)
            continue
        first = first or _raised(trace)
        frame = _frame_to_explain(trace)
        files += 1
        diagnosis = _told(trace, frame, log, where, quote) if frame is not None and files <= _MOST_FILES else None
        if diagnosis is not None and diagnosis.site is not None:
            diagnoses.setdefault(_place(diagnosis.site), diagnosis)
        elif frame is None or not is_library(frame.file):
            break
    if not diagnoses and found and (told := from_table(found[0], quote)) is not None:
        return (told,), None
    return tuple(diagnoses.values()), None if diagnoses else first


def _place(site: Site) -> tuple[str, int, str]:
    return site.file, site.line, site.function


def _bare(failure: Failure, log: Sequence[Message], where: Environment, quote: Quoter) -> Diagnosis | None:
    """What the record says of an exception without a traceback, or of what is logged before an exit."""
    logged = Trace(type=LOGGED, text=(failure.message.text,), frames=())
    trace = exception_of(failure, log) if failure.raised else logged
    return recall(trace, log, where, lambda: quote([failure.message])) if trace is not None else None


def _told(
    trace: Trace, frame: Frame, log: Sequence[Message], where: Environment, quote: Quoter
) -> Diagnosis | None:  # fmt: skip
    """What the source here says, or else the record."""
    told = _from_source(trace, frame, log, where, quote)
    if told is not None or frame is not trace.frames[-1]:
        return told
    lines = [*log[frame.message.at : frame.message.at + 1], _end(trace, log, frame)]
    return recall(trace, log, where, lambda: quote(lines))


def _frame_to_explain(trace: Trace) -> Frame | None:
    """The innermost frame that is not of Python's own library; None if there is none."""
    return next((frame for frame in reversed(trace.frames) if not is_stdlib(frame.file)), None)


def _raised(trace: Trace) -> Raised:
    frame = _frame_to_explain(trace) or trace.frames[-1]
    return Raised(file=frame.file, line=frame.line, function=frame.function, type=trace.type,
                  message=(trace.text or ("",))[0][:_LONGEST], package=package_of(frame.file))  # fmt: skip


def _from_source(
    trace: Trace, frame: Frame, log: Sequence[Message], where: Environment, quote: Quoter
) -> Diagnosis | None:
    for module in _files(frame, where):
        try:
            data = read(module)
            # A file that only has this one's name is read if it has its function, too.
            source = Source(data, frame.function) if module.sure or f"def {frame.function}(".encode() in data else None
            choice = source and (choose(source, frame, trace) if frame is trace.frames[-1] else _call(source, frame))
            if source and choice and (module.sure or (choice.match and choice.match.strength)):
                known = settings(source, choice.spot, choice.match.values if choice.match else ())
                told = tuple(with_value(one, _around(trace, log), where.config) for one in known)
                return _diagnosis(trace, frame, module, choice, told, log, quote)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # of another Python, not readable, or nested without end: then the source says nothing
    return None


def _files(frame: Frame, where: Environment) -> Iterator[Module]:
    """The file of FRAME, then others of its name."""
    module = locate(frame.file, where)
    if module is not None and module.package:
        yield module
    yield from elsewhere(frame.file, where)


def _call(source: Source, frame: Frame) -> Choice | None:
    """The statement of a library that called what is Python's own, if it is here what the log quotes."""
    if not source.holds(frame):
        return None
    spots = [spot for spot in source.spots() if spot.node.lineno <= frame.line <= (spot.node.end_lineno or 0)]
    innermost = max(spots, key=lambda spot: len(spot.around), default=None)
    if innermost is None or (innermost.function.name if innermost.function else "<module>") != frame.function:
        return None
    return Choice(innermost, True, None)


def _around(trace: Trace, log: Sequence[Message]) -> Sequence[Message]:
    """LOG without the lines from the last frame on: what a message says of a setting may be prose."""
    return log[: trace.frames[-1].message.at]


def _diagnosis(
    trace: Trace, frame: Frame, module: Module, choice: Choice, known: tuple[Setting, ...], log: Sequence[Message],
    quote: Quoter,
) -> Diagnosis:  # fmt: skip
    spot = choice.spot
    site = Site(package=module.package, version=module.version, file=module.name, line=spot.node.lineno,
                function=spot.qualname or "<module>", exact=choice.exact and module.sure, conditions=conditions(spot),
                settings=known)  # fmt: skip
    calls = frame is not trace.frames[-1]
    does = f"calls what raised {trace.type}" if calls else f"raises {trace.type}"
    last = log[frame.message.at : frame.message.at + 2]
    mine = next((one for one in reversed(trace.frames) if not is_library(one.file) and not is_stdlib(one.file)), None)
    about = [quote([*last[:1], _end(trace, log, frame)])]
    about += [quote([mine.message])] if mine is not None and mine is not frame else []
    start = max(1, spot.node.lineno - _AROUND)
    return Diagnosis(
        id=identity(module.package, spot.qualname),
        title=f"{module.package}: {site.function} {does}",
        status="fail",
        cause=cause(site, does),
        confidence="medium" if site.exact and not calls else "low",
        verify=(Verify(run=f"sed -n '{start},{spot.node.end_lineno}p' {shlex.quote(module.path)}",
                       expect="the statement that is named here, below its conditions"),),
        fixes=fixes(site, way_out(spot)),
        evidence=tuple(about),
        basis="source",
        grounds="sourced",
        site=site,
    )  # fmt: skip


def _end(trace: Trace, log: Sequence[Message], frame: Frame) -> Message:
    """The line that names the exception of TRACE: the first below FRAME that begins with its type."""
    below = log[frame.message.at + 1 : frame.message.at + 200]
    return next((one for one in below if re.match(rf"[\s|]*(?:\w+\.)*\w*\(?{trace.type}\b", one.text)), frame.message)
