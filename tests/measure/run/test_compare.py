"""Two runs side by side: where they part, what differs in their settings, and what is only noise."""

from __future__ import annotations

import math
import random
from typing import Any

from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.compare import Comparison, compare
from rlcheck.report.topics.run_compared import exhibits, sentence

STEPS = 60


def curve(values: list[float], first: int = 1, nonfinite: tuple[int, ...] = ()) -> Curve:
    return Curve(steps=tuple(range(first, first + len(values))), values=tuple(values), nonfinite=nonfinite)


def run(settings: dict[str, Any] | None = None, **curves: Curve) -> RunFacts:
    """`critic_score__mean` stands for `critic/score/mean`."""
    named = {name.replace("__", "/"): one for name, one in curves.items()}
    last = max(one.steps[-1] for one in named.values())
    return RunFacts(source="made up", num_steps=last, first_step=1, last_step=last, settings=settings or {},
                         curves=named)  # fmt: skip


def noisy(seed: int, jump_at: int = STEPS + 1, jump: float = 0.0) -> Curve:
    rng = random.Random(seed)
    values = [0.5 + 0.002 * n + rng.gauss(0, 0.02) + (jump if n + 1 >= jump_at else 0.0) for n in range(STEPS)]
    return curve(values)


def test_equal_runs_are_equal_to_the_end() -> None:
    one = run(critic__score__mean=noisy(1), timing_s__step=noisy(2))
    found = compare(one, run(critic__score__mean=noisy(1), timing_s__step=noisy(3)))
    assert (found.first, found.apart, found.equal_until) == ((), (), STEPS)
    assert sentence(found) == f"every metric is the same, steps 1 to {STEPS} (clocks left out)"


def parted() -> tuple[RunFacts, RunFacts, Comparison]:
    """The same until step 40; there the gradient and the score differ, and everything later."""
    one = run(actor__grad_norm=noisy(1), critic__score__mean=noisy(2), actor__entropy=noisy(3))
    other = run(
        actor__grad_norm=noisy(1, 40, 0.3), critic__score__mean=noisy(2, 40, 0.1), actor__entropy=noisy(3, 45, 0.1)
    )
    return one, other, compare(one, other)


def test_the_first_step_and_in_it_what_is_computed_first() -> None:
    _, _, found = parted()
    assert found.equal_until == 39
    assert [(d.step, d.name) for d in found.first] == [(40, "critic/score/mean"), (40, "actor/grad_norm")]
    assert math.isclose(found.first[0].other - found.first[0].one, 0.1)
    assert found.apart == ()
    assert sentence(found) == "the same up to step 39; they part at step 40: critic/score/mean and 1 more"


def test_what_is_rounding_is_no_difference() -> None:
    values = [0.5 + 0.01 * n for n in range(STEPS)]
    one = run(actor__entropy=curve(values), training__rollout_probs_diff_mean=curve([6e-9] * STEPS))
    same = run(
        actor__entropy=curve([value * (1 + 5e-7) for value in values]),
        training__rollout_probs_diff_mean=curve([9e-9] * STEPS),
    )
    assert compare(one, same).first == ()
    other = run(
        actor__entropy=curve([value * (1 + 5e-6) for value in values]),
        training__rollout_probs_diff_mean=curve([9e-5] * STEPS),
    )
    names = [d.name for d in compare(one, other).first]
    assert names == ["training/rollout_probs_diff_mean", "actor/entropy"]


def test_a_value_that_is_no_number_is_the_same_as_another_such() -> None:
    whole, broken = curve([1.0, 2.0, 3.0]), Curve(steps=(1, 3), values=(1.0, 3.0), nonfinite=(2,))
    found = compare(run(actor__pg_loss=whole), run(actor__pg_loss=broken))
    assert [(d.step, d.relative) for d in found.first] == [(2, math.inf)]
    assert compare(run(actor__pg_loss=broken), run(actor__pg_loss=broken)).first == ()


def test_other_seeds_are_noise_and_another_level_is_not() -> None:
    one = run(critic__score__mean=noisy(1), actor__entropy=noisy(2), critic__score__max=noisy(8))
    for seed in range(10, 30):
        other = run(
            critic__score__mean=noisy(seed), actor__entropy=noisy(seed + 100), critic__score__max=noisy(9, 20, 0.5)
        )
        found = compare(one, other)
        assert found.first, seed
        assert found.apart == (), seed
        later = run(critic__score__mean=noisy(seed, 30, 0.3), actor__entropy=noisy(seed + 100))
        (apart,) = compare(one, later).apart
        assert apart.name == "critic/score/mean"
        assert 28 <= apart.step <= 32, seed


def test_settings_that_differ_without_the_places_of_the_runs() -> None:
    curves = {"actor__entropy": noisy(1)}
    one = run({"actor.lr": 1e-6, "data.seed": 1, "trainer.default_local_dir": "a", "only": True}, **curves)
    other = run({"actor.lr": 1e-5, "data.seed": 1, "trainer.default_local_dir": "b"}, **curves)
    assert [tuple(setting) for setting in compare(one, other).settings] == [
        ("actor.lr", "1e-06", "1e-05"),
        ("only", "True", ""),
    ]


def test_runs_without_a_common_step() -> None:
    found = compare(run(actor__entropy=curve([1.0, 2.0])), run(actor__entropy=curve([1.0], first=9)))
    assert found.steps is None
    assert sentence(found) == "the runs have no step in common"


def test_tables_show_both_on_one_scale_and_what_only_one_has() -> None:
    one, other, _ = parted()
    other.curves["actor/kl_loss"] = noisy(5)
    since, ends = exhibits(compare(one, other), one, other)
    assert since.rows[0][:2] == ("40", "critic/score/mean")
    assert since.notes == ("only B has actor/kl_loss",)
    rows = {row[0]: row for row in ends.rows}
    assert rows["KL to reference"][1] == ""
    low, high = rows["gradient norm"][3], rows["gradient norm"][4]
    assert max(low) < max(high) == "█"
