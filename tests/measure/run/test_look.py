"""Statistics of curves: against brute force on random curves, and on curves whose answer is known."""

from __future__ import annotations

import math
import random
import statistics
import time

import pytest

from rlcheck.facts.run import Curve
from rlcheck.measure.run import look
from rlcheck.text import BLOCKS


def curve(*values: float, first: int = 1) -> Curve:
    return Curve(steps=tuple(range(first, first + len(values))), values=values)


def noisy(count: int, seed: int, level: float = 0.0, slope: float = 0.0) -> list[float]:
    rng = random.Random(seed)
    return [level + slope * place + rng.gauss(0, 1) for place in range(count)]


EMPTY = Curve()


def test_empty_and_short_curves_have_no_statistics() -> None:
    for short in (EMPTY, curve(1.0)):
        assert look.first_last(short) is None
        assert look.slope(short) is None
        assert look.change_point(short) is None
        assert look.noise(short) is None
        assert look.spikes(short, 2) == ()
        assert look.left_band(short, 0, 0.5) is None
        assert look.correlation(short, short) is None
    assert look.median([]) is None
    assert look.mad([]) is None
    assert look.chart(EMPTY) == ""
    assert look.smooth(EMPTY, 3) == EMPTY
    assert look.charted("a", EMPTY) == "a: no values"


def test_median_and_mad_are_those_of_the_definition() -> None:
    values = noisy(101, 1)
    assert look.median(values) == statistics.median(values)
    centre = statistics.median(values)
    assert look.mad(iter(values)) == statistics.median(abs(value - centre) for value in values)
    assert look.median([1.0, 2.0, 4.0, 100.0]) == 3.0


def test_noise_is_that_of_neighbours_and_not_the_trend() -> None:
    found = look.noise(curve(*noisy(2000, 3, slope=5.0)))
    assert found is not None
    assert abs(found - 1) < 0.1


def test_window_holds_both_ends_and_the_steps_without_a_number() -> None:
    whole = Curve(steps=(1, 3, 5, 9), values=(1.0, 3.0, 5.0, 9.0), nonfinite=(2, 4, 10), name="x")
    assert look.window(whole, 3, 8) == Curve(steps=(3, 5), values=(3.0, 5.0), nonfinite=(4,), name="x")
    assert look.window(whole, 11, 12).steps == ()
    assert look.value_at(whole, 5) == 5.0
    assert look.value_at(whole, 4) is None
    assert look.value_at(whole, 99) is None


@pytest.mark.parametrize("k", [0, 1, 2, 7, 40])
def test_smooth_is_the_moving_median(k: int) -> None:
    values = [round(value, 1) for value in noisy(31, k)]
    expected = [statistics.median(values[max(0, at - k) : at + k + 1]) for at in range(31)]
    assert look.smooth(curve(*values), k).values == pytest.approx(expected)


def test_first_last_compares_the_ends() -> None:
    assert look.first_last(curve(1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 2.0, 4.0)) == (1.0, 3.0)
    assert look.first_last(curve(1.0, 2.0)) == (1.0, 2.0)
    assert look.first_last(curve(*range(100)), share=0.5) == (24.5, 74.5)


def test_slope_is_per_step_and_does_not_follow_an_outlier() -> None:
    values = noisy(300, 5, slope=0.5)
    values[40] = 1e9
    found = look.slope(Curve(steps=tuple(range(0, 600, 2)), values=tuple(values)))
    assert found is not None
    assert abs(found - 0.25) < 0.02


@pytest.mark.parametrize("count", [12, 40, 90, 1000, 10_000])
def test_a_step_change_is_found_where_it_is(count: int) -> None:
    place = count // 3
    values = [value + (20 if at >= place else 0) for at, value in enumerate(noisy(count, count))]
    found = look.change_point(curve(*values))
    assert found is not None
    assert found.step == place + 1
    assert found.strength > 8 or count < 40
    assert found.after - found.before == pytest.approx(20, abs=3)


@pytest.mark.parametrize("place", [2, 3, 5, 7, 8])
def test_a_clean_step_in_ten_points_is_found_at_every_place(place: int) -> None:
    found = look.change_point(curve(*([1e-8] * place + [0.1] * (10 - place))))
    assert found == look.Change(place + 1, 1e-8, 0.1, look.STRONGEST)


def test_noise_trend_and_outlier_are_no_step_change() -> None:
    strongest = 0.0
    for seed in range(40):
        for slope in (0.0, 0.3):
            found = look.change_point(curve(*noisy(100, seed, slope=slope)))
            strongest = max(strongest, found.strength if found else 0.0)
    assert strongest < 8
    lonely = noisy(100, 7)
    lonely[50] = 1e6
    found = look.change_point(curve(*lonely))
    assert found is not None
    assert found.strength < 8
    assert look.change_point(curve(*[3.0] * 50)) is None


def test_spikes_stand_above_what_came_before() -> None:
    values = [1.0, 1.2, 0.9, 1.1, 9.0, 1.0, 1.0, 8.0]
    assert look.spikes(curve(*values), 5) == (5, 8)
    assert look.spikes(curve(*values), 20) == ()
    assert look.spikes(curve(9.0, 1.0, 1.0, 1.0), 5) == (), "nothing stands before the first"
    assert look.spikes(curve(*[0.0] * 9, 5.0), 5) == ()
    lasting = look.spikes(curve(*[1.0] * 30, *[50.0] * 30), 5)
    assert lasting[0] == 31
    assert len(lasting) == 8


def test_spikes_use_the_median_of_the_points_before() -> None:
    values = [abs(value) + 0.01 for value in noisy(200, 9)]
    expected = tuple(
        at + 1
        for at, value in enumerate(values)
        if at >= 3 and value > 2 * statistics.median(values[max(0, at - look.SPIKE_MEMORY) : at])
    )
    assert expected
    assert look.spikes(curve(*values), 2) == expected


def test_left_band_names_the_first_of_the_steps_outside() -> None:
    values = curve(0.1, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9)
    assert look.left_band(values, None, 0.5) == 4
    assert look.left_band(values, None, 0.5, persist=1) == 2
    assert look.left_band(values, None, 0.5, persist=5) is None
    assert look.left_band(values, 0.1, 0.9) is None
    assert look.left_band(curve(1.0, 0.0, 1.0, 0.0), 0.2, 0.8) == 1


def test_correlation_is_over_common_steps() -> None:
    one = Curve(steps=(1, 2, 3, 4, 6), values=(1.0, 2.0, 3.0, 4.0, 7.0))
    other = Curve(steps=(0, 1, 2, 3, 4), values=(99.0, -2.0, -4.0, -6.0, -8.0))
    assert look.correlation(one, other) == pytest.approx(-1.0)
    assert look.correlation(one, curve(5.0, 5.0, 5.0)) is None
    assert look.correlation(one, curve(1.0, 2.0)) is None
    tiny = curve(*(value * 1e-200 for value in (1.0, 2.0, 4.0)))
    assert look.correlation(tiny, tiny) in (None, pytest.approx(1.0))


def test_enormous_values_raise_nothing() -> None:
    wild = curve(*[1e308, -1e308] * 10)
    for measure in (look.slope, look.change_point, look.first_last, look.noise):
        measure(wild)
    assert len(look.chart(wild)) == len(wild.values)
    assert look.correlation(wild, wild) in (None, pytest.approx(1.0))
    assert look.smooth(wild, 2).steps[-1] == wild.steps[-1]


def test_the_chart_shows_the_shape() -> None:
    assert look.chart(curve(*range(8))) == BLOCKS
    assert look.chart(curve(*range(8)), ascii=True) == look.ASCII_BLOCKS
    assert look.chart(curve(*range(1000)), width=8) == BLOCKS
    assert look.chart(curve(2.0, 2.0)) == "▁▁"
    assert look.charted("actor/ppo_kl", curve(0.0, 7.0, first=4)) == "actor/ppo_kl ▁█ 0 to 7, steps 4 to 5"
    assert look.steps_words(3, 3) == "step 3"


def test_ten_thousand_points_take_no_time() -> None:
    long = curve(*noisy(10_000, 1, level=100.0))
    start = time.process_time()
    for measure in (look.slope, look.change_point, look.first_last, look.chart, look.noise):
        measure(long)
    look.spikes(long, 3)
    look.left_band(long, 0, math.inf)
    assert time.process_time() - start < 1.0
