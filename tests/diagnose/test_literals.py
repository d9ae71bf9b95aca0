"""No branch of a signature's pattern is dead: every text that it matches holds the literal that is looked for first."""

from __future__ import annotations

import pytest

from rlcheck.playbook import Library
from tests.diagnose.matches import without

LIBRARY = Library()
IN_LOGS = [playbook_id for playbook_id in LIBRARY.ids() if LIBRARY.get(playbook_id).signatures]


@pytest.mark.parametrize("playbook_id", IN_LOGS)
def test_every_match_of_a_pattern_holds_its_literal(playbook_id: str) -> None:
    dead = [
        f"{text!r} lacks {signature.literal!r}: {signature.pattern}"
        for signature in LIBRARY.get(playbook_id).signatures
        for text in without(signature.pattern, signature.literal, signature.lines)
    ]
    assert not dead, "take a literal that all branches share, or a signature for each:\n" + "\n".join(dead)


@pytest.mark.parametrize(
    ("pattern", "literal", "dead"),
    [
        ("exit code 1", "exit code", []),
        ("exit (?:code|status) 1", "exit code", ["exit status 1"]),
        ("[Ee]xit code", "exit code", ["Exit code"]),
        ("exit +code", "exit code", ["exit  code"]),
        ("(?i)exit code", "exit code", ["EXIT CODE"]),
        ("exit(?: code)?", "exit code", ["exit"]),
        ("exit .{0,9}code", "exit code", ["exit exitcode"]),
        (r"code \d+", "code 1", ["code 7"]),
        ("(?:a|b)(?:b|c)ad", "ba", ["bcad"]),
        (r"(a|b) \1", "a", ["b b"]),
        ("(?=.*exit code)exit", "exit code", []),
        (r"exit code (?!0)\d", "exit code", []),
        (r"one(?:\n.*){1,3}exit code", "exit code", ["one\nexit code"]),
    ],
)
def test_what_is_dead_is_found(pattern: str, literal: str, dead: list[str]) -> None:
    found = without(pattern, literal, lines=3 if r"\n" in pattern else 1)
    assert {*dead} <= {*found}
    assert dead or not found
