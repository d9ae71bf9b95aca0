"""Of which distribution each side's log-probabilities are: the temperature that reproduces them, and the dtype."""

from __future__ import annotations

import time

from torch import Tensor

from rltrain.core.errors import RunFailure, UserError
from rltrain.measure.drift.attempts import Attempts
from rltrain.measure.drift.gaps import distance
from rltrain.measure.drift.measure import Measured, flat, gap_of
from rltrain.measure.drift.reread import Reading
from rltrain.measure.drift.sides import Sides
from rltrain.measure.drift.variants import Change

_ROUNDED = 0.1
"""Logits in 16 bits are off by less: a mean |log p| difference from which it is no rounding."""
_KEY = "actor_rollout_ref.rollout.temperature"


def temperature_changes(trials: Attempts, sides: Sides, found: Measured) -> None:
    """Read once more at several temperatures, LM head and log-softmax in float32 by code that no run uses."""
    answers, own = found.answers, sides.config.actor_rollout_ref.rollout.temperature
    tried, begun = _temperatures(own, trials.is_large), time.monotonic()
    try:
        with trials.report.stage("trying: temperatures, with logits in float32"):
            columns = sides.reread(answers.batch, Reading(temperatures=tried))
    except (UserError, RunFailure) as error:
        trials.add(_float32(), None, time.monotonic() - begun, str(error))
        return
    seconds = time.monotonic() - begun
    by_temperature = dict(zip(tried, columns, strict=True))
    sizes = {value: distance(*flat(answers, column)) for value, column in by_temperature.items()}
    best = min(sizes, key=lambda value: sizes[value])
    # Of flat distributions, a neighbour of the right temperature comes close, too.
    shown = best if trials.removes(sizes[best]) else 1.0
    if shown != own:
        trials.add(_of_engine(shown, own), gap_of(answers, by_temperature[shown]), seconds)
    trials.add(_of_own_code(trials, found, by_temperature, sizes[own]), gap_of(answers, by_temperature[own]), seconds)


def _temperatures(own: float, wide: bool) -> tuple[float, ...]:
    """OWN first; conventions that are confused with it; and where the gap is WIDE, all that anybody samples at."""
    confused = [1.0, 1 / own, own * own]
    grid = [round(0.1 * tenth, 1) for tenth in range(1, 21)] if wide else []
    return tuple(dict.fromkeys([own, *confused, *grid]))


def _of_own_code(trials: Attempts, found: Measured, columns: dict[float, Tensor], left: float) -> Change:
    """What it means that the training side, read by other code at the run's temperature, is off by LEFT."""
    mask, own = found.answers.batch["response_mask"].bool(), next(iter(columns))
    if not trials.removes(left):
        return _float32()
    sizes = {value: distance(column[mask], found.train[mask]) for value, column in columns.items()}
    best = min(sizes, key=lambda value: sizes[value])
    if best != own and trials.removes(sizes[best]):
        return _of_training(best, own)
    return _float32() if trials.size < _ROUNDED else _of_reading()


def _of_engine(temperature: float, own: float) -> Change:
    name, words = "rollout_temperature", f"temperature {temperature:g}, not {own:g}"
    if temperature == 1.0:
        name, words = "raw_log_probs", f"the model's own distribution, before temperature {own:g}"
    title = f"the engine's log-probabilities taken as those of {words}"
    return Change(name, title, family="wrong", side="rollout", overrides=_at_1(temperature))


def _of_training(temperature: float, own: float) -> Change:
    title = f"the training side at temperature {own:g}: it had read at {temperature:g}"
    return Change("train_temperature", title, family="wrong", side="training", overrides=_at_1(temperature))


def _at_1(found: float) -> tuple[str, ...]:
    """Where one side leaves the temperature out, both mean the same at 1."""
    return (f"{_KEY}=1.0",) if found == 1.0 else ()


def _float32() -> Change:
    return Change("float32_logits", "LM head, logits and log-softmax in float32 on the training side")


def _of_reading() -> Change:
    title = "logits and targets of the training side read by other code than its own"
    return Change("train_reading", title, family="wrong", side="training")
