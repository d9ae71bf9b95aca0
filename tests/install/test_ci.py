"""What `.ci/run` does before the tests, and which of these never run beside others of their group."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SERIAL
from tests.install.script import ROOT, SCRIPT, command


@pytest.fixture
def checkout(machine: Path) -> Path:
    """A checkout with an install.sh that only says what it is to do, for root, on a machine with apt."""
    folder = machine.parent / "checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    command(folder, "install.sh", 'echo "install.sh $*, RUNLEVEL=$RUNLEVEL"; exit 5')
    command(machine, "id", "echo 0")
    command(machine, "dpkg", "exit 1")
    command(machine, "timeout", f'echo "$*" >>{machine.parent}/calls; shift; exec "$@"')
    command(machine, "apt-get", "exit 0")
    return folder


def ci(machine: Path, checkout: Path) -> tuple[str, list[str]]:
    """Its output, and what it asked of apt; it ends as install.sh does."""
    done = subprocess.run(
        [checkout / ".ci" / "run"], env={"PATH": str(machine)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (5, "")
    calls = machine.parent / "calls"
    return done.stdout, calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []


def test_it_installs_what_tests_need_within_a_deadline_then_runs_them(machine: Path, checkout: Path) -> None:
    said, (update, packages) = ci(machine, checkout)
    assert said == "install.sh test, RUNLEVEL=\n"
    assert update.startswith("600 apt-get ")
    assert update.endswith(" update")
    for package in ("chromium", "iproute2", "iptables", "munge", "openssh-server", "redis-server", "slurm-wlm"):
        assert f" {package}" in packages


def test_apt_that_fails_is_noted_and_fails_nothing(machine: Path, checkout: Path) -> None:
    command(machine, "apt-get", "echo first; echo 'E: Unable to locate package' >&2; exit 100")
    note, last = ci(machine, checkout)[0].splitlines()
    assert note.startswith("Note: apt could not install chromium ")
    assert note.endswith("E: Unable to locate package")
    assert last == "install.sh test, RUNLEVEL="


@pytest.mark.parametrize("missing", ["root", "apt-get", "lack"])
def test_apt_is_asked_by_root_alone_for_what_is_not_there(machine: Path, checkout: Path, missing: str) -> None:
    if missing == "root":
        command(machine, "id", "echo 1000")
    elif missing == "lack":
        command(machine, "dpkg", "exit 0")
    else:
        (machine / "apt-get").unlink()
    assert ci(machine, checkout) == ("install.sh test, RUNLEVEL=\n", [])


def test_it_runs_the_tests_through_the_script() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == 'exec "$(dirname "$0")/../install.sh" test'
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert os.access(SCRIPT, os.X_OK)


@pytest.mark.parametrize("part", [part for parts in SERIAL.values() for part in parts])
def test_every_serial_part_is_there(part: str) -> None:
    place = ROOT / "tests" / part
    assert place.is_dir() or place.with_suffix(".py").is_file()


def test_a_group_stays_in_one_worker() -> None:
    """By what pytest itself says ran where, two workers at work."""
    paths = ("tests/core/test_context.py", "tests/core/test_process.py", "tests/core/test_text.py")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-vv",
        "-n",
        "2",
        "--dist",
        "loadscope",
        "-p",
        "no:cacheprovider",
        *paths,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = set(re.findall(r"^\[(gw\d)\].*? (tests/\S+?)::", done.stdout, re.M))
    assert len({worker for worker, place in ran if "test_text" not in place}) == 1
    assert len({worker for worker, _ in ran}) == 2
