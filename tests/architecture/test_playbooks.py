"""Playbooks hold to their schema, can be reached, and what they tell people to type is at least well-formed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from rlcheck.checks import builtin_checks
from rlcheck.families import FAMILIES
from rlcheck.playbook import DIRECTORY, Library, Playbook, Recipe, Relations, Signature, fill
from tests.every import every

LIBRARY = Library()
IDS = LIBRARY.ids()
CHECKS = {check.id: check for check in builtin_checks()}
HEADINGS = ("## What happens", "## Why", "## How to verify", "## How to fix", "## What does not help")
ROUTINE_HARM = re.compile(r"pkill -f|killall|rm -rf /tmp/ray|chown -R|--privileged|seccomp=unconfined|chmod -R 777")
CONTENT = re.compile(r"[a-z_]\w{3,}|\d+(?:\.\d+)*")
LEAST_OF_A_SENTENCE = 60
MOST_REPEATED = 0.7
ENVIRONMENT = re.compile(r"export (?:[A-Za-z_]\w*|\{\{\w+\}\})(?:=\S.*)?|unset (?:[A-Za-z_]\w*|\{\{\w+\}\})")


of_each_playbook = every(tuple(map(LIBRARY.get, IDS)), name=lambda playbook: playbook.id)


def test_every_check_has_its_playbook_and_back() -> None:
    for check in CHECKS.values():
        assert check.id in LIBRARY.get(check.playbook).checks, f"{check.playbook} does not name {check.id}"
    for playbook_id in IDS:
        playbook = LIBRARY.get(playbook_id)
        for check_id in playbook.checks:
            assert CHECKS[check_id].playbook == playbook_id, f"{playbook_id} names {check_id}, which points elsewhere"
        assert playbook.checks or playbook.signatures, f"{playbook_id} cannot be reached"
        for recipe in playbook.fixes:
            assert set(recipe.checks) <= {*playbook.checks, "logs"}, f"{playbook_id}: {recipe.title}"


@of_each_playbook
def test_body_has_its_headings(playbook: Playbook) -> None:
    """In their order. One that would only say the front matter again is left out."""
    found = re.findall(r"^## .+$", playbook.body, re.M)
    assert found == [heading for heading in HEADINGS if heading in found]
    assert all(playbook.section(heading.removeprefix("## ")) for heading in found)
    assert set(playbook.families) <= set(FAMILIES)


@of_each_playbook
def test_how_to_fix_says_more_than_the_fixes(playbook: Playbook) -> None:
    """Screens and pages print it below the fixes: it is whole sentences, and not their titles again."""
    words = " ".join(playbook.section("How to fix").split())
    if words:
        assert len(words) >= LEAST_OF_A_SENTENCE, f"a fragment: {words}"
        assert words.endswith("."), f"no whole sentence: {words}"
        assert repeated(words, playbook.fixes) < MOST_REPEATED, f"the fixes say it already: {words}"


def repeated(words: str, fixes: tuple[Recipe, ...]) -> float:
    """The share of the content words (numbers, and words of four letters or more) that titles of FIXES have, too."""
    mine = CONTENT.findall(words.lower())
    theirs = {*CONTENT.findall(" ".join(fix.title for fix in fixes).lower())}
    return sum(word in theirs for word in mine) / max(1, len(mine))


def test_a_repetition_is_found() -> None:
    fix = Recipe(title="Set a lower learning rate, or clip gradients at 1.0", kind="advice")
    assert repeated("Lower the learning rate, then clip the gradients at 1.0.", (fix,)) >= MOST_REPEATED
    assert repeated("Ranks of 8 to 64 are usual for RL.", (fix,)) < MOST_REPEATED


@of_each_playbook
def test_it_restates_no_default(playbook: Playbook) -> None:
    text = (DIRECTORY / f"{playbook.id}.md").read_text(encoding="utf-8").split("---\n", 2)[1]
    front = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    assert [*restated(front, Playbook)] == []


def restated(written: dict[str, Any], struct: type[msgspec.Struct]) -> Iterator[str]:
    """The fields of WRITTEN whose value is the default of STRUCT, those of the structs inside included."""
    inside: dict[str, type[msgspec.Struct]] = {"signatures": Signature, "fixes": Recipe, "relations": Relations}
    for field in msgspec.structs.fields(struct):
        value = written.get(field.name)
        if value is None:
            continue
        if not field.required and value == msgspec.json.decode(msgspec.json.encode(default(field))):
            yield field.name
        elif field.name in inside:
            for one in value if isinstance(value, list) else [value]:
                yield from (f"{field.name}: {name}" for name in restated(one, inside[field.name]))


def default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def test_a_restated_default_is_found() -> None:
    front = {
        "id": "x",
        "versions": "any",
        "checks": [],
        "relations": {"wraps": False, "consequence_of": ["y"]},
        "fixes": [{"needs_root": False}],
    }
    assert {*restated(front, Playbook)} == {"versions", "checks", "relations: wraps", "fixes: needs_root"}


@of_each_playbook
def test_it_says_where_it_is_proved(playbook: Playbook) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", playbook.verified)
    assert playbook.sources or playbook.basis == "general"
    for source in playbook.sources:
        assert re.fullmatch(r"https?://[\w.-]+\.[a-z]{2,}(/[^\s<>\"]*)?", source.url), source.url
        assert source.what.strip()


@of_each_playbook
def test_fixes_are_what_they_say(playbook: Playbook) -> None:
    assert playbook.fixes
    for fix in playbook.fixes:
        assert (fix.kind == "advice") == (not fix.command), f"{fix.title}: advice has no command, all others have one"
        assert fix.kind != "look" or fix.safety == "safe", f"{fix.title}: what only looks harms nothing"
        assert fix.kind != "package" or fix.safety == "unsafe", f"{fix.title}: installing packages is not safe"
        assert not re.match(r"(?i)(nothing|none|no)\b", fix.destroys), f"{fix.title}: that is a caution"
        if fix.kind == "env":
            assert all(ENVIRONMENT.fullmatch(line) for line in fix.command.strip().splitlines()), fix.command
        assert not ROUTINE_HARM.search(fix.command), f"{fix.title}: {fix.command}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to parse with")
@of_each_playbook
def test_commands_parse(playbook: Playbook) -> None:
    names = {match for recipe in playbook.fixes for match in re.findall(r"\{\{(\w+)\}\}", recipe.command)}
    params = dict.fromkeys(names, "value")
    commands = [fill(recipe, params).command for recipe in playbook.fixes] + [step.run for step in playbook.verify]
    for command in filter(None, commands):
        done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@of_each_playbook
def test_parameters_are_filled_by_its_checks(playbook: Playbook) -> None:
    """Each `{{name}}` that a fix has is given by at least one of the playbook's checks on a fixture of its own."""
    import importlib

    from rlcheck.facts.document import Facts

    given: dict[str, set[str]] = {}
    for check_id in playbook.checks:
        cases = importlib.import_module(f"tests.checks.{FAMILIES[check_id[:3]].topic}.cases")
        others: dict[str, tuple[Facts, ...]] = vars(cases).get("OTHER_FIRES", {})
        fires = (cases.CASES[check_id][0], *others.get(check_id, ()))
        given[check_id] = {name for facts in fires for name in CHECKS[check_id].judge(facts).params}
    for recipe in playbook.fixes if playbook.checks else ():
        wanted = {*re.findall(r"\{\{(\w+)\}\}", recipe.command + recipe.title)}
        filled = set[str]().union(*(given.get(check_id, set()) for check_id in recipe.checks or playbook.checks))
        assert wanted <= filled or recipe.checks == ("logs",), f"{recipe.title}: nobody fills {wanted - filled}"


@of_each_playbook
def test_a_fix_is_for_some_of_the_playbooks_checks(playbook: Playbook) -> None:
    """One that is for all of them names none."""
    for recipe in playbook.fixes:
        assert set(recipe.checks) <= {*playbook.checks, "logs"}, recipe.title
