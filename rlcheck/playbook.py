"""Playbooks: what a problem is, how to verify it, how to fix it. Read from `playbooks/*.md`, never written."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.finding import Action, Fix
from rlcheck.harm import Deed, deeds
from rlcheck.text import SEPARATOR

_PACKAGED = Path(__file__).resolve().parent / "playbooks"
DIRECTORY = _PACKAGED if _PACKAGED.is_dir() else _PACKAGED.parents[1] / "playbooks"
"""The doctor's own playbooks: inside the package where it was installed from a wheel, beside it in a checkout."""
_PARAMETER = re.compile(r"\{\{(\w+)\}\}")
_QUOTES = re.compile(r"""\\.|(?:(?<=\s)|^)\#[^\n]*|'[^']*'|"(?:[^"\\]|\\.)*"|(['"])""", re.S)
_NEEDS_NO_QUOTES = re.compile(r"[\w@%+=:,./-]+", re.A)


class PlaybookError(Exception):
    """A playbook that does not exist or does not hold to the schema. The message names the file."""


class Verify(Struct, frozen=True, forbid_unknown_fields=True):
    """A command that shows the problem, and what to look for in what it prints."""

    run: str
    expect: str


class Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    """A fix before its parameters are filled in; `{{name}}` in `command` stands for one.

    A fix of kind `config` may name the `field` of a run that it sets (`rollout.gpu_memory_utilization`) and its
    `value`; with the run's config at hand, its command becomes that framework's own override. One that fixes what some
    checks of its playbook find, and not what the others do, names them in `checks`, one for what only a log shows says
    `logs`. A command of kind `look` changes nothing. Nobody labels a fix: `safety` follows from its words
    (`rlcheck.harm`) and from what it `destroys`, where they do not say it (it follows "unsafe:"). `caution` is what to
    know of a safe one (it follows "safe, but"). One whose value is an example, or that something has to come
    before, is done `by_hand`: `--fix` only shows it.
    """

    title: str
    kind: Literal["env", "config", "package", "shell", "look", "advice"]
    needs_root: bool = False
    command: str = ""
    destroys: str = ""
    caution: str = ""
    by_hand: bool = False
    field: str = ""
    value: str = ""
    checks: tuple[str, ...] = ()

    @property
    def deeds(self) -> tuple[Deed, ...]:
        """What this fix does that one line does not take back."""
        return deeds(self.title, self.command, self.kind)

    @property
    def safety(self) -> Literal["safe", "unsafe"]:
        """Whether one line takes it back."""
        return "unsafe" if self.harm else "safe"

    @property
    def harm(self) -> str:
        """What it may destroy, in words; "" where it is safe."""
        as_root = "changes the machine" if self.needs_root and self.kind != "look" else ""
        own = self.destroys if self.destroys[1:2].isupper() else self.destroys[:1].lower() + self.destroys[1:]
        return own or ", ".join(deed.words for deed in self.deeds) or as_root


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """Where it is proved."""

    url: str
    what: str


class Signature(Struct, frozen=True, forbid_unknown_fields=True):
    """How a problem shows in a log.

    `pattern` is searched in the message of one log line, its prefixes (time, rank, process) taken off; named groups
    give the playbook's parameters. With `lines` above 1 it is searched in that many lines joined by line breaks, the
    first of which holds `literal`. `literal` must be in the line, or the pattern is not tried. `near` must, and
    `unless` must not, be found in the same log around the hit. `where` bounds the numbers of groups: `kl: "> 10"`.
    `status` is what a hit means; `specificity` 3 names one cause, 2 a class of them, 1 is all that can be said.
    """

    pattern: str
    literal: str
    status: Literal["fail", "warn", "info"] = "fail"
    lines: int = 1
    near: str = ""
    unless: str = ""
    where: dict[str, str] = {}
    specificity: Literal[1, 2, 3] = 2


class Relations(Struct, frozen=True, forbid_unknown_fields=True):
    """What else in a log explains this problem.

    `wraps`: it only repeats that something else failed; with anything else beside it, known or not, it is an echo.
    `consequence_of`: playbooks that explain it when they are in the same log; "*" is any other failure that comes
    before it, an exception that no playbook knows included.
    """

    wraps: bool = False
    consequence_of: tuple[str, ...] = ()


class Playbook(Struct, frozen=True, forbid_unknown_fields=True):
    """One problem. `body` is the Markdown below the front matter. `next` is what to do with a run that has it."""

    id: str
    title: str
    families: tuple[str, ...]
    cause: str
    verified: str
    checks: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()
    relations: Relations = Relations()
    verify: tuple[Verify, ...] = ()
    fixes: tuple[Recipe, ...] = ()
    next: Action = "fix"
    versions: str | dict[str, str] = "any"
    sources: tuple[Source, ...] = ()
    basis: Literal["sourced", "general"] = "sourced"
    body: str = ""

    def section(self, heading: str) -> str:
        """Return the text below `## heading` in the body, "" where the body does not have it."""
        found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.body, re.M | re.S)
        return found.group(1).strip() if found else ""


class Library:
    """The playbooks of the doctor and of its plug-ins, read one at a time when they are asked for."""

    def __init__(self, directories: Iterable[Path] = (DIRECTORY,)) -> None:
        self._directories = tuple(directories)
        self._loaded: dict[str, Playbook] = {}

    def ids(self) -> tuple[str, ...]:
        """The IDs of all playbooks, sorted."""
        return tuple(sorted({path.stem for directory in self._directories for path in directory.glob("*.md")}))

    def get(self, playbook_id: str) -> Playbook:
        """The playbook with this ID.

        Raises:
            PlaybookError: no such playbook, or its file does not hold to the schema.
        """
        if playbook_id not in self._loaded:
            for directory in self._directories:
                path = directory / f"{playbook_id}.md"
                if os.path.isfile(path):
                    self._loaded[playbook_id] = load(path)
                    break
            else:
                raise PlaybookError(f"no playbook {playbook_id!r}")
        return self._loaded[playbook_id]


def load(path: Path) -> Playbook:
    """Read one playbook file.

    Raises:
        PlaybookError: no front matter, or front matter that does not hold to the schema.
    """
    import yaml  # only when a finding needs it: it costs a tenth of the whole command

    try:
        parts = path.read_text(encoding="utf-8").split("---\n", 2)
    except (OSError, UnicodeDecodeError) as error:
        raise PlaybookError(f"{path.name}: cannot be read: {error}") from None
    if len(parts) != 3 or parts[0]:
        raise PlaybookError(f"{path.name}: no front matter between two '---' lines")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is left out of some builds of PyYAML
    try:
        front: Any = yaml.load(parts[1], Loader=loader)
        front["verified"] = str(front.get("verified", ""))
        playbook = msgspec.convert({**front, "body": parts[2].strip() + "\n"}, Playbook)
    except (yaml.YAMLError, msgspec.ValidationError, TypeError, AttributeError, RecursionError) as error:
        raise PlaybookError(f"{path.name}: {' '.join(str(error).split())}") from None
    if playbook.id != path.stem:
        raise PlaybookError(f"{path.name}: its id is {playbook.id!r}; file name and id must agree")
    return playbook


def fill(recipe: Recipe, params: Mapping[str, str]) -> Fix:
    """A fix with its parameters in place, quoted for a shell since they come from facts that anybody may have written.

    A parameter that is not known, or that cannot be quoted where it stands, becomes `<name>`; the fix is then not
    complete. One made by `several` becomes as many words.
    """
    complete = True

    def replace(match: re.Match[str]) -> str:
        nonlocal complete
        values = params[match.group(1)].split(SEPARATOR) if match.group(1) in params else []
        before = recipe.command[: match.start()]
        if (
            not values
            or (len(values) > 1 and not all(values))
            or not all(_can_stand(value, before) for value in values)
        ):
            complete = False
            return f"<{match.group(1)}>"
        return " ".join(map(_quoted, values))

    command = _PARAMETER.sub(replace, recipe.command)
    # What an override does is only known now: `{{override}}` may be trust_remote_code=True.
    filled = msgspec.structs.replace(recipe, command=command) if recipe.kind == "config" else recipe
    return Fix(
        title=_in_words(recipe.title, params),
        kind=recipe.kind,
        safety=filled.safety,
        needs_root=recipe.needs_root,
        command=command.strip(),
        destroys=_in_words(filled.harm, params),
        caution=_in_words(recipe.caution, params),
        complete=complete and all(name in params for name in _PARAMETER.findall(recipe.title)),
        by_hand=recipe.by_hand,
    )


def _quoted(value: str) -> str:
    # A shell expands `~` only outside of quotes; recorded facts have it for the home directory.
    return "~/" + shlex.quote(value[2:]) if value[:2] == "~/" and value[2:] else shlex.quote(value)


def _in_words(text: str, params: Mapping[str, str]) -> str:
    words = {name: value.replace(SEPARATOR, ", ") for name, value in params.items()}
    return _PARAMETER.sub(lambda match: words.get(match.group(1), f"<{match.group(1)}>"), text)


def _can_stand(value: str, before: str) -> bool:
    """Whether `value`, quoted, is one harmless word after the text `before` of a command."""
    if _NEEDS_NO_QUOTES.fullmatch(value):
        return True
    # Inside of quotes or a here document, quotes of our own would close the outer ones instead of protecting.
    # Between backticks, a backtick of the value ends the substitution whatever quotes are around it.
    inside = "<<" in before or "`" in before or any(match.group(1) for match in _QUOTES.finditer(before))
    return value.isprintable() and not inside
