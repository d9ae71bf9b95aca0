"""Rewards, advantages and answers of a run: other cases than the pairs, borders, and what is missing."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck import judging
from rlcheck.check import Check
from rlcheck.checks import family_checks
from rlcheck.facts.base import known, need
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.finding import Finding
from rlcheck.playbook import Library
from tests.checks.run import learning_cases as made
from tests.checks.run.simulated import Policy, grouped, simulate, whitened

LIBRARY = Library()
MINE: dict[str, Check] = {check.id: check for check in family_checks("RUN") if "RUN010" <= check.id <= "RUN024"}
FIRES = [(id, facts) for id, several in made.OTHER_FIRES.items() for facts in several]
QUIET = [(id, facts) for id, several in made.OTHER_QUIET.items() for facts in several]


def judged(id: str, facts: Facts) -> Finding:
    return judging.judge(facts, (MINE[id],), LIBRARY)[0]


@pytest.mark.parametrize(("id", "facts"), FIRES, ids=[id for id, _ in FIRES])
def test_other_cases_fire(id: str, facts: Facts) -> None:
    found = judged(id, facts)
    assert found.status in {"fail", "warn", "info"}, found.message


@pytest.mark.parametrize(("id", "facts"), QUIET, ids=[id for id, _ in QUIET])
def test_other_cases_stay_quiet(id: str, facts: Facts) -> None:
    found = judged(id, facts)
    assert found.status in {"pass", "skip"}, found.message


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.booleans())
def test_a_healthy_run_never_fails(seed: int, steps: int, whole_batch: bool) -> None:
    estimator, advantages = ("gae", whitened) if whole_batch else ("grpo", grouped)
    facts = simulate(Policy(seed=seed, steps=steps, prompts=6, estimator=estimator, advantages=advantages))
    found = [judged(id, facts) for id in MINE]
    assert [(one.id, one.message) for one in found if one.status in ("fail", "error")] == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 1.0), st.integers(0, 200))
def test_noise_is_no_trend(seed: int, spread: float, steps: int) -> None:
    chance = random.Random(seed)
    values = tuple(chance.gauss(0.5, spread) for _ in range(steps))
    names = ("critic/score/mean", "response_length/mean", "val/reward/mean", "train/zero_advantage_groups")
    curve = Curve(steps=tuple(range(1, 1 + steps)), values=values)
    run = RunFacts(num_steps=steps, first_step=1, last_step=steps, curves=dict.fromkeys(names, curve))
    statuses = {id: judged(id, Facts(run=known(run))).status for id in MINE if id != "RUN014"}
    assert "fail" not in statuses.values(), statuses


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(12, 40), st.sampled_from((1, 5, 10)))
def test_a_reward_with_the_wrong_sign_is_found(seed: int, steps: int, every: int) -> None:
    policy = Policy(seed=seed, steps=steps, prompts=6, every=every, reward=made.always(made.negative))
    assert judged("RUN012", simulate(policy)).status == "fail"


@pytest.mark.parametrize("id", sorted(MINE))
def test_what_is_not_logged_never_passes(id: str) -> None:
    empty = RunFacts(num_steps=50, first_step=1, last_step=50)
    assert judged(id, Facts(run=known(empty))).status in {"skip", "unknown"}


def test_the_first_number_that_is_lost_is_named() -> None:
    facts = made.with_nan(made.with_nan(made.GOOD, "critic/score/mean", (9, 10)), "response_length/mean", (8, 9))
    found = judged("RUN010", facts)
    assert found.found.startswith("response_length/mean is no number at steps 8 to 9")
    assert "critic/score/mean: no number from step 9" in found.details


def test_a_single_step_that_was_skipped_is_a_warning() -> None:
    assert judged("RUN010", made.with_nan(made.GOOD, "critic/score/mean", (12,))).status == "warn"


def test_the_weight_that_turns_the_sign_is_named_with_its_override() -> None:
    settings = {"reward_model.rules": [{"kind": "exact"}, {"kind": "digits", "weight": -1.5}]}
    fixes = judged("RUN012", made.changed(made.FLIPPED, settings=settings)).fixes
    assert fixes[0].command == "reward_model.rules.1.weight=1.5"


def test_samples_of_the_wrong_sign_are_shown() -> None:
    found = judged("RUN012", made.FLIPPED)
    assert "steps 1 to 30" in found.found
    assert any("is right earns -" in line for line in found.details)


def test_a_sign_that_turns_round_later_is_found_from_there() -> None:
    late = simulate(Policy(reward=lambda step: made.digits if step < 12 else made.negative))
    assert judged("RUN012", late).found.endswith("steps 16 to 30")


def test_a_limit_is_named_with_twice_of_it() -> None:
    found = judged("RUN023", made.CUT)
    assert found.fixes[0].command == "data.max_response_length=6"
    assert "it holds 3 characters of the 4" in found.found


def test_a_wall_below_the_limit_is_told_from_answers_of_one_length() -> None:
    wall = judged("RUN023", made.without_samples(simulate(Policy(limit=4))))
    assert "though data.max_response_length is 6" in wall.found
    same = simulate(Policy(limit=6, stated=9, ends=1.0, skill=lambda p: 1.0), response_length__max=[5.0] * 30,
                    response_length__mean=[5.0] * 30)  # fmt: skip
    assert judged("RUN023", same).status == "pass"
    assert judged("RUN022", same).status == "pass"


def test_a_limit_without_a_token_for_the_end_is_too_short() -> None:
    assert "no token is left to end it" in judged("RUN023", simulate(Policy(limit=4, stated=4))).found
    assert judged("RUN023", simulate(Policy(limit=5, stated=5))).status == "pass"


def test_another_limit_that_cuts_is_named() -> None:
    narrow = made.OTHER_FIRES["RUN023"][4]
    assert judged("RUN023", narrow).fixes[0].command == "actor_rollout_ref.rollout.max_model_len=22"
    unseen = judged("RUN023", simulate(Policy(limit=3)))
    assert unseen.fixes[0].title.startswith("Look for another limit, of 3 tokens, before the 6 of the config")


def test_a_collapse_names_the_checkpoint_and_half_the_rate() -> None:
    found = judged("RUN017", made.COLLAPSED)
    assert "actor_rollout_ref.actor.optim.lr=0.0005" in [fix.command for fix in found.fixes]
    assert any("before step" in fix.title for fix in found.fixes)


def test_answers_that_go_on_are_shown() -> None:
    assert any("goes on after" in line for line in judged("RUN022", made.NEVER_ENDS).details)


def test_answers_that_fill_their_length_and_earn_the_most_do_not_fail() -> None:
    resumed = simulate(Policy(ends=0.0), critic__score__mean=[0.97] * 30)
    assert judged("RUN022", made.changed(resumed, first_step=61)).status == "warn"


def test_the_setting_that_keeps_answers_from_ending_is_released() -> None:
    ignoring, least = made.OTHER_FIRES["RUN022"][1:3]
    assert judged("RUN022", ignoring).fixes[0].command == "actor_rollout_ref.rollout.ignore_eos=false"
    assert judged("RUN022", least).fixes[0].command == "actor_rollout_ref.rollout.min_tokens=0"


def test_answers_that_end_no_more_from_one_step_to_the_next_are_told_with_the_step() -> None:
    found = judged("RUN022", made.BANNED)
    assert found.status == "fail"
    assert found.found == "every answer has 6 tokens, the limit, from step 16 on; up to then 20% ended before it"


def test_a_share_at_a_tiny_limit_is_a_finding_only_where_something_else_says_so() -> None:
    run = need(made.SHORT.run)
    steps = need(made.GOOD.run).curves["critic/score/mean"].steps
    logged = {**run.curves, "response/truncated_ratio": Curve(steps=steps, values=(0.9,) * len(steps))}
    assert judged("RUN023", made.SHORT).status == "info"
    assert judged("RUN023", made.changed(made.SHORT, curves=logged)).status == "warn"
    long = {name: Curve(steps=curve.steps, values=tuple(100 * value for value in curve.values))
            if name in ("response_length/max", "response_length/min") else curve
            for name, curve in run.curves.items()}  # fmt: skip
    found = judged("RUN023", made.changed(made.SHORT, curves=long, settings={}))
    assert found.status == "warn"
    assert found.fixes[0].command == "data.max_response_length=1200"


def test_a_reward_that_does_not_read_the_prompt_fails() -> None:
    found = judged("RUN019", made.NO_PROMPT)
    assert found.status == "fail"
    assert "0.82 of 0.83" in found.found
    learnt = made.validated(made.RISEN, {0: 0.2, 30: 0.9}, **{made.SHUFFLED: made.at_steps({0: 0.2, 30: 0.84})})
    assert judged("RUN019", learnt).status == "warn"


def test_the_discount_that_hides_the_reward_is_named() -> None:
    found = judged("RUN015", made.DISCOUNTED)
    assert found.found.startswith("algorithm.gamma=0.5: the first of 5 tokens is told 6% of the reward")
    assert found.fixes[0].command == "algorithm.gamma=1"


def test_answers_that_are_all_the_same_are_told_in_per_cent() -> None:
    assert " % would be by chance" in judged("RUN013", made.TWINS).found
    assert "every advantage is 0 in 30 of 30 steps" in judged("RUN014", made.NO_GROUP).found


def test_points_of_validation_are_no_steps() -> None:
    assert judged("RUN020", made.OTHER_FIRES["RUN020"][2]).found.endswith("in 4 validations")
    assert judged("RUN020", made.ONE_SOURCE_EMPTY).fixes[0].title.startswith("Score a right answer of code by hand")


def test_causes_stand_before_what_follows_from_them() -> None:
    facts = simulate(Policy(reward=lambda step: made.digits if step < 14 else lambda answer: 0.0))
    found = judging.in_order([judged(id, facts) for id in MINE], ("RUN",))
    problems = [one.id for one in found if one.status in ("fail", "warn")]
    assert problems[0] == "RUN011"
    assert "RUN017" in problems


def test_ten_thousand_steps_are_judged_in_half_a_second() -> None:
    steps = 10_000
    long = {name: Curve(steps=tuple(range(1, steps + 1)), values=tuple(curve.values[i % 30] for i in range(steps)))
            for name, curve in need(made.GOOD.run).curves.items()}  # fmt: skip
    rows = tuple(need(need(made.GOOD.run).samples)) * 40
    facts = made.changed(made.GOOD, curves=long, samples=known(rows), num_steps=steps, last_step=steps)
    start = time.process_time()
    for id in MINE:
        judged(id, facts)
    assert time.process_time() - start < 1.0
