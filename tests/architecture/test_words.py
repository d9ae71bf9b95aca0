"""The words of `docs/style.md`: what is wrong in nearly every use is refused where a user or a contributor reads it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command

from rlcheck.checks import builtin_checks
from rlcheck.cli.app import make_app
from rlcheck.playbook import Library, Playbook
from rltrain.cli.app import app as trainer_app
from tests.every import every

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tuple(directory for directory in (ROOT / "rlcheck", ROOT / "trainer") if directory.is_dir())

PAGES = sorted(page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if page.name != "style.md")
SAYING = ("passed", "info", "warn", "fail", "unknown", "skip")
DENIED = {
    r"mend(s|ed|ing)?": "fix",
    r"(is|are|was|were|be) told (at once|in a line|from|apart|after|by)": "report",
    r"told (apart|from)": "distinguish",
    r"tells? of": "report",
    r"no more in force": "no longer in force",
    r"(that|which|they|machine|actor) (has|have) not(?! (yet |been )?(\w+(ed|en|wn|un)|met|come|set|read|put|run)\b)": (
        "does not have"
    ),
    r"for ever": "forever",
    r"afresh|anew": "again, over",
    r"could not be made|checks? that cannot be made": "could not run",
    r"to be sure": "verify",
    r"stopped to": "stopped …ing",
    r"stands? (in|at|behind|above|below|there|here|twice)": "is",
    r"lies (in|on|at|beside|below|there|here|behind|between)": "is",
    r"any more from": "no longer",
}
# What a reader of playbooks, pages and checks meets. Elsewhere in the code the words may name a person or a place.
DENIED_FOR_READERS = {
    r"whoever|somebody|nobody": "anyone who, a process, no code: the noun that is meant",
    r"tells? (what|which|whose|whether|why|how|more|most|the rest)": "say, show",
    r"tells?( \w+){1,4} apart|tells?( \w+){1,3} from": "distinguish",
    r"can(not)? tell|(it|that|they|logs?|facts|shapes) tells?": "say, show",
    r"lies?": "is, are",
    r"stands?(?!-| (for|still|out)\b)": "is, are",
}
_DENIED = re.compile(rf"\b({'|'.join(DENIED)})\b", re.I)
_DENIED_FOR_READERS = re.compile(rf"\b({'|'.join((*DENIED, *DENIED_FOR_READERS))})\b", re.I)
# Where the words are right: a file that cannot be created, an argument's name.
ALLOWED = {"could not be made": ("rlcheck/checks/hub/access.py",), "afresh": ("trainer/",)}
PRONOUNS = re.compile(r"^(It|They|This|That|These|Those|What|Which|He|She)\b(?! (NCCL|Ray|Python|hf-xet|user|machine))")


def place_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _wrong(text: str, place: str, denied: re.Pattern[str] = _DENIED) -> list[str]:
    """The DENIED words in TEXT, but for code and quotations."""
    plain = re.sub(r"```.*?```|`[^`]*`|\"[^\"\n]{3,}\"|“[^”]*”", " ", text, flags=re.S)
    found = (match.group() for match in denied.finditer(" ".join(plain.split())))
    return [word for word in found if not place.startswith(ALLOWED.get(word.lower(), ("\0",)))]


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted(package.rglob("*.py"))


def _public_docstrings(tree: ast.Module) -> Iterator[str]:
    """All of them."""
    yield ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield ast.get_docstring(node) or ""


def _messages(tree: ast.Module) -> Iterator[str]:
    """What checks say: the literals given to `passed`, `fail` and the others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SAYING:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            for part in (part for value in given for part in ast.walk(value)):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


@every(PAGES, name=place_of)
def test_pages(page: Path) -> None:
    place = place_of(page)
    # Decisions are records: they keep the words of their day.
    denied = _DENIED if place.startswith("docs/adr/") else _DENIED_FOR_READERS
    assert not _wrong(page.read_text(encoding="utf-8"), place, denied)


@every([*_sources()], name=place_of)
def test_docstrings_and_messages(source: Path) -> None:
    tree, place = ast.parse(source.read_text(encoding="utf-8")), place_of(source)
    denied = _DENIED_FOR_READERS if place.startswith("rlcheck/checks/") else _DENIED
    texts = (*_public_docstrings(tree), *_messages(tree))
    assert not [word for text in texts for word in _wrong(text, place, denied)]


@pytest.mark.parametrize("app", [make_app(), trainer_app], ids=["rlcheck", "rltrain"])
def test_help(app: object) -> None:
    """Help texts use the words, and begin with a verb or a noun."""
    commands: dict[str, click.Command] = get_command(app).commands  # type: ignore
    assert commands
    for name, command in commands.items():
        assert not _wrong(command.help or "", name)
        for parameter in command.params:
            words = getattr(parameter, "help", None) or ""
            place = f"{name} {parameter.name}"
            assert not _wrong(words, place), place
            assert not re.match(r"(Or|As|If|So|It|Would|Which|But|And)\b", words), f"{place}: {words}"


def test_titles_and_headlines() -> None:
    """Titles are unique, and titles and headlines read alone: sentences without a pronoun that has lost its noun."""
    library, checks = Library(), builtin_checks()
    assert len({check.title for check in checks}) == len(checks)
    for check in checks:
        for words in (check.title, check.problem or library.get(check.playbook).title):
            assert not _wrong(words, check.id, _DENIED_FOR_READERS if words == check.title else _DENIED), words
            assert not PRONOUNS.match(words), words
            assert not words.endswith("."), words
        assert check.title != check.problem


@every([*map(Library().get, Library().ids())], name=lambda playbook: playbook.id)
def test_playbooks(playbook: Playbook) -> None:
    told = [
        playbook.title,
        playbook.cause,
        *(step.expect for step in playbook.verify),
        *(s.what for s in playbook.sources),
    ]
    told += [words for fix in playbook.fixes for words in (fix.title, fix.destroys)]
    assert not [word for text in told for word in _wrong(text, playbook.id)]
    body = "\n".join(line for line in playbook.body.splitlines() if not line.startswith("    "))
    assert not _wrong(body, playbook.id, _DENIED_FOR_READERS)


def test_the_list_can_fail() -> None:
    assert _wrong("A playbook says how to mend it.", "x") == ["mend"]
    assert _wrong("a token that this machine has not, or another", "x") == ["machine has not"]
    assert _wrong("It waits for ever, and is started anew.", "x") == ["for ever", "anew"]
    assert not _wrong("a peer that has not connected; `mend` in code", "x")
    assert PRONOUNS.match("It generates")
    assert not _wrong("A lock that nobody holds", "x")
    for wrong in ("Whoever comes first", "It lies here", "The finding tells what failed", "The reason stands last"):
        assert _wrong(wrong, "x", _DENIED_FOR_READERS), wrong
    for right in ("0.4 stands for that", "The run stands still", "Tell the administrator", "Ray tells it to use none"):
        assert not _wrong(right, "x", _DENIED_FOR_READERS), right
