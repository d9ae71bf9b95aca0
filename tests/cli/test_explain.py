"""`rlcheck explain` says each thing once, in the words of the reports."""

from __future__ import annotations

import re

import pytest

from rlcheck.check import Check
from rlcheck.checks import builtin_checks
from rlcheck.cli.explain import check_screen, playbook_screen
from rlcheck.playbook import Library
from tests.every import every

LIBRARY = Library()
CHECKS = builtin_checks()
LABELS = ["verify", "fix", "does not help", "source"]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def labels(screen: str) -> list[str]:
    return re.findall(r"^(what it does|found|why|verify|fix|does not help|source)$", screen, re.M)


@every(CHECKS, name=lambda check: check.id)
def test_a_check(check: Check) -> None:
    playbook = LIBRARY.get(check.playbook)
    screen = check_screen(check, playbook)
    assert labels(screen) == ["what it does", "why", *(label for label in LABELS if label in labels(screen))]
    assert {"verify", "fix", "source"} <= {*labels(screen)}
    flat = " ".join(screen.split())
    assert flat.count(f"rlcheck explain {playbook.id}") == 1
    assert " ".join(playbook.cause.split()) not in flat, "the check says why, and not the playbook again"
    for source in playbook.sources:
        assert re.search(rf"^  {re.escape(source.url)}$", screen, re.M)


@every(LIBRARY.ids())
def test_a_playbook(playbook_id: str) -> None:
    playbook = LIBRARY.get(playbook_id)
    screen = playbook_screen(playbook)
    assert [label for label in labels(screen) if label in (*LABELS, "found", "why")] == labels(screen)
    assert {"found", "why", "fix"} <= {*labels(screen)}
    sentences = re.split(r"(?<=[.!?])\s+", " ".join(playbook.body.split()))
    long = [sentence for sentence in sentences if len(sentence) > 40]
    assert len(long) == len(set(long)), "a sentence is in it twice"
    assert not re.search(r"{{\w+}}", re.sub(r"^ {4}.*$", "", screen, flags=re.M))
