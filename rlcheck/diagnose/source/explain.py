"""What the source of an installed library says of a failure that no playbook knows, as a diagnosis; or where it was
raised, if that is all that can be said."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

import msgspec

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
from rlcheck.diagnose.source.sites import Choice, Source, Spot, choose
from rlcheck.diagnose.source.tables import from_table
from rlcheck.diagnose.source.traces import Frame, Trace, trace_of
from rlcheck.finding import Fix
from rlcheck.playbook import Verify

Quoter = Callable[[Sequence[Message]], Quote]
_MOST_FAILURES = 8
_MOST_FILES = 3
_AROUND = 12
_LONGEST = 300
_END = r"""(?=[,;)}\]]|\s*\\?$| +(?:-|[|>&;]|\d>)|,? +['"]?[\w.+]+['"]?[=:])"""
_VALUE = rf"""('[^'\n]{{0,80}}'|"[^"\n]{{0,80}}"|[\w./:+-]{{1,80}}){_END}"""
_LISTS = re.compile(
    r"""(?:^|[\s(])[\w-]{0,40}(?:[Aa]rg(?:ument)?s?|[Cc]onfig(?:uration)?|[Ss]ettings|[Pp]arameters|[Oo]ptions|Namespace)"""
    r"""(?: ?[:=] ?\w{0,40})?[ :=({]{1,4}['"]?[\w.]{1,80}['"]? ?[=:]|^\{['"]\w{1,80}['"] ?:"""
    r"|^(?:[+$>#] |(?:\w+ )?[Cc](?:ommand|md)\w*: ?)?(?:env |nohup |[A-Z_]+=\S+ )*(?:\S*/)?"
    r"(?:python[\d.]*|vllm|torchrun|accelerate|deepspeed|srun|mpirun|ray|bash|rltrain|sglang|trl|swift|uv) "
)
"""What begins a list of the settings of a run in a line: a dump of its configuration, or its command line."""
_ADVISES = re.compile(
    r"(?i)\b(?:try|should|must|instead|example|(?<!non-)default|consider|increase|lower|reduce|set)\b"
)


def explain(
    found: Sequence[Failure], logs: Sequence[Sequence[Message]], where: Environment, quote: Quoter
) -> tuple[tuple[Diagnosis, ...], Raised | None]:
    """The diagnoses that the sources of WHERE give of FOUND, best first; and, where there are none, where the first
    was raised. What comes after an exception of the user's own code is not looked at: that is the cause."""
    diagnoses: dict[tuple[str, int], Diagnosis] = {}
    first: Raised | None = None
    files = 0
    for failure in found[:_MOST_FAILURES]:
        log = logs[failure.message.log]
        trace = trace_of(failure, log)
        if trace is None:
            continue
        first = first or _raised(trace)
        frame = _frame_to_explain(trace)
        files += 1
        diagnosis = (
            _from_source(trace, frame, log, where, quote) if frame is not None and files <= _MOST_FILES else None
        )
        if diagnosis is not None and diagnosis.site is not None:
            diagnoses.setdefault((diagnosis.site.file, diagnosis.site.line), diagnosis)
        elif frame is None or not is_library(frame.file):
            break
    if not diagnoses and found and (told := from_table(found[0], quote)) is not None:
        return (told,), None
    return tuple(diagnoses.values()), None if diagnoses else first


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
                told = tuple(_with_value(one, _around(trace, log), where) for one in known)
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


def _with_value(one: Setting, log: Sequence[Message], where: Environment) -> Setting:
    """ONE with the value that the run's config, or what the log prints of it, has for it."""
    if one.value or one.kind in ("limit", "argument"):
        return one
    values = {value for key, value in where.config.items() if key.rpartition(".")[2] == one.name}
    if len(values) == 1:
        return msgspec.structs.replace(one, value=values.pop(), origin="config")
    values = set(_printed(one.name, log)) if "_" in one.name else set[str]()
    return msgspec.structs.replace(one, value=values.pop(), origin="log") if len(values) == 1 else one


def _around(trace: Trace, log: Sequence[Message]) -> Sequence[Message]:
    """LOG without the lines from the last frame on: what a message says of a setting may be prose."""
    return log[: trace.frames[-1].message.at]


def _printed(name: str, log: Sequence[Message]) -> Iterator[str]:
    """The values that LOG prints for a setting in dumps of a configuration and in command lines, nowhere else."""
    dashed = name.replace("_", "-")
    form = re.compile(
        rf"""(?<![\w.-])(?:{re.escape(name)}['"]?\s*[=:]\s*|--{re.escape(dashed)}(?:=| (?=[\d'"]))){_VALUE}"""
    )
    for message in log:
        if name not in message.text and dashed not in message.text:
            continue
        above = log[message.at - 1].text if message.at else ""
        if message.text[:1].isspace() or 'File "' in above or 'File "' in message.text:
            continue
        if not _LISTS.search(message.text) or _ADVISES.search(message.text):
            continue
        yield from (found[1].strip("'\"") for found in form.finditer(message.text))


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
        id=f"source-{re.sub(r'[^a-z0-9]+', '-', f'{module.package}-{spot.qualname}'.lower()).strip('-')}",
        title=f"{module.package}: {site.function} {does}",
        status="fail",
        cause=_cause(site, does),
        confidence="medium" if site.exact and not calls else "low",
        verify=(Verify(run=f"sed -n '{start},{spot.node.end_lineno}p' {shlex.quote(module.path)}",
                       expect="the statement that is named here, below its conditions"),),
        fixes=_fixes(site, spot),
        evidence=tuple(about),
        basis="source",
        grounds="sourced",
        site=site,
    )  # fmt: skip


def _end(trace: Trace, log: Sequence[Message], frame: Frame) -> Message:
    """The line that names the exception of TRACE: the first below FRAME that begins with its type."""
    below = log[frame.message.at + 1 : frame.message.at + 200]
    return next((one for one in below if re.match(rf"[\s|]*(?:\w+\.)*\w*\(?{trace.type}\b", one.text)), frame.message)


def _cause(site: Site, does: str) -> str:
    words = [f"{site.function} {does}"]
    if site.conditions:
        inner, outer = site.conditions[-1], site.conditions[:-1]
        words = [
            f"{words[0]} where `{inner}`",
            *(["inside of: " + "; ".join(f"`{one}`" for one in outer)] if outer else []),
        ]
    sentences = [", ".join(words) + "."]
    for one in site.settings:
        owner = f" of {one.owner}" if one.owner and one.owner != one.name else ""
        value = f" is {one.value}{_ORIGINS[one.origin]}" if one.value else ""
        about = f' ("{one.about.rstrip(".")}")' if one.about else ""
        sentences.append(f"`{one.name}`, {_article(one.kind)}{owner},{value}{about}." if value else
                         f"`{one.name}` is {_article(one.kind)}{owner}{about}.")  # fmt: skip
    return " ".join(sentences)


_ORIGINS = {"": "", "log": " in the log", "config": " in the config", "source": ""}


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'ae' else 'a'} {kind}"


def _fixes(site: Site, spot: Spot) -> tuple[Fix, ...]:
    """What to change so that this place is not reached; nothing where no setting decides it."""
    names = [f"`{one.name}`" + (f" (now {one.value})" if one.value else "")
             for one in site.settings if one.decides and one.kind != "limit"]  # fmt: skip
    goal = way_out(spot)
    if not names or not goal:
        return ()
    which = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return (Fix(title=f"Change {which} so that {goal}", kind="advice", safety="safe"),)
