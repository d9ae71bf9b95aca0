"""Help, version and completion."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlcheck import __version__
from tests.conftest import base_environ, in_terminal, rlcheck

COMMANDS = ("env", "collect", "merge", "explain", "list")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal(command: str) -> None:
    done = in_terminal(*command.split(), "--help", columns=80)
    assert done.code == 0
    assert "Usage:" in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert rlcheck(*command.split(), "-h").out.split() == done.out.split()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("explain sys00", "sys001"), ("explain SYS00", "SYS001"), ("explain shm-too", "shm-too-small"),
     ("env --select NC", "NCL001"), ("env --format j", "junit")],
)  # fmt: skip
def test_a_shell_completes_ids_and_formats(typed: str, offered: str) -> None:
    asked = {"_RLCHECK_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"rlcheck {typed}"}
    command = [sys.executable, "-c", "import sys; sys.argv = ['rlcheck']; from rlcheck.cli.app import main; main()"]
    done = subprocess.run(command, env=base_environ(asked), capture_output=True, text=True, check=False)
    assert offered in done.stdout, done.stderr


def test_md_is_short_for_markdown_and_other_words_are_refused() -> None:
    short, long = (rlcheck("env", "--select", "sys001", "--format", name).out for name in ("md", "markdown"))
    assert short == long
    assert "'xx' is not one of 'text'" in rlcheck("env", "--format", "xx").err


def test_help_names_every_command_and_the_exit_codes() -> None:
    text = rlcheck("--help").out
    for command in COMMANDS:
        assert f"  {command} " in text
    for code in ("0 healthy", "1 a check failed", "2 wrong options", "3 rlcheck itself failed"):
        assert code in " ".join(text.split())


def test_every_option_of_the_design_is_there() -> None:
    text = rlcheck("env", "--help").out
    options = "format output strict ignore select timeout facts python deep fix dry-run yes verbose ascii"
    for option in options.split():
        assert f"--{option}" in text


def test_without_a_command_it_helps() -> None:
    done = rlcheck()
    assert "Usage:" in done.out + done.err
    assert done.code in (0, 2)


def test_version() -> None:
    assert rlcheck("--version").out == f"rlcheck {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = rlcheck("--show-completion", shell, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert done.code == 0
    assert "complet" in done.out.lower()


def test_completion_completes() -> None:
    """As the shell calls it: the installed command, with what has been typed in two variables."""
    env = base_environ({"_RLCHECK_COMPLETE": "complete_bash", "COMP_WORDS": "rlcheck e", "COMP_CWORD": "1"})
    code = "import sys; sys.argv = ['rlcheck']; from rlcheck.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["env", "explain"]
