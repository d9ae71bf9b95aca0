"""`rltrain` is honest about what it is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rlcheck


def rltrain(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from trainer.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_version() -> None:
    done = rltrain("--version")
    assert (done.returncode, done.stdout) == (0, f"rltrain {rlcheck.__version__}\n")


def test_help() -> None:
    done = rltrain("--help")
    assert done.returncode == 0
    assert "doctor only" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("run", "toy-ppo"), ("run", "x.yaml", "a.b=1"), ("eval",), ("--what",)])
def test_anything_else_is_one_line_and_exit_2(arguments: tuple[str, ...]) -> None:
    done = rltrain(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "`rltrain run` is not there yet" in done.stderr
