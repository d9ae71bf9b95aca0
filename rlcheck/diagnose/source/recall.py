"""What the record of raise sites says of a failure whose package is not installed here, or in another version."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from rlcheck.diagnose.lines import Message
from rlcheck.diagnose.model import Diagnosis, Quote, Setting, Site
from rlcheck.diagnose.source.installed import Environment, in_packages, is_library
from rlcheck.diagnose.source.recorded import LOGGED, Found, found_in, is_specific, text_of, texts
from rlcheck.diagnose.source.traces import Frame, Trace
from rlcheck.diagnose.source.values import with_value
from rlcheck.diagnose.source.wording import cause, fixes, identity
from rlcheck.playbook import Verify

_LONGEST_VALUE = 80
_VERSION = r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:\.?(?:post|dev|rc)\d{1,4})?)(?!\w|\.\d)"
_SAID = (
    r"(?i)(?<![\w/.-]){name}[`'\"]?(?:(?: API server| engine)? version[ :=]{{1,3}}|==| v(?=\d)| {{2,40}})"
    r"['\"]?{version}"
)
_ENGINE = re.compile(rf"Initializing an? (?:V[01] )?LLM engine \({_VERSION}")
_ADVICE = re.compile(r"(?i)\b(?:install|requires?d?|upgrade|downgrade|expected|supports?|since|recommend\w*|before)\b")


def recall(
    trace: Trace, log: Sequence[Message], where: Environment, quote: Callable[[], Quote]
) -> Diagnosis | None:  # fmt: skip
    """The site of the record that has raised TRACE, as a diagnosis; None if it holds none that surely is it.

    A trace without frames is found where its message names one site alone.
    """
    frame = trace.frames[-1] if trace.frames else None
    found = [one for one in _candidates(trace, frame, Path(where.records)) if _may_be(one, frame)]
    if not found:
        return None
    best = max(_nearness(one, frame) for one in found)
    found = [one for one in found if _nearness(one, frame) == best]
    if frame is None and len({(one.package, _last(one.entry.function)) for one in found}) > 1:
        return None
    version = stated(found[0].package, log)
    chosen = _chosen(found, version)
    return _diagnosis(chosen, trace, version, log, where, quote()) if chosen is not None else None


def _candidates(trace: Trace, frame: Frame | None, folder: Path) -> Iterator[Found]:
    """The sites that raise this type with this message in the package of FRAME, without one in all packages."""
    kinds = {trace.type, *(("IOError", "EnvironmentError") if trace.type == "OSError" else ())}
    if not trace.text or not folder.is_absolute():
        return
    if frame is None:
        records: Iterator[str] = texts(folder)
    elif is_library(frame.file):
        records = iter([text_of(in_packages(frame.file).partition("/")[0].removesuffix(".py"), folder)])
    else:  # a checkout
        records = (text_of(top, folder) for top in dict.fromkeys(frame.file.replace("\\", "/").split("/")[:-1]))
    for text in filter(None, records):
        yield from found_in(text, kinds, trace.text)


def _may_be(one: Found, frame: Frame | None) -> bool:
    """Whether the traceback, or without one the message alone, leads to this site."""
    specific = is_specific(one.entry.template, alone=frame is None)
    if frame is None:
        return specific and bool(one.entry.kind) and not one.entry.shared
    same_file, same_function, _ = _nearness(one, frame)
    if not is_library(frame.file):
        return same_file and same_function
    return (same_file and same_function) or (specific and (same_function or (same_file and not one.entry.shared)))


def _nearness(one: Found, frame: Frame | None) -> tuple[bool, bool, int]:
    """How near a site is to FRAME: its file, its function; then by how much of the message its text says."""
    if frame is None:
        return False, False, one.match.strength
    path = frame.file.replace("\\", "/")
    return path.endswith(f"/{one.file}"), _last(one.entry.function) == frame.function, one.match.strength


def _last(function: str) -> str:
    return function.rpartition(".")[2]


def _chosen(found: Sequence[Found], version: str) -> Found | None:
    """The one of FOUND that VERSION has, else the newest. Of several in one release, what all of them say; None if they
    are in different files."""
    having = [one for one in found if _within(one, version)] or list(found)
    newest = max(one.entry.last for one in having)
    having = [one for one in having if one.entry.last == newest]
    first = min(having, key=lambda one: one.entry.first)
    if len({one.file for one in having}) > 1:
        return None
    if len({(one.entry.function, one.entry.conditions) for one in having}) > 1:
        bare = msgspec.structs.replace(first.entry, conditions=(), settings=(), turns=False)
        return first._replace(entry=bare)
    return first


def stated(package: str, log: Sequence[Message]) -> str:
    """The version of PACKAGE that LOG says was run, "" if none or several."""
    name = "(?:py)?torch" if package == "torch" else re.escape(package).replace("\\-", "[-_]")
    form = re.compile(_SAID.format(name=name, version=_VERSION))
    needle = package.split("-", maxsplit=1)[0].lower()
    found = {
        match[1]
        for message in log
        if needle in message.text.lower() and not _ADVICE.search(message.text)
        for match in form.finditer(message.text)
    }
    if package == "vllm":
        found |= {match[1] for message in log if (match := _ENGINE.search(message.text))}
    return found.pop() if len(found) == 1 else ""


def _within(one: Found, version: str) -> bool:
    """Whether VERSION is one of the releases of the site, or between two of them."""
    try:
        first, last = (Version(one.releases[number]) for number in (one.entry.first, one.entry.last))
        return bool(version) and first <= Version(version) <= last
    except InvalidVersion:
        return False


def _diagnosis(
    one: Found, trace: Trace, version: str, log: Sequence[Message], where: Environment, quoted: Quote
) -> Diagnosis:
    entry = one.entry
    frame = trace.frames[-1] if trace.frames else None
    span = one.releases[entry.first], one.releases[entry.last]
    outside = bool(version) and not _within(one, version)
    site = Site(
        package=one.package, version=version, file=one.file, line=0, function=entry.function, exact=False,
        conditions=entry.conditions, settings=tuple(_settings(one, trace, log, where)), releases=span, outside=outside,
    )  # fmt: skip
    does = f"raises {trace.type}" if entry.kind != LOGGED else "logs this and ends the process"
    led = frame is not None and all(_nearness(one, frame)[:2])
    releases = " to ".join(dict.fromkeys(span))
    goal = _way_out(one)
    return Diagnosis(
        id=identity(one.package, entry.function),
        title=f"{one.package}: {entry.function} {does}",
        status="fail",
        cause=cause(site, does),
        confidence="medium" if led and not outside else "low",
        verify=(Verify(run=f"python3 -m pip show {one.package}", expect=f"a version from {releases}"
                       if span[0] != span[1] else f"version {releases}"),),
        fixes=fixes(site, goal),
        evidence=(quoted,),
        basis="source",
        grounds="sourced",
        site=site,
    )  # fmt: skip


def _settings(one: Found, trace: Trace, log: Sequence[Message], where: Environment) -> Iterator[Setting]:
    """The settings of a site with the values that the message or the log's config shows."""
    holes = [part for part in one.form if not isinstance(part, str)]
    values = {holes.index(node): value for node, value in one.match.values if len(value) <= _LONGEST_VALUE}
    before = log[: trace.frames[-1].message.at] if trace.frames else ()
    for known in one.entry.settings:
        if known.origin == "log":
            value = values.get(int(known.value), "")
            known = msgspec.structs.replace(known, value=value, origin="log" if value else "")
        yield with_value(msgspec.structs.replace(known, owner=_owner(known, one)), before, where.config)


def _owner(known: Setting, one: Found) -> str:
    """What takes a setting: the config that its site reads it from, or its class, or its function."""
    *_, owner, function = ("", *one.entry.function.split("."))
    if known.kind == "config key":
        text = f"{' '.join(one.entry.conditions)} {one.entry.template}"
        found = re.search(rf"(\w+)(?:\.{known.name}\b|\[['\"]{known.name}['\"]\])", text)
        return "" if found is None else found[1] if found[1] != "self" else owner
    return {"constructor argument": owner, "argument": function}.get(known.kind, "")


def _way_out(one: Found) -> str:
    """What keeps a run from the site, in words; "" if that is more than its innermost condition."""
    if not one.entry.turns or not one.entry.conditions:
        return ""
    inner = one.entry.conditions[-1]
    denied = re.fullmatch(r"not \((.*)\)", inner)
    return f"`{denied[1]}` is true" if denied else f"`{inner}` is no longer true"
