"""What `rltrain run` asks the doctor before it takes any device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.doctor import clinic
from rlcheck.doctor.settings import ConfigError, load_settings
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts, encode
from rlcheck.finding import Report
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.whole import as_here, gpus_for
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.preflight.chain import run_chain
from rlcheck.preflight.links import SLOW
from rlcheck.preflight.looks import SAMPLE_ROWS, looks
from rlcheck.preflight.state import Request
from rlcheck.redact import redact_bytes
from rlcheck.report.render import render
from rltrain.config import memory_check
from rltrain.config.as_facts import facts_of
from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.records.redaction import redacted, redacted_command


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
        return redact_bytes(encode((_without_secrets(self.facts),)), os.environ) if self.facts else encode(())

    def line(self) -> str:
        """For the console."""
        if self.report is None:
            return "skipped (--skip-checks); what is wrong with this machine now shows late, while devices are held"
        summary = self.report.summary
        waived = f", waived: {', '.join(self.ignored)}" if self.ignored else ""
        more = "" if not summary.warn else " (rlcheck preflight CONFIG shows them)"
        return f"{summary.passed} checks of machine and run passed, {summary.warn} warnings{more}{waived}"

    def record(self) -> dict[str, Any]:
        """Findings other than passes and skips, and what was waived."""
        found = self.report.checks if self.report else ()
        return {
            "skipped": self.skipped,
            "ignored": list(self.ignored),
            "links": self.report.data["preflight"] if self.report else [],
            "findings": [
                {
                    "id": f.id,
                    "status": f.status,
                    "message": f.message,
                    "playbook": f.playbook,
                    "waived": f.waived is not None,
                }
                for f in found
                if f.status not in ("pass", "skip")
            ],
        }


def refuse_unknown(ignore: Sequence[str]) -> None:
    """Make sure that each ID of IGNORE is that of a check.

    Raises:
        UserError: one is not.
    """
    try:
        for name in ignore:
            clinic.summon().require(name)
    except clinic.SelectionError as error:
        raise UserError(f"--ignore: {error}") from None


def _without_secrets(facts: Facts) -> Facts:
    """FACTS, with the values of the config as `run.json` has them."""
    run = facts.config.value
    if run is None:
        return facts
    given = {key: msgspec.structs.replace(place, text=redacted_command([place.text])[0]) if place.text else place
             for key, place in run.given.items()}  # fmt: skip
    values = {key: redacted(value, key) for key, value in run.values.items()}
    return msgspec.structs.replace(facts, config=known(msgspec.structs.replace(run, values=values, given=given)))


def memory_complaint(config: RunConfig) -> str | None:
    """What `memory_check.complaint` says of CONFIG (resolved) on this machine's devices.

    Raises:
        UserError: the model's `config.json` cannot be used.
    """
    return memory_check.complaint(facts_of(config), memory_check.device_here(config.trainer.device))


@dataclass(frozen=True)
class Origin:
    """What the user gave: CONFIG and its overrides, to be named in findings."""

    source: str
    overrides: tuple[str, ...] = ()


def examine(
    config: RunConfig,
    origin: Origin,
    ignore: Sequence[str],
    timeout_s: float,
    *,
    full: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> Preflight:
    """Go through rlcheck's chain of trust before the run; show what fails.

    Args:
        config: of the run, resolved and held against rltrain's own rules.
        origin: from which it was read.
        ignore: check IDs that must not stop the run; see `refuse_unknown`.
        timeout_s: for all probes together.
        full: also the links that take long: collectives, the engine, one step.
        told: called with a line for each link, when it is done.

    Raises:
        UserError: the user's settings for rlcheck cannot be used.
        RunFailure: a check fails.
    """
    too_large = memory_complaint(config)
    if too_large and memory_check.CHECK_ID not in ignore:
        raise RunFailure(f"{too_large}; or waive it with --ignore {memory_check.CHECK_ID}")
    return _examined(lambda: _request(config, origin, tuple(ignore), timeout_s, full), told)


def examine_machine(config: RunConfig, source: str, ignore: Sequence[str], timeout_s: float) -> Preflight:
    """As `examine`, of the machine alone: of CONFIG, supervised training as a run, the doctor judges nothing.

    Raises:
        UserError, RunFailure: as `examine`.
    """
    why = "of rltrain sft, whose configs rltrain alone reads"
    facts = facts_of(config)
    # On a GPU predictions are those of runs, with an engine; on a CPU they count what ranks hold.
    too_large = memory_complaint(config) if config.trainer.device == "cpu" else None
    if too_large and memory_check.CHECK_ID not in ignore:
        raise RunFailure(f"{too_large}; or waive it with --ignore {memory_check.CHECK_ID}")

    def request() -> Request:
        return Request(
            run=facts,
            sized=facts,
            source=source,
            overrides=(),
            context=ProbeContext(python=(), deep=False),
            settings=load_settings(Path.cwd()),
            ignore=tuple(ignore),
            left_out=dict.fromkeys((*SLOW, "data", "config", "memory"), why),
            timeout_s=timeout_s,
            most_rows=SAMPLE_ROWS,
        )

    return _examined(request, lambda _: None)


def _examined(make: Callable[[], Request], told: Callable[[str], None]) -> Preflight:
    doctor = clinic.summon()
    try:
        request = make()
        found = run_chain(request, looks(doctor), doctor, _Silent(), lambda step: told(f"{step.title}: {step.line()}"))
    except (ConfigError, clinic.SelectionError) as error:
        raise UserError(f"rlcheck's settings: {error}") from None
    report = found.report
    failed = [finding for finding in report.checks if finding.status in ("fail", "error") and finding.waived is None]
    if failed:
        # Tables of what is well are for `rlcheck preflight`; here the chain says how far it came.
        render(msgspec.structs.replace(report, exhibits=report.exhibits[-1:]), "text", sys.stdout)
        names = ", ".join(sorted({finding.id for finding in failed}))
        raise RunFailure(
            f"the preflight checks found what would stop this run ({names}, above): fix it, "
            f"or waive it with {' '.join('--ignore ' + name for name in sorted({f.id for f in failed}))}"
        )
    return Preflight(skipped=False, ignored=request.ignore, report=report, facts=found.nodes[0])


def _request(config: RunConfig, origin: Origin, ignore: tuple[str, ...], timeout_s: float, full: bool) -> Request:
    """The chain for this run: findings name places in what the user gave, memory is that of the resolved config."""
    sized = facts_of(config)
    left_out = {} if full else dict.fromkeys(SLOW, "--preflight full")
    if config.trainer.device == "cuda":
        prediction = memory_check.prediction_for(config)
        if prediction is None or not prediction.exact:  # an estimate is worth a look, and stops no run
            left_out["memory"] = "the sizes of this model are not known for certain"
    try:
        run = read_run(origin.source, origin.overrides, framework="rltrain")
        run = as_here(msgspec.structs.replace(run, num_gpus=gpus_for(run, True)))
    except ReadError as error:  # rltrain has read it: what the doctor makes of it then stops nothing
        run, left_out = sized, {**left_out, **dict.fromkeys(("data", "config"), f"the doctor cannot read it: {error}")}
    return Request(
        run=run,
        sized=sized,
        source=origin.source,
        overrides=origin.overrides,
        context=ProbeContext(python=(), deep=False),
        settings=load_settings(Path.cwd()),
        ignore=ignore,
        left_out=left_out,
        timeout_s=None if full else timeout_s,
        most_rows=max(SAMPLE_ROWS, 2 * config.data.train_batch_size),
    )


class _Silent:
    """Without the slow links there is nothing to say while the others are looked at."""

    def on(self, *what: str) -> None:
        """Nothing."""

    def on_names(self, names: tuple[str, ...]) -> None:
        """Nothing."""
