"""Pictures of the terminal: real output of the command on recorded facts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURES = {
    "broken-venv": ("env", "--facts", "tests/fixtures/machines/sglang-verl-conflict.json"),
    "healthy-h200": ("env", "--facts", "tests/fixtures/machines/h200-host.json"),
}


def picture(arguments: tuple[str, ...]) -> str:
    """What the command prints on a terminal of 80 columns, as SVG."""
    from rich.console import Console
    from rich.text import Text

    output = _in_terminal([sys.executable, "-m", "rlcheck", *arguments])
    output = re.sub(r" in \d+\.\d+ s", "", output)
    console = Console(record=True, width=84, file=open(os.devnull, "w", encoding="utf-8"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(f"$ rlcheck {' '.join(arguments)}\n{output}".rstrip()))
    svg = console.export_svg(title="rlcheck", unique_id="rlcheck")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _in_terminal(argv: list[str]) -> str:
    import pty

    leader, follower = pty.openpty()
    environ = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen(argv, stdout=follower, stderr=subprocess.DEVNULL, env=environ, cwd=ROOT)
    os.close(follower)
    chunks: list[bytes] = []
    try:
        while chunk := os.read(leader, 1 << 16):
            chunks.append(chunk)
    except OSError:  # EIO: the other end is closed
        pass
    process.wait(60)
    return b"".join(chunks).decode().replace("\r\n", "\n")
