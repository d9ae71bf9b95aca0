"""What `./install.sh demo` does once everything is installed: examine the machine, then train a toy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.install.script import ROOT, call, install, one_line

RUN_DEMO = """
VENV={venv} STACK={stack} ENGINE={engine} COMMAND=demo
command() {{ mkdir -p "$VENV/bin"; printf '#!/bin/bash\\n%s\\n' "$2" >"$VENV/bin/$1"; chmod 755 "$VENV/bin/$1"; }}
command rlcheck 'echo "rlcheck $*"; exit {health}'
command rltrain 'echo "rltrain $* in $PWD, first on PATH: ${{PATH%%:*}}"; exit {trained}'
run_demo
echo 'still here'
"""


def demo(
    machine: Path, *, stack: str = "cpu", engine: str = "vllm", health: int = 0, trained: int = 0
) -> subprocess.CompletedProcess[str]:
    """`run_demo` with stand-ins for both programs."""
    chmod = shutil.which("chmod", path="/usr/bin:/bin")
    assert chmod
    (machine / "chmod").symlink_to(chmod)
    venv = machine.parent / "venv"
    return call(machine, RUN_DEMO.format(venv=venv, stack=stack, engine=engine, health=health, trained=trained))


@pytest.mark.parametrize("trained", [0, 1, 130])
@pytest.mark.parametrize("stack", ["cpu", "cuda-vllm"])
def test_the_demo_ends_as_its_training_run(machine: Path, stack: str, trained: int) -> None:
    done = demo(machine, stack=stack, trained=trained)
    assert done.returncode == trained
    lines = done.stdout.splitlines()
    assert lines[0] == "rlcheck env"
    assert lines[-1].startswith("rltrain run toy-ppo in ")
    assert lines[-1].endswith(f"first on PATH: {machine.parent / 'venv' / 'bin'}")
    assert "runs/rltrain/toy-ppo" in lines[-2]
    assert done.stderr == ""


@pytest.mark.parametrize(("stack", "engine"), [("doctor", "vllm"), ("cpu", "none"), ("cuda-vllm", "none")])
def test_no_training_without_an_engine_to_roll_out(machine: Path, stack: str, engine: str) -> None:
    done = demo(machine, stack=stack, engine=engine)
    assert done.returncode == 0
    assert "rltrain" not in done.stdout
    assert "activate, then rlcheck --help\n" in done.stdout


def test_no_training_on_a_machine_that_would_fail_its_preflight(machine: Path) -> None:
    done = demo(machine, health=1)
    assert done.returncode == 0
    assert "rltrain run toy-ppo --ignore ID" in done.stdout
    assert "rltrain run toy-ppo in" not in done.stdout
    assert done.stdout.endswith("still here\n")


def test_a_doctor_that_fails_itself_ends_the_demo(machine: Path) -> None:
    done = demo(machine, health=3)
    assert done.returncode == 1
    assert "rlcheck itself failed (exit code 3)" in one_line(done)


def test_the_run_directory_that_the_help_names_is_the_recipes_own(machine: Path) -> None:
    section = yaml.safe_load((ROOT / "trainer" / "rltrain" / "recipes" / "toy-ppo.yaml").read_text(encoding="utf-8"))[
        "trainer"
    ]
    place = f"runs/{section['project_name']}/{section['experiment_name']}"
    assert "default_local_dir" not in section
    assert section["resume_mode"] == "disable"  # a second demo starts afresh
    assert place in install(machine, "--help").stdout
