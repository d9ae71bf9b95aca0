"""Faults that a program's own log shows: the program is run, its log diagnosed, the fix run, and the program again."""

from __future__ import annotations

import subprocess

from tests.fixes.scene import Case, Scene


def crlf(scene: Scene) -> None:
    """A script that was saved on Windows."""
    (scene.here / "run.sh").write_bytes(b"set -e\r\n\r\necho trained\r\n")
    _program(scene, "bash run.sh")


def _program(scene: Scene, command: str) -> None:
    scene.program = command
    scene.words = ["diagnose", str(scene.here / "log")]


def other_owner(scene: Scene) -> None:
    """A checkout of another user, as in a container that runs as root."""
    subprocess.run(["git", "init", "-q", str(scene.here)], check=True)
    scene.environ["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    _program(scene, "git status")


def few_files(scene: Scene) -> None:
    """A limit of open files that a loader of tensors exceeds."""
    text = "files = [open('/dev/null') for _ in range(200)]\nprint('loaded')\n"
    (scene.here / "load.py").write_text(text)
    scene.lines.append("ulimit -Sn 64")
    _program(scene, '"$PYTHON" load.py')


LOGS = (
    Case("script with CRLF", "", "script-has-windows-lines", "sed -i", crlf, ("",)),
    Case("ownership for git", "", "git-dubious-ownership", "safe.directory", other_owner, ("",)),
    Case("limits of a shell", "", "open-files-limit", "ulimit -n", few_files, ("",)),
)
