"""The record of raise sites, `rlcheck/data/raises`: its form, and which site of it a message is from.

A file for each directory of site-packages: first what was read and when, then for each of its files a line with the
path and a line for each site: type, function, first and last release (numbers in base 36 into the releases of the head;
`!` behind them: the innermost condition decides alone; `~`: other functions of the package say the same), conditions,
settings, message. A setting is `kind:name=value*`: the value of a limit or the number of the hole that shows it, `*` if
it decides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase, digits
from typing import NamedTuple

from rlcheck.diagnose.model import Setting, SettingKind
from rlcheck.diagnose.source.templates import Match, Template, match
from rlcheck.facts.base import Struct
from rlcheck.tables import DATA

FOLDER = DATA / "raises"
CUT = "..."
"""The hole at the end of a message that was too long to be kept."""
LOGGED = "exit"
"""The type of what is logged before the process ends."""
_DIGITS = digits + ascii_lowercase
_BETWEEN = "  "
_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_KINDS: dict[str, SettingKind] = {"c": "config key", "i": "constructor argument", "a": "argument",
                                  "e": "environment variable", "l": "limit"}  # fmt: skip
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_SETTING = re.compile(r"([a-z]):([^=*]+)(?:=([^*]*))?(\*)?")
_ENOUGH_TO_LOOK = 8
_WORD = re.compile(r"[A-Za-z]{3,}")
_LEAST = (2, 16)
"""Words and characters of a message that name its site, if a traceback leads near it."""
_LEAST_ALONE = (4, 24)
"""The same without a traceback: anybody may say less."""


class Entry(Struct, frozen=True):
    """A site: what is raised (`exit`: logged before the process ends), in which of the releases, numbered from 0.

    The value of a setting with the origin `log` is the number of the hole of the message that shows it.
    """

    kind: str
    function: str
    first: int
    last: int
    template: str
    conditions: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    turns: bool = False
    shared: bool = False


class Record(Struct, frozen=True):
    """What was read of a package: the day, its releases from the oldest on, its sites by file."""

    date: str
    package: str
    releases: tuple[str, ...]
    sites: dict[str, list[Entry]]


class Found(NamedTuple):
    """A site whose message is the one in question."""

    package: str
    releases: tuple[str, ...]
    file: str
    entry: Entry
    form: Template
    match: Match


def written(form: Sequence[str | ast.expr]) -> str:
    """A template in a line: holes in braces, with what fills them.

    >>> written(["at {", ast.Name(id="n"), " of"])
    'at {{{n} of'
    """
    return "".join(
        part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else f"{{{getattr(part, 'id', '')}}}"
        for part in form
    )


def parts_of(template: str) -> Template:
    """What `written` has made the line from."""
    parts: list[str | ast.expr] = []
    at, text = 0, ""
    for found in _HOLE.finditer(template):
        text += template[at : found.start()]
        at = found.end()
        if found[0] in ("{{", "}}"):
            text += found[0][0]
            continue
        parts += [text, ast.Name(id=found[1])]
        text = ""
    return tuple(part for part in (*parts, text + template[at:]) if part != "")


def literals_of(template: str) -> list[str]:
    """The texts of a template."""
    return [part for part in parts_of(template) if isinstance(part, str)]


def is_specific(template: str, alone: bool = False) -> bool:
    """Whether the texts of a template name one site among those that a traceback leads to, or ALONE without one."""
    said = " ".join(literals_of(template))
    words, characters = _LEAST_ALONE if alone else _LEAST
    return len(said.strip()) >= characters and len(_WORD.findall(said)) >= words


def line_of(entry: Entry) -> str:
    """ENTRY as a line of the record."""
    span = _DIGITS[entry.first] + _DIGITS[entry.last] + "!" * entry.turns + "~" * entry.shared
    told = _BETWEEN.join(map(_setting_text, entry.settings))
    return "\t".join((entry.kind, entry.function, span, _BETWEEN.join(entry.conditions), told, entry.template))


def entry_of(line: str) -> Entry:
    """The site that a line of the record holds."""
    kind, function, span, guards, told, template = line.split("\t")
    return Entry(
        kind=kind,
        function=function,
        first=_DIGITS.index(span[0]),
        last=_DIGITS.index(span[1]),
        turns="!" in span,
        shared="~" in span,
        conditions=tuple(guards.split(_BETWEEN)) if guards else (),
        settings=tuple(_setting_of(one) for one in told.split(_BETWEEN)) if told else (),
        template=template,
    )


def _setting_text(one: Setting) -> str:
    value = f"={one.value}" if one.value else ""
    return f"{_LETTERS[one.kind]}:{one.name}{value}{'*' * one.decides}"


def _setting_of(text: str) -> Setting:
    found = _SETTING.fullmatch(text)
    assert found, text
    kind = _KINDS[found[1]]
    value = found[3] or ""
    return Setting(name=found[2], kind=kind, value=value, decides=bool(found[4]),
                   origin="" if not value else "source" if kind == "limit" else "log")  # fmt: skip


def texts(folder: Path = FOLDER) -> Iterator[str]:
    """Yield the record of each package, as it is written."""
    for path in sorted(folder.glob("*.txt")):
        yield path.read_text(encoding="utf-8")


def text_of(top: str, folder: Path = FOLDER) -> str:
    """The record of what is in the directory TOP of site-packages, "" if there is none."""
    path = folder / f"{top}.txt"
    return path.read_text(encoding="utf-8") if top.isidentifier() and path.is_file() else ""


def read(text: str) -> Record:
    """Return all that the record of a package holds."""
    lines = text.splitlines()
    date, package, releases = _head(lines)
    sites: dict[str, list[Entry]] = {}
    file = ""
    for line in lines[2:]:
        if "\t" in line:
            sites[file].append(entry_of(line))
        else:
            file = line
            sites[file] = []
    return Record(date=date, package=package, releases=releases, sites=sites)


def _head(lines: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    package, *releases = lines[1].removeprefix("# ").split(" ")
    return lines[0].removeprefix("# read on "), package, tuple(releases)


def found_in(text: str, kinds: set[str], message: Sequence[str]) -> Iterator[Found]:
    """Yield the sites of a package's record that raise one of KINDS with this MESSAGE."""
    said = " ".join(" ".join(message).split())
    lines = text.split("\n")
    file = ""
    head = _head(lines)
    for line in lines[2:]:
        if "\t" not in line:
            file = line
            continue
        if not _may_be(line[line.rfind("\t") + 1 :], said):
            continue
        entry = entry_of(line)
        form = parts_of(entry.template)
        fits = match(form, message) if not entry.kind or entry.kind in kinds else None
        if fits is not None:
            yield Found(head[1], head[2], file, entry, form, fits)


def _may_be(template: str, said: str) -> bool:
    """Whether the first text of TEMPLATE is in what was SAID: to look takes less than to read the line."""
    if "{{" in template or "}}" in template:
        return True
    end = template.find("{")
    if end < 0:
        return template in said
    if end >= _ENOUGH_TO_LOOK:
        return template[:end].rstrip() in said
    start = template.find("}", end) + 1
    end = template.find("{", start)
    return template[start : end if end >= 0 else None].strip() in said
