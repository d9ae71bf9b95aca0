"""RUN050: the run goes on, or came to its end."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown
from rlcheck.checks.run.causes import ROOTS
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median
from rlcheck.measure.run.stages import STEP_TIME


@check("RUN050", "The run makes progress", needs=NEEDS, playbook="run-makes-no-progress", caused_by=ROOTS,
       problem="The run stopped or hangs")  # fmt: skip
def progress(facts: Facts) -> Verdict:
    """Looks at how the run ended, or how long it has been silent.

    What it does:
        Fails when the run failed, when its process is gone though nothing says that it ended, and when a running one
        has written nothing for ten times as long as a step takes (300 s at least). A run that was interrupted, and one
        of which it is not known whether it still runs, is reported without a verdict.

    Why it matters:
        A run that hangs holds its GPUs. Most hangs are one rank that died or waits while all others wait for it.
    """
    run = run_of(facts)
    if run.outcome == "failed":
        return _ended(run, f"it failed {_where(run)}{f': {run.error}' if run.error else ''}")
    if run.outcome == "dead":
        return _ended(run, f"its process is gone {_where(run)}, and nothing says that it ended")
    if run.outcome == "finished" or 0 < run.total_steps <= run.last_step:
        return passed(f"it finished, {run.num_steps} steps")
    if run.outcome == "interrupted":
        return info(f"it was interrupted {_where(run)}{_planned(run)}")
    return _silence(run)


def _where(run: RunFacts) -> str:
    return f"after step {run.last_step}" if run.num_steps else "before its first step"


def _planned(run: RunFacts) -> str:
    return f", {run.total_steps} were planned" if run.total_steps else ""


def _ended(run: RunFacts, found: str) -> Verdict:
    return fail(
        f"a run that reaches step {run.total_steps}" if run.total_steps else "a run that goes on",
        found,
        details=drawn(run, "critic/score/mean", "timing_s/step"),
        evidence=(evidence("run.outcome", run.outcome, run.source),),
    )


def _silence(run: RunFacts) -> Verdict:
    idle = run.idle_s.value
    if idle is None:
        return skip("nothing says whether it still runs") if run.num_steps else unknown("it has written no step")
    times = curve_of(run, *STEP_TIME)
    usual = median(times.values) if times is not None else None
    longest = max(times.values) if times is not None else 0.0
    allowed = max(limit("stall_steps") * (usual or 0.0), limit("stall_seconds"), 2 * longest)
    words = f"silent for {_time(idle)} {_where(run)}" + (f"; a step takes {_time(usual)}" if usual else "")
    if idle <= allowed or (not run.num_steps and idle <= limit("first_step_seconds")):
        return passed(words)
    if run.outcome != "running":
        return info(f"{words}{_planned(run)}; nothing says whether it still runs")
    return fail(
        f"a step within {_time(allowed)}",
        words,
        details=drawn(run, *STEP_TIME, "timing_s/gen"),
        evidence=(evidence("run.idle_s", f"{idle:.0f}", run.source),),
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
