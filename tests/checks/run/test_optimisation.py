"""The optimizer's steps, gradients, entropy, KL and critic of a run: exact causes, borders, and what is missing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck import judging
from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.checks.run.loss_terms import terms_of
from rlcheck.facts.base import known, need
from rlcheck.facts.document import Facts
from rlcheck.facts.run import AuditStep
from rlcheck.playbook import Library
from tests.checks.run import optimisation_cases as made
from tests.checks.run.optimisation_cases import at, loss_with
from tests.checks.run.synthetic import ACTOR, healthy_curves, made_run, only

CHECKS = {check.id: check for check in family_checks("RUN")}
MINE = tuple(CHECKS[id] for id in made.CASES)


def verdict(id: str, facts: Facts) -> Verdict:
    return CHECKS[id].judge(facts)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 120))
def test_noise_of_a_healthy_run_never_fails(seed: int, steps: int) -> None:
    facts = made_run(steps=steps, seed=seed)
    assert {check.id: check.judge(facts).status for check in MINE if check.judge(facts).status == "fail"} == {}


@settings(max_examples=40, deadline=None)
@given(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
def test_the_coefficients_are_found_whatever_they_are(entropy: float, kl: float) -> None:
    terms = terms_of(need(made_run({"actor/loss": loss_with(entropy, kl)}).run))
    assert terms is not None
    assert terms.entropy == pytest.approx(entropy, abs=1e-5)
    assert terms.kl == pytest.approx(kl, abs=1e-5)


def test_the_coefficients_are_found_through_rounding() -> None:
    chance = random.Random(1)
    rounded = [value * (1 + 1e-7 * chance.gauss(0, 1)) for value in loss_with(0.03, 0.001)]
    terms = terms_of(need(made_run({"actor/loss": rounded}).run))
    assert terms is not None
    assert terms.entropy == pytest.approx(0.03, rel=1e-3)


def test_a_loss_of_other_parts_is_not_solved() -> None:
    chance = random.Random(1)
    other = [value + 0.01 * chance.gauss(0, 1) for value in loss_with(0.03, 0.001)]
    facts = made_run({"actor/loss": other})
    assert terms_of(need(facts.run)) is None
    assert verdict("RUN033", facts).status == "skip"


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e300])
@pytest.mark.parametrize("names", [("actor/entropy_loss",), ("actor/entropy_loss", "actor/kl_loss")])
def test_absurd_sizes_are_not_solved(size: float, names: tuple[str, ...]) -> None:
    curves: dict[str, list[float] | None] = {"actor/entropy": None, "actor/entropy_loss": None, "actor/kl_loss": None}
    curves |= {name: [size * (1 + 0.1 * step) for step in range(40)] for name in names}
    facts = made_run({**curves, "actor/loss": [size] * 40})
    assert terms_of(need(facts.run)) is None


def test_the_sign_counts_as_applied_not_as_set() -> None:
    reversed_in_code = made_run({"actor/loss": loss_with(0.03, 0.001)})
    found = verdict("RUN033", reversed_in_code)
    assert found.status == "fail"
    assert "+0.03 times" in found.found
    assert found.params == {"override": f"{ACTOR}.entropy_coeff=0"}


def test_a_term_that_never_reaches_the_loss_is_found() -> None:
    facts = made_run({"actor/loss": loss_with(0.0, 0.0)})
    assert verdict("RUN033", facts).status == "fail"
    assert verdict("RUN036", facts).status == "fail"


def test_no_bonus_is_no_fault() -> None:
    facts = made_run({"actor/loss": loss_with(0.0, 0.001)}, settings={f"{ACTOR}.entropy_coeff": 0.0})
    assert verdict("RUN033", facts).status == "skip"


def test_a_bonus_that_drains_the_entropy_is_judged_by_that_where_the_loss_is_not_logged() -> None:
    entropy = [2.9 * 0.6**step for step in range(40)]
    curves = {"actor/loss": None, "actor/entropy": entropy, "critic/score/mean": made.FLAT}
    strong = made_run(dict(curves), settings={f"{ACTOR}.entropy_coeff": 0.3})
    assert verdict("RUN033", strong).status == "fail"
    assert verdict("RUN034", strong).status == "fail"
    assert verdict("RUN033", made_run(dict(curves))).status == "skip", "a weak bonus may lose to the reward"


@pytest.mark.parametrize(("rate", "status"), [(1e-3, "pass"), (0.02, "info"), (0.05, "fail"), (1.0, "fail")])
def test_the_rate_alone(rate: float, status: str) -> None:
    assert verdict("RUN030", made_run({"actor/lr": [rate] * 40})).status == status


def test_a_published_model_is_judged_more_strictly() -> None:
    said = {f"{ACTOR.rpartition('.')[0]}.model.path": "Qwen/Qwen2.5-7B-Instruct", "toy.num_digits": ...}
    facts = made_run({"actor/lr": [2e-3] * 40}, settings=said)
    assert verdict("RUN030", facts).status == "info"
    broke = {"actor/lr": [2e-3] * 40, "actor/ppo_kl": [0.5] * 40, "critic/score/mean": made.FLAT}
    found = verdict("RUN030", made_run(broke, settings=said))
    assert found.status == "fail"
    assert found.params["override"] == f"{ACTOR}.optim.lr=1e-06"


def test_large_steps_without_a_known_rate() -> None:
    curves = {"actor/lr": None, "actor/ppo_kl": [2.0] + [0.5] * 39, "critic/score/mean": made.FALLING}
    found = verdict("RUN030", made_run(curves, settings={f"{ACTOR}.optim.lr": ...}))
    assert found.status == "fail"
    assert "from step 1 on" in found.found


def test_the_rate_of_plain_descent_says_nothing() -> None:
    said = {f"{ACTOR}.optim.optimizer": "torch.optim.SGD"}
    assert verdict("RUN030", made_run({"actor/lr": [0.1] * 40}, settings=said)).status == "info"


def test_large_steps_after_which_the_reward_rises_are_a_warning() -> None:
    rises = {"actor/ppo_kl": [0.2] * 40, "actor/pg_clipfrac": [0.5] * 40}
    assert verdict("RUN030", made_run(dict(rises))).status == "warn"
    jumps_once = {**rises, "critic/score/mean": [0.04, *[0.13] * 39]}
    assert verdict("RUN030", made_run(dict(jumps_once))).status == "fail"


def test_steps_that_hardly_move_the_policy() -> None:
    short = {"actor/ppo_kl": [1e-7] * 40, "actor/pg_clipfrac": [0.0] * 40, "actor/lr": [1e-6] * 40}
    found = verdict("RUN030", made_run({**short, "critic/score/mean": made.FLAT}))
    assert found.status == "warn"
    assert found.params["override"] == f"{ACTOR}.optim.lr=0.001"
    assert "since" not in found.params, "nothing is to be taken back"
    assert verdict("RUN030", made_run(dict(short))).status == "pass"
    for changed in ({"actor/optimizer_steps": [1.0] * 40}, {"actor/lr": [1e-3] * 40}):
        assert verdict("RUN030", made_run({**short, **changed, "critic/score/mean": made.FLAT})).status == "pass"


def test_many_epochs_are_taken_back_before_the_rate() -> None:
    curves = {"actor/ppo_kl": [0.3] * 40, "critic/score/mean": made.FALLING}
    found = verdict("RUN030", made_run(dict(curves), settings={f"{ACTOR}.ppo_epochs": 20}))
    assert found.params["override"] == f"{ACTOR}.ppo_epochs=1"


def test_a_clip_of_next_to_nothing_is_named() -> None:
    narrow = {f"{ACTOR}.clip_ratio": 1e-4, f"{ACTOR}.clip_ratio_low": 1e-4, f"{ACTOR}.clip_ratio_high": 1e-4}
    found = verdict("RUN038", made_run({"actor/pg_clipfrac": [0.9] * 40}, settings=narrow))
    assert found.params["override"] == f"{ACTOR}.clip_ratio=0.2"
    assert "since" not in found.params, "steps are not too large"
    assert "a clip ratio of 0.0001" in found.found
    gspo = {**narrow, f"{ACTOR}.policy_loss.loss_mode": "gspo"}
    assert "a clip ratio of" not in verdict("RUN038", made_run({"actor/pg_clipfrac": [0.9] * 40}, settings=gspo)).found


def test_a_bonus_that_drowns_the_reward() -> None:
    said = {f"{ACTOR}.entropy_coeff": 3.0}
    curves = {"actor/entropy": [2.9] * 40, "actor/loss": None}
    assert verdict("RUN035", made_run({**curves, "critic/score/mean": made.FLAT}, settings=said)).status == "warn"
    assert verdict("RUN035", made_run(dict(curves), settings=said)).status == "pass"


def test_large_steps_that_broke_nothing_are_a_warning() -> None:
    assert verdict("RUN030", made_run({"actor/ppo_kl": [0.15] * 40})).status == "warn"


def test_one_large_first_step_is_no_finding() -> None:
    assert verdict("RUN030", made_run({"actor/ppo_kl": at("actor/ppo_kl", 1, 0.2)})).status == "pass"


def test_what_a_spike_broke_is_not_blamed_on_the_rate() -> None:
    kl = [0.005] * 11 + [0.9] * 29
    curves = {"actor/ppo_kl": kl, "actor/grad_norm": at("actor/grad_norm", 12, 900.0), "critic/score/mean": made.FLAT}
    facts = made_run(curves, settings={f"{ACTOR}.grad_clip": None})
    assert verdict("RUN030", facts).status == "pass"
    assert verdict("RUN031", facts).status == "fail"


def test_a_rate_that_breaks_everything_is_no_spike() -> None:
    wild = [0.5, 300.0, 0.1, 40.0] * 10
    facts = made_run({"actor/ppo_kl": [4.0] * 40, "actor/grad_norm": wild, "critic/score/mean": made.FLAT})
    assert verdict("RUN031", facts).status == "skip"
    assert verdict("RUN030", facts).status == "fail"


def test_a_spike_that_the_clip_holds_is_none() -> None:
    curves = {"actor/grad_norm": at("actor/grad_norm", 12, 900.0)}
    assert verdict("RUN031", made_run(curves)).status == "pass"
    assert verdict("RUN031", made_run(curves, settings={f"{ACTOR}.grad_clip": None})).status == "warn"
    assert verdict("RUN031", made_run(curves, settings={f"{ACTOR}.grad_clip": 1e6})).status == "warn"
    unsaid = {f"{ACTOR}.grad_clip": ...}
    assert verdict("RUN031", made_run(curves, settings=unsaid)).status == "warn"
    smaller = {"actor/grad_norm": at("actor/grad_norm", 12, 30.0)}
    assert verdict("RUN031", made_run(smaller, settings=unsaid)).status == "pass"


def test_a_spike_at_the_second_step_is_seen_from_those_after_it() -> None:
    curves = {"actor/grad_norm": at("actor/grad_norm", 2, 900.0)}
    assert verdict("RUN031", made_run(curves, settings={f"{ACTOR}.grad_clip": None})).status == "warn"


def test_the_spike_names_its_step_and_what_changed() -> None:
    found = verdict("RUN031", made.SPIKE)
    assert "at step 12" in found.found
    assert any("reward went from" in line for line in (found.found, *found.details))
    assert found.params == {"step": "12", "resume": "12", "override": f"{ACTOR}.grad_clip=1"}


def test_gradients_that_vanish_and_steps_that_are_skipped() -> None:
    skipped = {"actor/skipped_steps": [0.0] * 20 + [4.0] * 20}
    assert verdict("RUN032", made_run(skipped)).status == "warn"
    every = {"actor/skipped_steps": [4.0] * 40, "actor/optimizer_steps": [0.0] * 40, "actor/grad_norm": None}
    assert verdict("RUN032", made_run(every)).status == "fail"
    growing = {"actor/grad_norm": [0.1 * 1.15**step for step in range(40)]}
    found = verdict("RUN032", made_run(growing))
    assert (found.status, found.params["grown"]) == ("warn", "from 0.124 to 14.3")
    assert "comes before a policy that breaks" in found.why
    assert {"run", "override"} <= set(found.params)
    assert "empty" not in found.params
    unclipped = verdict("RUN032", made_run(growing, settings={f"{ACTOR}.grad_clip": None}))
    assert unclipped.params["clip"] == f"{ACTOR}.grad_clip=1"


def test_certainty_that_solves_the_task_is_no_collapse() -> None:
    entropy = {"actor/entropy": [2.9 * 0.8**step for step in range(40)]}
    assert verdict("RUN034", made_run(entropy)).status == "pass"
    halfway = {**entropy, "critic/score/mean": [0.05 + 0.01 * step for step in range(40)]}
    assert verdict("RUN034", made_run(halfway)).status == "warn"


def test_an_entropy_that_climbs_with_the_reward_is_left_alone() -> None:
    climbs = {"actor/entropy": [0.4 + 0.05 * step for step in range(40)]}
    assert verdict("RUN035", made_run(climbs)).status == "pass"
    assert verdict("RUN035", made_run({**climbs, "critic/score/mean": made.FLAT})).status == "warn"


def test_kl_in_the_reward_must_cost() -> None:
    kl = [0.01 * step for step in range(40)]
    score = list(healthy_curves()["critic/score/mean"].values)
    said = {"algorithm.use_kl_in_reward": True, f"{ACTOR}.use_kl_loss": False}
    for sign, status in ((-1, "pass"), (1, "fail")):
        reward = [value + sign * 0.3 * k for value, k in zip(score, kl, strict=True)]
        curves = {"actor/reward_kl_penalty": kl, "critic/rewards/mean": reward, "actor/kl_loss": None}
        assert verdict("RUN036", made_run(dict(curves), settings=said)).status == status
        unlogged = {**curves, "actor/reward_kl_penalty": None}
        assert (verdict("RUN036", made_run(unlogged, settings=said)).status == "fail") == (status == "fail")


def test_a_kl_that_its_penalty_does_not_hold() -> None:
    curves = {"actor/loss": None, "actor/kl_loss": [0.05 * step for step in range(40)], "critic/score/mean": made.FLAT}
    assert verdict("RUN036", made_run(curves, settings={f"{ACTOR}.kl_loss_coef": 0.1})).status == "fail"
    assert verdict("RUN036", made_run(curves, settings={f"{ACTOR}.kl_loss_coef": 0.001})).status == "pass"


def test_borders_of_the_kl() -> None:
    assert verdict("RUN037", made_run({"actor/kl_loss": [0.14] * 40})).status == "pass"
    assert verdict("RUN058", made_run({"actor/kl_loss": [0.3] + [0.05] * 39})).status == "warn"
    rises = {"actor/kl_loss": [0.01 * step for step in range(40)]}
    assert verdict("RUN037", made_run(dict(rises))).status == "info", "a weight of 0.001 lets the policy learn"
    assert verdict("RUN037", made_run(dict(rises), settings={f"{ACTOR}.kl_loss_coef": 0.1})).status == "warn"
    assert verdict("RUN037", made_run({**rises, "critic/score/mean": made.FLAT})).status == "warn"
    negative = {"actor/kl_loss": [-0.2] * 40}
    assert verdict("RUN037", made_run(dict(negative))).status == "info", "a larger weight would push harder"
    assert verdict("RUN036", made_run(dict(negative))).status == "fail"
    no_kl = made_run({"actor/kl_loss": None}, settings={f"{ACTOR}.use_kl_loss": False})
    assert verdict("RUN037", no_kl).status == "skip"


def test_the_clip_must_hold_nothing_on_the_first_and_only_update() -> None:
    once = {"actor/optimizer_steps": [1.0] * 40}
    assert verdict("RUN038", made_run(once)).status == "warn"
    assert verdict("RUN038", made_run({**once, "actor/pg_clipfrac": [0.0] * 40})).status == "pass"
    assert verdict("RUN038", made_run({"actor/pg_clipfrac": [0.0] * 40})).status == "info"


@pytest.mark.parametrize(
    "curves",
    [
        {"critic/grad_norm": [0.0] * 40},
        {"critic/lr": [0.0] * 40},
        {"critic/lr": [1.0] * 40},
        {"critic/values/mean": [0.02] * 40},
        {"critic/vf_explained_var": [-0.6] * 40},
        {"critic/vf_explained_var": [-0.1 * 1.2**step for step in range(40)]},
    ],
)
def test_critics_that_do_not_learn(curves: dict[str, list[float]]) -> None:
    found = verdict("RUN039", made_run(dict(curves)))
    assert found.status == "fail", found.message


def test_a_critic_that_does_not_follow_a_small_rise_of_the_reward() -> None:
    reward = [0.05 + 0.004 * step for step in range(40)]
    frozen = {"critic/values/mean": [0.03 + 0.003 * (step % 3) for step in range(40)]}
    curves = {"critic/score/mean": reward, "critic/returns/mean": reward, **frozen}
    explained = [-0.9 * 0.95**step for step in range(40)]
    found = verdict("RUN039", made_run({**curves, "critic/vf_explained_var": explained}))
    assert found.status == "fail"
    assert "does not follow" in found.found
    comes_nearer = {"critic/values/mean": [value - 0.5 * 0.8**step for step, value in enumerate(reward)]}
    assert verdict("RUN039", made_run({**curves, **comes_nearer})).status == "pass"


def test_a_critic_that_is_no_better_than_a_constant() -> None:
    """It learns the returns of other rows: the mean is right, and nothing else."""
    nothing = {"critic/vf_explained_var": [-0.6, -0.1, *[0.004 * (-1) ** step for step in range(38)]]}
    rises = {"critic/score/mean": [0.05 + 0.01 * step for step in range(40)]}
    assert verdict("RUN039", made_run({**nothing, **rises})).status == "warn"
    assert verdict("RUN039", made_run(dict(nothing))).status == "pass"


def test_a_value_loss_alone() -> None:
    others = {name: None for name in healthy_curves() if name.startswith(("critic/v", "critic/grad"))}
    grows = made_run({**others, "critic/vf_loss": [0.01 * 1.1**step for step in range(40)]})
    assert verdict("RUN039", grows).status == "warn"
    falls_again = made_run({**others, "critic/vf_loss": [0.01 + 0.1 * (step in range(10, 30)) for step in range(40)]})
    assert verdict("RUN039", falls_again).status == "pass"


def test_a_spike_after_which_the_policy_hardly_moves() -> None:
    """AdamW's second moment: no curve breaks, but nothing is learned from there on."""
    curves = {
        "actor/grad_norm": at("actor/grad_norm", 12, 9000.0),
        "actor/ppo_kl": [0.005] * 12 + [0.004, 0.002, 0.001] + [1e-5] * 25,
        "actor/pg_clipfrac": [0.04] * 12 + [0.03, 0.01] + [0.0] * 26,
    }
    found = verdict("RUN031", made_run(dict(curves), settings={f"{ACTOR}.grad_clip": None}))
    assert found.status == "fail"
    assert "hardly moves" in found.found


def test_a_trend_that_goes_on_is_no_harm_of_a_spike() -> None:
    falling = [2.9 * 0.93**step for step in range(40)]
    curves = {"actor/grad_norm": at("actor/grad_norm", 20, 30.0), "actor/entropy": falling}
    assert verdict("RUN031", made_run(dict(curves), settings={f"{ACTOR}.grad_clip": None})).status == "info"


def test_a_critic_is_not_judged_where_returns_are_alike_or_early() -> None:
    alike = {"critic/returns/max": [1.0] * 40, "critic/returns/min": [1.0] * 37 + [0.0] * 3}
    assert verdict("RUN039", made_run({**alike, "critic/vf_explained_var": [-9.0] * 40})).status == "skip"
    first = made_run({"critic/vf_explained_var": [-0.6, -0.3, -0.2]}, steps=3)
    assert verdict("RUN039", first).status == "skip"
    grpo = {name: None for name in healthy_curves() if name.startswith(("critic/v", "critic/grad", "critic/lr"))}
    assert verdict("RUN039", made_run(dict(grpo), settings={"algorithm.adv_estimator": "grpo"})).status == "skip"


@pytest.mark.parametrize("id", sorted(made.CASES))
def test_what_is_not_logged_never_passes(id: str) -> None:
    found = verdict(id, only("response_length/mean"))
    assert found.status in ("unknown", "skip"), found.message


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_short_runs_are_judged_as_far_as_they_go(steps: int) -> None:
    facts = made_run(steps=steps)
    statuses = {found.id: found.status for found in judging.judge(facts, MINE, Library())}
    assert not {id: status for id, status in statuses.items() if status in ("error", "fail")}


def test_an_empty_audit_proves_nothing() -> None:
    facts = made_run(audit=known(()))
    assert verdict("RUN056", facts).status == "skip"
    silent = made_run(audit=known((AuditStep(step=1), AuditStep(step=2))))
    assert verdict("RUN041", silent).status == "pass"
