"""From a run's curves: what each stage of a step takes, the batch, the tail of its answers, times by rank."""

from __future__ import annotations

from collections import defaultdict

from rlcheck.facts.base import value_or
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.facts.slow import RankTimes, StageCost, Tail
from rlcheck.measure.run.look import median, window
from rlcheck.measure.run.stages import BESIDE, IN_STEP, STEP_TIME
from rlcheck.measure.slow.floors import Batch, Floor, engines_of
from rlcheck.measure.slow.tail import tail_of, usual

_WARM_UP = 2
_FEWEST = 3
_AFTER = ("audit", "capsule")
"""Of rltrain, between steps."""


def settled(run: RunFacts, *names: str) -> Curve:
    """The first curve of NAMES that the run has, without its first two steps where it is longer than that."""
    for name in names:
        curve = run.curves.get(name)
        if curve is not None and curve.values:
            long = len(curve.steps) >= _WARM_UP + _FEWEST
            return window(curve, curve.steps[_WARM_UP], curve.steps[-1]) if long else curve
    return Curve()


def step_seconds(run: RunFacts) -> float:
    """Of a step, the median; 0 where it is not logged."""
    return median(settled(run, *STEP_TIME).values) or 0.0


_DONE_AT_ALL = 0.5
"""Of a pass's floor, which a GPU at its peak would take 0.6 of: a stage that takes less does something else."""


def stage_costs(run: RunFacts, floors: dict[str, Floor]) -> tuple[StageCost, ...]:
    """The stages, the longest first. What is not done in each step counts by its share of all steps' time."""
    whole = settled(run, *STEP_TIME)
    total = sum(whole.values)
    found: list[StageCost] = []
    for name in (*IN_STEP, *BESIDE, *_AFTER):
        curve = settled(run, f"timing_s/{name}")
        if not curve.values or total <= 0:
            continue
        seconds = sum(curve.values) / len(whole.values) if name in (*BESIDE, *_AFTER) else median(curve.values) or 0.0
        if seconds <= 0:
            continue
        floor = floors.get(name)
        if floor is not None and seconds < _DONE_AT_ALL * floor.seconds:
            floor = None  # rltrain's update reads the old log-probabilities itself, where it may
        found.append(
            StageCost(
                name=name,
                seconds=seconds,
                share=min(1.0, sum(curve.values) / total),
                floor_s=floor.seconds if floor is not None else 0.0,
                floor_why=floor.why if floor is not None else "",
            )
        )
    return tuple(sorted(found, key=lambda one: -one.seconds))


def batch_of(run: RunFacts, config: ConfigFacts | None) -> Batch | None:
    """The usual batch; None where the run does not say how long its answers are."""
    answer = median(settled(run, "response_length/mean").values) or 0.0
    if answer <= 0:
        return None
    prompt = median(settled(run, "prompt_length/mean").values) or 0.0
    tokens = median(settled(run, "perf/total_num_tokens").values) or 0.0
    longest = median(settled(run, "response_length/max").values) or 0.0
    requests = 0.0
    if tokens > 0 and prompt > 0:
        requests = tokens / (prompt + answer)
    elif config is not None:
        requests = float(config.spec.data.train_batch_size * config.spec.rollout.n)
        if not prompt:
            prompt = max(0.0, tokens / requests - answer) if requests else 0.0
    return Batch(requests, prompt, answer, longest)


def tail_in(run: RunFacts, batch: Batch | None, config: ConfigFacts | None) -> Tail | None:
    """The tail of the usual round: from the lengths of samples, else from the mean and the longest answer alone."""
    places = 0
    if config is not None:
        rollout, spec = config.spec.rollout, config.spec
        places = rollout.max_seqs * engines_of(spec)
    by_step: defaultdict[int, list[float]] = defaultdict(list)
    for row in value_or(run.samples, ()):
        if row.length > 0:
            by_step[row.step].append(row.length)
    expected = int(batch.requests) if batch is not None else 0
    whole = [rows for rows in by_step.values() if len(rows) >= 0.9 * expected]
    tails = [tail_of(rows, places or len(rows), "lengths of its answers") for rows in whole]
    if found := usual([tail for tail in tails if tail is not None]):
        return found
    if batch is None or batch.longest <= 0 or batch.requests < 2 or (places and places < batch.requests):
        return None
    return Tail(
        requests=int(batch.requests),
        running=-1,
        part=0.0,
        occupied=min(1.0, batch.answer / batch.longest),
        longest=batch.longest,
        mean=batch.answer,
        source="response_length/mean and max",
    )


def rank_times(run: RunFacts) -> tuple[RankTimes, ...]:
    """Times that the ranks wrote themselves, by phase."""
    found: list[RankTimes] = []
    for name, curves in run.ranks.items():
        if not name.startswith("timing_s/") or len(curves) < 2 or name in STEP_TIME:
            continue
        if all(len(curve.values) >= _FEWEST for curve in curves):
            times = tuple(median(curve.values) or 0.0 for curve in curves)
            found.append(RankTimes(phase=name.removeprefix("timing_s/"), own=times, steps=len(curves[0].values),
                                   source="metrics of each rank"))  # fmt: skip
    return tuple(found)
