"""`--format prometheus` and `--format nagios` of the command: codes of a plug-in, files that a collector polls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import base_environ, rlcheck
from tests.report.test_monitors import series, value

OOM = "docs/examples/oom.log"
BAD = ("env", "--facts", "tests/fixtures/machines/sglang-verl-conflict.json")


@pytest.mark.parametrize(
    "words",
    [("env", "--format", "nagios", "--no-such-option"), ("env", "--format=nagios", "--facts", "/nowhere"),
     ("diagnose", "-f", "nagios", "/nowhere"), ("run", "-fnagios"), ("no-such-command", "-f", "nagios")],
)  # fmt: skip
def test_what_cannot_be_asked_is_unknown_to_nagios(words: tuple[str, ...]) -> None:
    done = rlcheck(*words)
    assert done.code == 3, "2 would be CRITICAL"
    assert done.out.startswith("RLCHECK UNKNOWN - ")
    assert done.out.count("\n") == 1


def test_codes_are_those_of_a_plugin() -> None:
    assert rlcheck(*BAD).code == 1
    done = rlcheck(*BAD, "--format", "nagios")
    assert (done.code, done.out[:18]) == (2, "RLCHECK CRITICAL -")
    assert rlcheck("diagnose", OOM, "--format", "nagios").code == 2
    assert rlcheck("diagnose", "--format", "nagios", stdin=b"step 1\nstep 2\n").code == 0
    assert rlcheck("env", "--select", "SYS001", "-f", "nagios", "--help").out.startswith("Usage"), "help stays help"


def test_a_collector_never_finds_half_a_file(tmp_path: Path) -> None:
    """A writer that is killed in the middle leaves the old file, and its own has no name that node_exporter reads."""
    place = tmp_path / "rlcheck.prom"
    place.write_text("old")
    done = rlcheck(*BAD, "-f", "prometheus", "-o", place)
    assert done.code == 1
    assert value(series(place.read_text()), "rlcheck_exit_code") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rlcheck.prom"]
    program = (
        "import os, sys; from pathlib import Path; from rlcheck.cli.output import put; "
        "from rlcheck.cli.requests.report import Format\n"
        "def write(out):\n    out.write('x' * 99999); out.flush(); os._exit(9)\n"
        "put(write, Path(sys.argv[1]), Format.PROMETHEUS)"
    )
    before = place.read_text()
    done = subprocess.run([sys.executable, "-c", program, str(place)], env=base_environ(), timeout=60, check=False)
    assert done.returncode == 9
    assert place.read_text() == before
    assert [path.name for path in tmp_path.glob("*.prom")] == ["rlcheck.prom"]


def test_where_the_file_goes(tmp_path: Path) -> None:
    real = tmp_path / "real.prom"
    link = tmp_path / "link.prom"
    link.symlink_to(real)
    assert rlcheck(*BAD, "-f", "prometheus", "-o", link).code == 1
    assert link.is_symlink()
    assert real.stat().st_mode & 0o444 == 0o444, "node_exporter runs as another user"
    assert rlcheck(*BAD, "-f", "prometheus", "-o", "/dev/stdout", fresh=True).out.startswith("# HELP")
    done = rlcheck(*BAD, "-f", "prometheus", "-o", tmp_path / "none" / "x.prom")
    assert done.code == 2
    assert "No such file" in done.error_line
