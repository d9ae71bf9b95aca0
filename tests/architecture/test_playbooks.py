"""Playbooks hold to their schema, can be reached, and what they tell people to type is at least well-formed."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from rlcheck.checks import FAMILIES, builtin_checks
from rlcheck.playbook import Library, Playbook, fill

LIBRARY = Library()
IDS = LIBRARY.ids()
CHECKS = {check.id: check for check in builtin_checks()}
HEADINGS = ("## What happens", "## Why", "## How to be sure", "## How to mend", "## What does not help")
ROUTINE_HARM = re.compile(r"pkill -f|killall|rm -rf /tmp/ray|chown -R|--privileged|seccomp=unconfined|chmod -R 777")
ENVIRONMENT = re.compile(r"(export [A-Za-z_]\w*=\S.*|unset ([A-Za-z_]\w*|\{\{\w+\}\}))")


@pytest.fixture(params=IDS)
def playbook(request: pytest.FixtureRequest) -> Playbook:
    return LIBRARY.get(request.param)


def test_every_check_has_its_playbook_and_back() -> None:
    for check in CHECKS.values():
        assert check.id in LIBRARY.get(check.playbook).checks, f"{check.playbook} does not name {check.id}"
    for playbook_id in IDS:
        playbook = LIBRARY.get(playbook_id)
        for check_id in playbook.checks:
            assert CHECKS[check_id].playbook == playbook_id, f"{playbook_id} names {check_id}, which points elsewhere"
        assert playbook.checks or playbook.signatures, f"{playbook_id} cannot be reached"


def test_body_has_its_headings(playbook: Playbook) -> None:
    assert tuple(re.findall(r"^## .+$", playbook.body, re.M)) == HEADINGS
    assert set(playbook.families) <= set(FAMILIES)


def test_it_says_where_it_is_proved(playbook: Playbook) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", playbook.verified)
    assert playbook.sources or playbook.basis == "general"
    for source in playbook.sources:
        assert re.fullmatch(r"https?://[\w.-]+\.[a-z]{2,}(/[^\s<>\"]*)?", source.url), source.url
        assert source.what.strip()


def test_fixes_are_what_they_say(playbook: Playbook) -> None:
    assert playbook.fixes
    for fix in playbook.fixes:
        assert (fix.kind == "advice") == (not fix.command), f"{fix.title}: advice has no command, all others have one"
        if fix.safety == "unsafe":
            assert fix.destroys, f"{fix.title}: an unsafe fix says what it would destroy"
        if fix.safety == "safe":
            assert not fix.needs_root, f"{fix.title}: nothing that needs root is safe"
            assert fix.kind not in ("package",), f"{fix.title}: installing packages is not safe"
        if fix.kind == "env":
            assert all(ENVIRONMENT.fullmatch(line) for line in fix.command.strip().splitlines()), fix.command
        assert not ROUTINE_HARM.search(fix.command), f"{fix.title}: {fix.command}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to parse with")
def test_commands_parse(playbook: Playbook) -> None:
    names = {match for recipe in playbook.fixes for match in re.findall(r"\{\{(\w+)\}\}", recipe.command)}
    params = dict.fromkeys(names, "value")
    commands = [fill(recipe, params).command for recipe in playbook.fixes] + [step.run for step in playbook.verify]
    for command in filter(None, commands):
        done = subprocess.run(["bash", "-n"], input=command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_parameters_are_filled_by_its_checks(playbook: Playbook) -> None:
    """Each `{{name}}` that a fix has is given by at least one of the playbook's checks on a fixture of its own."""
    import importlib

    from rlcheck.facts.document import Facts

    given: set[str] = set()
    for check_id in playbook.checks:
        cases = importlib.import_module(f"tests.checks.{check_id[:3].lower()}.cases")
        others: dict[str, tuple[Facts, ...]] = vars(cases).get("OTHER_FIRES", {})
        for fires in (cases.CASES[check_id][0], *others.get(check_id, ())):
            given |= set(CHECKS[check_id].judge(fires).params)
    wanted = {
        match for recipe in playbook.fixes for match in re.findall(r"\{\{(\w+)\}\}", recipe.command + recipe.title)
    }
    assert not playbook.checks or wanted <= given, f"nobody fills {wanted - given}"
