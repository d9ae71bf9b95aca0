"""Every check has a page, a playbook, a fixture on which it fires and one on which it stays quiet."""

from __future__ import annotations

import importlib
import re

from rlcheck import judging
from rlcheck.check import Check, Evidence
from rlcheck.checks import builtin_checks
from rlcheck.facts.document import Facts, decode, encode, resolve
from rlcheck.families import FAMILIES
from rlcheck.playbook import Library
from tests.every import every

CHECKS = builtin_checks()
LIBRARY = Library()
HEADINGS = ("What it does", "Why it matters")
FIRES = {"fail", "warn", "info"}


of_each_check = every(CHECKS, name=lambda check: check.id)


def cases(check: Check) -> tuple[Facts, Facts]:
    module = importlib.import_module(f"tests.checks.{FAMILIES[check.family].topic}.cases")
    return module.CASES[check.id]


def test_there_are_enough_checks() -> None:
    assert len(CHECKS) >= 70
    assert {check.family for check in CHECKS} == set(FAMILIES)


def test_ids_and_titles_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert len({check.title for check in CHECKS}) == len(CHECKS)


@of_each_check
def test_page_has_its_headings(check: Check) -> None:
    missing = [heading for heading in HEADINGS if not check.section(heading).strip()]
    assert not missing, f"{check.id}: its docstring lacks {missing}"
    playbook = LIBRARY.get(check.playbook)
    assert playbook.fixes, f"{check.id}: its playbook names no fix"
    assert playbook.sources, f"{check.id}: its playbook has no source"
    found = re.findall(r"^ {4}([A-Z][\w ]+):$", check.doc, re.M)
    assert tuple(found) == HEADINGS, f"{check.id}: headings are {found}"


@of_each_check
def test_needs_exist(check: Check) -> None:
    for need in check.needs:
        # An empty document answers "not collected" for a path that exists and raises KeyError for one that does not.
        assert resolve(Facts(), need) is not None
        _walk_types(need)


def _walk_types(path: str) -> None:
    """Follow the path through the types, so that a misspelt tail is found, too."""
    import msgspec

    here: object = Facts
    for part in path.split("."):
        fields = {field.name: field for field in msgspec.structs.fields(here)}  # type: ignore[arg-type]
        assert part in fields, f"{path}: {here} has no field {part}"
        here = _inner(fields[part].type)


def _inner(annotation: object) -> object:
    import typing

    from rlcheck.facts.base import Fact

    if typing.get_origin(annotation) is Fact:
        return typing.get_args(annotation)[0]
    return annotation


@of_each_check
def test_causes_exist(check: Check) -> None:
    assert set(check.caused_by) <= {c.id for c in CHECKS}


@of_each_check
def test_fires_and_stays_quiet(check: Check) -> None:
    fires, quiet = cases(check)
    loud = judging.judge(_through_json(fires), (check,), LIBRARY)[0]
    calm = judging.judge(_through_json(quiet), (check,), LIBRARY)[0]
    assert loud.status in FIRES, f"{check.id}: {loud.status}: {loud.message}"
    assert calm.status in {"pass", "skip"}, f"{check.id}: {calm.status}: {calm.message}"
    if loud.status in {"fail", "warn"}:
        assert loud.expected, f"{check.id}: a problem says what was expected"
        assert loud.found, f"{check.id}: a problem says what was found"
        assert loud.why, f"{check.id}: a problem says why it matters"
        assert loud.fixes, f"{check.id}: a problem names at least one fix"
    assert all(isinstance(item, Evidence) for item in loud.evidence)


@of_each_check
def test_without_facts_it_never_passes(check: Check) -> None:
    finding = judging.judge(Facts(), (check,), LIBRARY)[0]
    assert finding.status == "unknown", f"{check.id}: {finding.status}: {finding.message}"


def _through_json(facts: Facts) -> Facts:
    """As it would arrive from a file: a check may not depend on anything that JSON does not carry."""
    return decode(encode((facts,)))[0]
