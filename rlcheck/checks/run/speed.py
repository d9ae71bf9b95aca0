"""RUN051, RUN052: tokens in a second, and where the time of a step goes."""

from __future__ import annotations

from typing import NamedTuple

from rlcheck.check import Verdict, check, info, passed, skip, warn
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of
from rlcheck.checks.run.progress import STEP_TIME
from rlcheck.checks.run.settings import override
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import change_point, first_last, median, window
from rlcheck.measure.run.stages import BESIDE, IN_STEP

_SPEED = ("perf/throughput", "perf/tokens_per_second")
_LENGTH = ("response_length/mean",)
_FEWEST = 12
_WARM_UP = 2


class Stage(NamedTuple):
    """One stage: its share of the step's time over the whole run, and its medians at both ends, in seconds."""

    name: str
    share: float
    first: float
    last: float


@check("RUN051", "The throughput does not fall during the run", needs=NEEDS,
       playbook="run-slows-down", caused_by=("RUN053", "RUN054"), problem="The throughput falls")  # fmt: skip
def throughput(facts: Facts) -> Verdict:
    """Compares the throughput at the end of the run with that at its start.

    What it does:
        Warns when the run handles less than six tenths of the tokens in a second that it did at first, the first two
        steps left out. A change of the answers' length by over a quarter explains it, and is reported instead.

    Why it matters:
        A run that becomes slower without doing other work has a leak, a full disk or cache, a GPU that throttles, or a
        neighbour.
    """
    run = run_of(facts)
    curve = _without_start(curve_of(run, *_SPEED))
    if curve is None:
        return lacking(run, *_SPEED)
    if len(curve.values) < _FEWEST:
        return skip(f"{len(curve.values)} steps, too few for a trend ({_FEWEST} are judged)")
    first, last = first_last(curve) or (0.0, 0.0)
    words = f"{first:.4g} tokens/s a rank at first, {last:.4g} at the end"
    if first <= 0 or last >= limit("throughput_share") * first:
        return passed(words)
    lengths = first_last(curve_of(run, *_LENGTH) or Curve())
    if lengths is not None and abs(lengths[1] - lengths[0]) > limit("length_change") * max(lengths):
        return info(f"{words}, with answers of {lengths[0]:.4g}, then {lengths[1]:.4g} tokens",
                    details=drawn(run, *_SPEED, *_LENGTH))  # fmt: skip
    change = change_point(curve)
    since = change.step if change is not None and change.strength > limit("change_strength") else curve.steps[0]
    return warn(
        f"at least {limit('throughput_share') * first:.4g} tokens/s a rank, as at first",
        f"{last:.4g} tokens/s a rank, {first:.4g} at first"
        + (f"; it fell at step {since}" if since != curve.steps[0] else ""),
        details=(*_slower_words(run), *drawn(run, *_SPEED, *STEP_TIME, *_LENGTH)),
        evidence=(proof("perf/throughput", f"{last:.4g}", since, run.last_step),),
    )


def _without_start(curve: Curve | None) -> Curve | None:
    if curve is None or len(curve.steps) <= _WARM_UP:
        return curve
    return window(curve, curve.steps[_WARM_UP], curve.steps[-1])


def _slower_words(run: RunFacts) -> tuple[str, ...]:
    slower = sorted(stages_of(run), key=lambda stage: stage.first - stage.last)
    return tuple(f"{one.name}: {one.first:.3g} s at first, {one.last:.3g} s at the end" for one in slower[:2])


def stages_of(run: RunFacts) -> list[Stage]:
    """The stages of the run that are timed, each against the time of all steps."""
    step = curve_of(run, *STEP_TIME)
    whole = sum(step.values) if step is not None else 0.0
    found: list[Stage] = []
    for name in (*IN_STEP, *BESIDE):
        curve = _without_start(curve_of(run, f"timing_s/{name}"))
        ends = first_last(curve) if curve is not None else None
        if curve is not None and ends is not None and whole > 0:
            found.append(Stage(name, sum(run.curves[f"timing_s/{name}"].values) / whole, *ends))
    return found


@check("RUN052", "The time of a step goes where it should", needs=NEEDS, playbook="run-slows-down",
       caused_by=("RUN053",),
       problem="A stage takes more than its share of a step")  # fmt: skip
def stages(facts: Facts) -> Verdict:
    """Looks at the share of each stage in the time of a step, and for stages that became slower.

    What it does:
        Warns when weight sync, rewards, advantages, validation or checkpoints take a larger share than such stages
        should, when a large part of a step belongs to no stage, and when a stage takes twice as long as at first.

    Why it matters:
        Generation and updates are the work; all else is time in which the GPUs wait.
    """
    run = run_of(facts)
    found = stages_of(run)
    step = curve_of(run, *STEP_TIME)
    if step is None or len(found) < 2:
        return lacking(run, "timing_s/gen", "timing_s/step")
    if len(step.values) < 3:
        return skip(f"{len(step.values)} steps, too few to judge (3 are)")
    usual = median(step.values) or 0.0
    odd = [*_large(found, usual), *_unexplained(run, found, usual), *_slower(found)]
    if not odd:
        largest = sorted(found, key=lambda stage: -stage.share)[:3]
        return passed(", ".join(f"{stage.name} {stage.share:.0%}" for stage in largest) + f" of {usual:.3g} s a step")
    name, words = odd[0]
    return warn(
        "stages that take their usual share of a step",
        words,
        details=(*(more for _, more in odd[1:]), *drawn(run, *STEP_TIME, f"timing_s/{name}", "timing_s/gen")),
        evidence=(proof(f"timing_s/{name}", words, run.first_step, run.last_step),),
        params=_more_seldom(run, name),
    )


def _more_seldom(run: RunFacts, name: str) -> dict[str, str]:
    key = {"testing": "trainer.test_freq", "save_checkpoint": "trainer.save_freq"}.get(name, "")
    now = number_setting(run, key) if key else None
    return override(run, key, int(2 * now)) if now is not None and now > 0 else {}


def _large(found: list[Stage], usual: float) -> list[tuple[str, str]]:
    return [
        (stage.name, f"{stage.name} takes {stage.share:.0%} of the time of all steps (at most {most:.0%} is usual)")
        for stage in found
        if stage.name not in ("gen", "update_actor", "update_critic", "old_log_prob", "ref", "values", "reshard")
        and stage.share > (most := limit(f"stage_share_{stage.name}"))
        and stage.share * usual > limit("stage_seconds")
    ]


def _unexplained(run: RunFacts, found: list[Stage], usual: float) -> list[tuple[str, str]]:
    names = {stage.name for stage in found}
    if not {"gen", "update_actor"} <= names:
        return []
    left = 1 - sum(stage.share for stage in found if stage.name in IN_STEP)
    # Some frameworks count validation and checkpoints into the step, as rltrain does with these and its own.
    left -= sum(stage.share for stage in found if stage.name in BESIDE) + _of_rltrain(run)
    if left <= limit("stage_share_unexplained") or left * usual <= limit("stage_seconds"):
        return []
    return [("step", f"{left:.0%} of a step ({left * usual:.3g} s) belongs to no stage that is timed")]


def _of_rltrain(run: RunFacts) -> float:
    """The share of its audit and of what it keeps for `rlcheck step`."""
    curves = (curve_of(run, f"timing_s/{name}") for name in ("audit", "capsule"))
    step = curve_of(run, *STEP_TIME)
    return sum(sum(curve.values) for curve in curves if curve is not None) / (sum(step.values) if step else 1.0)


def _slower(found: list[Stage]) -> list[tuple[str, str]]:
    return [
        (stage.name, f"{stage.name} takes {stage.last:.3g} s at the end, {stage.first:.3g} s at first")
        for stage in found
        if stage.last > limit("stage_growth") * stage.first
        and stage.last - stage.first > limit("stage_seconds")
        and stage.share > limit("stage_share_seen")
    ]
