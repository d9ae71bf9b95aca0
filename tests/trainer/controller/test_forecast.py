"""The simulation of asynchrony against cases whose answer is known."""

from __future__ import annotations

import pytest

from rltrain.controller.forecast import Shape, forecast
from rltrain.records.speeds import Quantiles, Speeds

ALIKE = Quantiles((100.0,) * 21, 100.0)
PASS_S = 0.01


def speeds(train_s: float, length: Quantiles = ALIKE, sync_s: float = 0.0, prefill_s: float = 0.0) -> Speeds:
    """Engines whose pass takes PASS_S however full they are, and a rank that takes TRAIN_S for a token."""
    return Speeds(
        (length,), prompt=0.0, paces=((1.0, PASS_S), (1e4, PASS_S)), prefill_s=prefill_s, train_s=train_s, sync_s=sync_s
    )


SHAPE = Shape(ranks=1, engines=1, places=64, groups=8, n=4)
TOKENS = 8 * 4 * 100
GEN_S = 100 * PASS_S


@pytest.mark.parametrize("train", [0.25, 1.0, 3.0])
def test_answers_alike_overlap_to_the_slower_side(train: float) -> None:
    one = speeds(train / TOKENS)
    assert forecast(one, SHAPE, 0).step_s == pytest.approx(GEN_S + train)
    for bound in (1, 2, 4):
        found = forecast(one, SHAPE, bound)
        # With several rounds in its places at once an engine here writes more in the same time.
        expected = max(GEN_S, train) if bound == 1 else max(GEN_S / (64 / 32), train)
        assert found.step_s == pytest.approx(expected, rel=0.1 if bound > 1 else 1e-6), bound
        assert found.tokens_per_s * found.step_s == pytest.approx(TOKENS)


def test_idle_shares_are_what_is_left_of_a_step() -> None:
    found = forecast(speeds(0.25 / TOKENS), SHAPE, 1)
    assert found.training_idle == pytest.approx(0.75)
    assert found.rollout_idle == pytest.approx(0.0, abs=1e-6)
    found = forecast(speeds(4.0 / TOKENS), SHAPE, 1)
    assert found.training_idle == pytest.approx(0.0, abs=1e-6)
    assert found.rollout_idle == pytest.approx(0.75)


def test_new_weights_cost_every_mode_their_time() -> None:
    assert forecast(speeds(1 / TOKENS, sync_s=0.5), SHAPE, 0).step_s == pytest.approx(GEN_S + 1 + 0.5)
    assert forecast(speeds(1 / TOKENS, sync_s=0.5), SHAPE, 1).step_s == pytest.approx(max(GEN_S, 1) + 0.5)


def test_a_long_tail_is_hidden_by_bounded_staleness_alone() -> None:
    """One answer in twenty is ten times as long: a round waits for it, a buffer does not."""
    tail = Quantiles((*(100.0,) * 20, 1000.0), 100 * 0.95 + 0.05 * 1000)
    shape = Shape(ranks=1, engines=1, places=256, groups=16, n=2)
    one = speeds(1e-5, tail)
    apart, off, bounded = (forecast(one, shape, bound).step_s for bound in (0, 1, 4))
    assert off > 0.85 * apart, "one step off waits for the longest answer, as taking turns does"
    assert bounded < 0.5 * off


def test_more_answers_than_places_wait() -> None:
    half = Shape(ranks=1, engines=1, places=16, groups=8, n=4)
    assert forecast(speeds(0.0), half, 0).step_s == pytest.approx(2 * GEN_S)
    two = Shape(ranks=1, engines=2, places=16, groups=8, n=4)
    assert forecast(speeds(0.0), two, 0).step_s == pytest.approx(GEN_S)


def test_a_fuller_pass_takes_longer() -> None:
    one = Speeds((ALIKE,), 0.0, ((1.0, 0.01), (33.0, 0.03)), 0.0, 0.0, 0.0)
    assert one.pass_s(1) == pytest.approx(0.01)
    assert one.pass_s(17) == pytest.approx(0.02)
    assert one.pass_s(65) == pytest.approx(0.05)
    assert forecast(one, SHAPE, 0).step_s == pytest.approx(100 * one.pass_s(32))


def test_interrupted_answers_are_read_again() -> None:
    """Where reading is dear and weights come often, not to wait may cost more than it saves."""
    free, dear = (forecast(speeds(0.1 / TOKENS, prefill_s=cost), SHAPE, 4).step_s for cost in (0.0, 1e-3))
    assert dear > 1.2 * free


def test_it_loses_where_ranks_alone_take_all_the_time() -> None:
    """Two devices that take turns learn with two; split, with one."""
    one = speeds(10.0 / TOKENS)
    together = forecast(one, Shape(2, 2, 64, 8, 4), 0)
    assert all(forecast(one, SHAPE, bound).tokens_per_s < together.tokens_per_s for bound in (1, 2, 4))


def test_a_large_step_is_played_in_part() -> None:
    """Of 64 times as many of everything: as long a step, 64 times the tokens."""
    one = speeds(1.0 / TOKENS)
    for bound in (0, 1):
        small = forecast(one, SHAPE, bound)
        many = forecast(one, Shape(64, 64, 64, 8 * 64, 4), bound)
        assert many.step_s == pytest.approx(small.step_s, rel=1e-6)
        assert many.tokens_per_s == pytest.approx(64 * small.tokens_per_s, rel=1e-6)
    wide = Speeds((ALIKE,), 0.0, ((1.0, PASS_S), (1e4, PASS_S)), 0.0, 1.0 / TOKENS / 64, 0.0)
    assert forecast(wide, Shape(1, 1, 4096, 8 * 64, 4), 0).step_s == pytest.approx(GEN_S + 1)
