"""A machine for install.sh."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.install.script import command

TOOLS = [
    "awk",
    "bash",
    "cat",
    "cksum",
    "cmp",
    "cp",
    "cut",
    "dirname",
    "env",
    "find",
    "getconf",
    "grep",
    "head",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "sort",
    "tail",
    "uname",
]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A directory with the system's tools, but no Python; what is written there stands for the machine."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool, path="/usr/bin:/bin")
        assert found, tool
        (bin_dir / tool).symlink_to(found)
    command(bin_dir, "uname", 'case "$1" in -s) echo Linux ;; -m) echo x86_64 ;; -n) echo here ;; esac')
    command(bin_dir, "getconf", "echo glibc 2.36")
    command(bin_dir, "df", "printf 'Filesystem 1024-blocks Used Available\\n/dev/sda 1 1 90000000\\n'")
    command(bin_dir, "du", "echo 0")
    return bin_dir
