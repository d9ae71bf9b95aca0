"""What `rltrain run` asks the doctor before it takes any device."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcheck import doctor
from rlcheck.config import ConfigError, load_settings
from rlcheck.facts.document import Facts, encode
from rlcheck.probes.context import ProbeContext
from rlcheck.probes.gather import gather
from rlcheck.report.model import Report
from rlcheck.report.render import render
from trainer import memory_check
from trainer.config.schema import RunConfig
from trainer.errors import RunFailure, UserError
from trainer.memory.as_facts import facts_of


@dataclass(frozen=True)
class Preflight:
    """What the doctor found, for `run.json`."""

    skipped: bool
    """With `--skip-checks`."""
    ignored: tuple[str, ...]
    report: Report | None = None
    facts: Facts | None = None
    """What the checks judged."""

    def facts_json(self) -> bytes:
        """For `facts.json`; no node if the preflight was skipped."""
        return encode((self.facts,) if self.facts else ())

    def line(self) -> str:
        """For the console."""
        if self.report is None:
            return "skipped (--skip-checks); what is wrong with this machine now shows late, while devices are held"
        summary = self.report.summary
        waived = f", waived: {', '.join(self.ignored)}" if self.ignored else ""
        return f"{summary.passed} checks of this machine passed, {summary.warn} warnings{waived}"

    def record(self) -> dict[str, Any]:
        """Findings other than passes and skips, and what was waived."""
        found = self.report.checks if self.report else ()
        return {
            "skipped": self.skipped,
            "ignored": list(self.ignored),
            "findings": [
                {"id": f.id, "status": f.status, "message": f.message, "waived": f.waived is not None}
                for f in found
                if f.status not in ("pass", "skip")
            ],
        }


def refuse_unknown(ignore: Sequence[str]) -> None:
    """Make sure that each ID of IGNORE is that of a check.

    Raises:
        UserError: one is not.
    """
    wanted = [name for name in ignore if name != memory_check.CHECK_ID]
    try:
        for name in wanted:
            doctor.summon().require(name)
    except doctor.SelectionError as error:
        raise UserError(f"--ignore: {error}") from None


def memory_complaint(config: RunConfig) -> str | None:
    """What `memory_check.complaint` says of CONFIG (resolved) on this machine's devices.

    Raises:
        UserError: the model's `config.json` cannot be used.
    """
    return memory_check.complaint(facts_of(config), memory_check.device_here(config.trainer.device))


def examine(config: RunConfig, ignore: Sequence[str], timeout_s: float) -> Preflight:
    """Examine this machine with rlcheck, and whether the run can fit in its memory; show what fails.

    Args:
        config: of the run, resolved.
        ignore: check IDs that must not stop the run; see `refuse_unknown`.
        timeout_s: for all probes together.

    Raises:
        UserError: the user's settings for rlcheck cannot be used.
        RunFailure: a check fails.
    """
    too_large = memory_complaint(config)
    if too_large and memory_check.CHECK_ID not in ignore:
        raise RunFailure(f"{too_large}; or waive it with --ignore {memory_check.CHECK_ID}")
    started = time.perf_counter()
    clinic = doctor.summon()
    try:
        checks = clinic.select(())
        facts = gather(ProbeContext(python=(), deep=False), clinic.probes_for(checks), timeout_s, _silent)
        report = doctor.examine(
            clinic,
            (facts,),
            checks,
            load_settings(Path.cwd()),
            command="env",
            ignore=tuple(name for name in ignore if name != memory_check.CHECK_ID),
            started=started,
        )
    except (ConfigError, doctor.SelectionError) as error:
        raise UserError(f"rlcheck's settings: {error}") from None
    failed = [finding for finding in report.checks if finding.status in ("fail", "error") and finding.waived is None]
    if failed:
        render(report, "text", sys.stdout)
        names = ", ".join(sorted({finding.id for finding in failed}))
        raise RunFailure(
            f"the preflight checks found what would stop this run ({names}, above): mend it, "
            f"or waive it with {' '.join('--ignore ' + name for name in sorted({f.id for f in failed}))}"
        )
    return Preflight(skipped=False, ignored=tuple(ignore), report=report, facts=facts)


def _silent(sections: tuple[str, ...]) -> None:
    """Probes take well under a second; nothing to say while they run."""
