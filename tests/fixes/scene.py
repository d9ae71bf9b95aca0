"""A case of the table, and the place where it is played: a directory, variables, a shell, and the doctor in it."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.doctor import clinic
from rlcheck.doctor.settings import Settings
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.gather import gather
from tests.conftest import ROOT, base_environ

# Bash numbers descriptors of its own from 10 on; the report goes to a file, so that a fix may print what it likes.
_DOCTOR = 'cd "$ROOT" && exec "$PYTHON" -m rlcheck "${WORDS[@]}" --format json --output "$REPORT"'
_LIMIT_S = 300.0


@dataclass
class Scene:
    """Where a fault is planted.

    here: a directory of its own, in which fixes run; it is HOME, too.
    environ: variables of the shell besides the plain ones.
    lines: what the shell does first, each time: limits, mounts, the program whose log is diagnosed.
    words: the doctor's command line.
    shell: the command that starts the shell; `unshare` in front gives it mounts of its own.
    script: a script of a run; overrides are written into it.
    program: a command whose output becomes the file `log`, after the fix.
    closing: what to do at the end.
    """

    here: Path
    environ: dict[str, str | None] = field(default_factory=dict[str, str | None])
    lines: list[str] = field(default_factory=list[str])
    words: list[str] = field(default_factory=list[str])
    shell: tuple[str, ...] = ("bash",)
    script: Path | None = None
    program: str = ""
    closing: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])

    def doctor(self, fix: str = "") -> dict[str, Any]:
        """Return the report of a doctor who was started by the shell that has sourced FIX."""
        report, source = self.here / "report.json", self.here / "fix.sh"
        source.write_text(fix + "\n")
        report.unlink(missing_ok=True)
        program = f"{{ {self.program}; }} >log 2>&1 || true" if self.program else ""
        text = "\n".join((*self.lines, 'source "$FIX"', program, f"WORDS=({shlex.join(self.words)})", _DOCTOR))
        own = {"ROOT": str(ROOT), "PYTHON": sys.executable, "REPORT": str(report), "FIX": str(source)}
        done = subprocess.run([*self.shell, "-c", text], env=self.variables() | own, cwd=self.here, capture_output=True,
                              text=True, timeout=_LIMIT_S, check=False)  # fmt: skip
        assert report.exists(), f"{done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return json.loads(report.read_text())

    def looked_at(self, check: str) -> dict[str, Any]:
        """Return the report of this very process on a shell with these variables, which takes no time to start."""
        doctor = _doctor()
        checks = doctor.select((check,))
        facts = gather(ProbeContext(environ=self.variables()), doctor.probes_for(checks), _LIMIT_S)
        report = clinic.examine(doctor, (facts,), checks, Settings(), command="env", started=0.0)
        return msgspec.to_builtins(report)

    def variables(self) -> dict[str, str]:
        """The variables of the shell before the fix."""
        return base_environ({"HOME": str(self.here), **self.environ})

    def apply(self, fix: Mapping[str, Any]) -> str:
        """Put an override into the config; return what is left for the shell to run."""
        command = str(fix["command"])
        if fix["kind"] != "config" or self.words[0] == "env":
            return command
        if self.script is None:
            self.words += shlex.split(command)
        else:
            self.script.write_text(self.script.read_text().replace('"$@"', f'{command} \\\n    "$@"'))
        return ""


@functools.cache
def _doctor() -> clinic.Doctor:
    return clinic.summon()


Plant = Mapping[str, str | None] | Callable[[Scene], None]


@dataclass(frozen=True)
class Case:
    """One fault and the fix that must end it.

    kind: the family of causes, for the table's balance.
    check, playbook: who finds it; a case of a log has no check.
    fix: a part of the command of the fix that is run.
    plant: variables to set, or a function that plants it.
    after: the verdicts that mean "fixed".
    """

    kind: str
    check: str
    playbook: str
    fix: str
    plant: Plant
    after: tuple[str, ...] = ("pass",)

    @property
    def name(self) -> str:
        """For the test's name."""
        return f"{self.kind}-{self.check or self.playbook}-{self.fix}"[:70].replace(" ", "_").replace("/", "_")

    def play(self, here: Path) -> tuple[str, str]:
        """Plant the fault in HERE, run the fix; return the verdicts before and after ("" where nothing is found)."""
        scene = Scene(here)
        try:
            if callable(self.plant):
                self.plant(scene)
            else:
                scene.environ |= self.plant
            scene.words = scene.words or ["env"]
            if self.check:
                scene.words += ["--select", self.check]
            return self._fixed(scene)
        finally:
            for close in scene.closing:
                close()

    def _fixed(self, scene: Scene) -> tuple[str, str]:
        before = self.found(scene.doctor() if callable(self.plant) else scene.looked_at(self.check))
        assert before is not None, "the doctor does not find the fault"
        assert before["status"] in ("fail", "warn"), f"{before['status']}: {before.get('message', before)}"
        fixes = [fix for fix in before["fixes"] if self.fix in fix["command"]]
        assert fixes, [fix["command"] for fix in before["fixes"]]
        assert fixes[0]["complete"], fixes[0]
        after = self.found(scene.doctor(scene.apply(fixes[0])))
        return before["status"], after["status"] if after else ""

    def found(self, report: Mapping[str, Any]) -> dict[str, Any] | None:
        """The finding of this case in a report or a diagnosis."""
        if self.check:
            rows = [row for row in report["checks"] if row["id"] == self.check]
            assert all(row["playbook"] == self.playbook for row in rows), rows
        else:
            rows = [row for row in report["diagnoses"] if row["id"] == self.playbook]
        return rows[0] if rows else None


def root_only() -> None:
    """Skip where mounts of its own cannot be made."""
    if os.geteuid():
        pytest.skip("needs root for mounts of its own")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("`unshare -m` is not allowed here")
