"""What to change so that a run fits: single changes first, then the cheapest set of them, each as overrides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import Change, MemoryProfile
from rlcheck.measure.memory.cost import RARE, rank, slowdown
from rlcheck.measure.memory.ladders import Step, ladders, typed
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.summary import excess_bytes, fits, host_peak
from rlcheck.measure.memory.whatif import predicted, with_settings

_MAX_SINGLES = 6
_HELPS = 0.002
"""Part of the excess that a change must take away to be worth a line."""

_Judge = Callable[[Sequence[Step]], MemoryProfile]


def changes(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> tuple[Change, ...]:
    """Changes that make the run fit, cheapest first; empty where it fits as it is.

    Where no single change is enough, the first of the result is the cheapest set that was found; if nothing is
    enough, it is the set that comes nearest. Single changes that help follow.
    """

    def judge(steps: Sequence[Step]) -> MemoryProfile:
        return predicted(applied(run, steps), gpu, host_bytes)

    now = judge(())
    if fits(now):
        return ()
    usable = (_with_a_cache(judge, ladder) for ladder in ladders(run))
    families = sorted((ladder for ladder in usable if ladder), key=lambda ladder: rank(run, now, ladder[:1]))
    found = [(step, then) for ladder in families for step, then in _mildest(judge, ladder, now)]
    enough = [pair for pair in found if fits(pair[1])]
    if enough:
        enough.sort(key=lambda pair: rank(run, now, [pair[0]]))
        singles = [change(run, [step], now, then) for step, then in enough[:_MAX_SINGLES]]
        if enough[0][0].kind not in RARE:
            return tuple(singles)
        # More machines would do: say whether these can hold it as well.
        here = _together(run, judge, [ladder for ladder in families if ladder[0].kind not in RARE], now)
        return (*([here] if here is not None and here.fits else []), *singles)
    found = [pair for pair in found if _peak(pair[1]) < _peak(now)]
    found.sort(key=lambda pair: excess_bytes(pair[1]))
    singles = [change(run, [step], now, then) for step, then in found[:_MAX_SINGLES]]
    together = _together(run, judge, families, now)
    return (*([together] if together is not None else []), *singles)


def _peak(memory: MemoryProfile) -> int:
    return memory.peak.num_bytes if memory.peak is not None else 0


def applied(run: ConfigFacts, steps: Sequence[Step]) -> ConfigFacts:
    """The run with the settings of all steps, and with what they imply where no step says otherwise."""
    implied = {path: value for step in steps for path, value in step.implied}
    return with_settings(run, implied | {path: value for step in steps for path, value in step.settings})


def _with_a_cache(judge: _Judge, ladder: Sequence[Step]) -> Sequence[Step]:
    """The rungs that leave the engine a cache for at least one sequence: it would not start with less."""
    kept = list(ladder)
    while kept and kept[-1].kind == "less_cache" and judge(kept[-1:]).limits.concurrent_sequences == 0:
        kept.pop()
    return kept


def _mildest(judge: _Judge, ladder: Sequence[Step], now: MemoryProfile) -> list[tuple[Step, MemoryProfile]]:
    """The first rung that fits, else the strongest if it helps; nothing where it does not."""
    strongest = judge(ladder[-1:])
    if not fits(strongest):
        return [(ladder[-1], strongest)] if _helps(now, strongest) else []
    return next([(step, then)] for step in ladder if fits(then := judge([step])))


def _helps(now: MemoryProfile, then: MemoryProfile) -> bool:
    return excess_bytes(now) - excess_bytes(then) > _HELPS * excess_bytes(now)


def _together(run: ConfigFacts, judge: _Judge, families: Sequence[Sequence[Step]], now: MemoryProfile) -> Change | None:
    """Add the strongest of one family after the other, cheapest first, until it fits; then give back what one can."""
    taken: list[tuple[Step, Sequence[Step]]] = []
    reached = now
    for ladder in families:
        then = judge([*(step for step, _ in taken), ladder[-1]])
        if _helps(reached, then):
            taken, reached = [*taken, (ladder[-1], ladder)], then
        if fits(reached):
            break
    for place in sorted(range(len(taken)), key=lambda n: rank(run, now, [taken[n][0]]), reverse=True):
        taken, reached = _milder(judge, taken, place, reached)
    steps = [step for step, _ in taken if step.settings]
    return change(run, steps, now, reached) if steps else None


def _milder(
    judge: _Judge, taken: list[tuple[Step, Sequence[Step]]], place: int, reached: MemoryProfile
) -> tuple[list[tuple[Step, Sequence[Step]]], MemoryProfile]:
    """Leave the change at `place` out, or take a milder one of its family, if the rest is then still as good."""
    ladder = taken[place][1]
    for step in (Step("", "", ()), *ladder):
        tried = [*taken[:place], (step, ladder), *taken[place + 1 :]]
        then = judge([one for one, _ in tried])
        if excess_bytes(then) <= excess_bytes(reached):
            return tried, then
    return taken, reached


def change(run: ConfigFacts, steps: Sequence[Step], now: MemoryProfile, then: MemoryProfile) -> Change:
    """STEPS as one change of the run: what to type, and what the prediction THEN says of it."""
    host = host_peak(then)
    return Change(
        title=" + ".join(step.title for step in steps),
        overrides=tuple(
            dict.fromkeys(word for step in steps for path, value in step.settings for word in typed(run, path, value))
        ),
        peak_bytes=_peak(then),
        fits=fits(then),
        slowdown=round(slowdown(run, now, steps), 3),
        host_bytes=host.num_bytes if host is not None else 0,
    )
