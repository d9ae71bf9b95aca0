"""Every command line of rlcheck and rltrain in a playbook is one: the command exists, and takes its options."""

from __future__ import annotations

import re
import shlex

import pytest
import typer
from typer.main import get_command

from rlcheck.cli.app import make_app
from rlcheck.playbook import Library, Playbook
from rltrain.cli.app import app as trainer_app
from tests.every import every

LIBRARY = Library()
COMMANDS = {
    "rlcheck": get_command(make_app()).commands,  # type: ignore[attr-defined]
    "rltrain": get_command(trainer_app).commands,  # type: ignore[attr-defined]
}
# Said of the programs themselves: "rltrain reads", "rlcheck takes".
VERBS = {"and", "does", "has", "never", "reads", "refuses", "says", "shares", "takes"}
_CALL = re.compile(r"\b(rlcheck|rltrain) ([a-z][a-z-]*)")


def problem_of(line: str) -> str:
    """What is wrong with LINE as a call of one of the programs; "" for nothing."""
    program, name, *words = shlex.split(re.sub(r"\{\{\w+\}\}|<\w+>", "x", re.split(r" (?:\|\||&&|\||;|>) ", line)[0]))
    command = COMMANDS[program].get(name)
    if command is None:
        return f"{line}: no command {name!r}"
    try:
        command.make_context(name, words)
    except typer.Exit:  # --help
        return ""
    except Exception as error:  # of the click inside of typer, which has no public name
        return f"{line}: {error}"
    return ""


def calls(playbook: Playbook) -> list[str]:
    """The calls in its commands and between its backticks."""
    typed = [step.run for step in playbook.verify] + [recipe.command for recipe in playbook.fixes]
    lines = [line.strip() for text in typed for line in text.splitlines()]
    spans = re.findall(r"`([^`]+)`", prose(playbook))
    return [line for line in (*lines, *spans) if _CALL.match(line) and "…" not in line]


def prose(playbook: Playbook) -> str:
    words = [playbook.title, playbook.cause, *(step.expect for step in playbook.verify)]
    return " ".join((*words, *(recipe.title for recipe in playbook.fixes), playbook.body))


@every(LIBRARY.ids())
def test_its_calls_are_understood(playbook_id: str) -> None:
    playbook = LIBRARY.get(playbook_id)
    assert [problem for call in calls(playbook) if (problem := problem_of(call))] == []
    named = {(program, name) for program, name in _CALL.findall(prose(playbook)) if name not in VERBS}
    assert [f"{program} {name}" for program, name in named if name not in COMMANDS[program]] == []


def test_there_are_calls_to_look_at() -> None:
    assert sum(len(calls(LIBRARY.get(id))) for id in LIBRARY.ids()) > 80


@pytest.mark.parametrize("line", ["rlcheck doctor", "rlcheck env --no-such-option", "rltrain walk my.yaml"])
def test_a_call_that_is_none_is_found(line: str) -> None:
    assert problem_of(line)
