"""install.sh on a machine that is played by small commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "install.sh"


def command(bin_dir: Path, name: str, body: str) -> None:
    path = bin_dir / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


def python(bin_dir: Path, name: str, version: str, problem: str = "ok") -> None:
    """A command that answers as a Python of this version does, and whose `-m venv` fails."""
    answer = (
        f'case "$*" in *-m*) echo no venv today >&2; exit 1 ;; *) echo {version} {problem} {bin_dir / name} ;; esac'
    )
    command(bin_dir, name, answer)


def install(bin_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    venv = bin_dir.parent / "venv"
    options = ["--venv", str(venv)] if arguments and not any(a.startswith("--venv") for a in arguments) else []
    return subprocess.run(
        [str(bin_dir / "bash"), str(SCRIPT), *arguments, *options],
        env={"PATH": str(bin_dir), "HOME": str(bin_dir.parent)},
        cwd=bin_dir.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def call(bin_dir: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a few lines of bash after install.sh was read."""
    return subprocess.run(
        [str(bin_dir / "bash"), "-c", f"source {SCRIPT}\n{script}"],
        env={"PATH": str(bin_dir), "HOME": str(bin_dir.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The single line of complaint."""
    assert done.stderr.startswith("install.sh: "), done
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr
