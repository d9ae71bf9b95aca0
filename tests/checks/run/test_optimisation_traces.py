"""Faults of optimisation that leave one trace only: a sign, an exact 0, a curve that is too smooth."""

from __future__ import annotations

import pytest

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from tests.checks.run import optimisation_cases as made
from tests.checks.run.optimisation_cases import loss_with
from tests.checks.run.synthetic import ACTOR, made_run

CHECKS = {check.id: check for check in family_checks("RUN")}


def verdict(id: str, facts: Facts) -> Verdict:
    return CHECKS[id].judge(facts)


@pytest.mark.parametrize(("kind", "level", "status"),
                         [("low_var_kl", -0.01, "fail"), ("kl", -0.01, "pass"), ("kl", -0.2, "fail")])  # fmt: skip
def test_a_kl_that_stays_negative_has_the_wrong_sign(kind: str, level: float, status: str) -> None:
    late = {"actor/kl_loss": [0.1] * 10 + [level] * 30, "actor/loss": None}
    found = verdict("RUN036", made_run(dict(late), settings={f"{ACTOR}.kl_loss_type": kind}))
    assert found.status == status
    assert (found.status == "fail") == ("after 0.1 at step 10" in found.found)
    once = {"actor/kl_loss": [0.1] * 10 + [level] + [0.1] * 29, "actor/loss": None}
    assert verdict("RUN036", made_run(once, settings={f"{ACTOR}.kl_loss_type": kind})).status == "pass"


def test_a_penalty_whose_sign_turns_late_is_solved_from_the_end() -> None:
    turned = [*loss_with(-0.03, 0.1)[:15], *loss_with(-0.03, -0.1)[15:]]
    found = verdict("RUN036", made_run({"actor/loss": turned}))
    assert found.status == "fail"
    assert "-0.1 times the KL, steps 28 to 40" in found.found


def test_a_reference_that_goes_with_the_policy() -> None:
    moves = {"actor/kl_loss": [0.006 + 0.002 * (step % 2) for step in range(40)], "actor/loss": None}
    found = verdict("RUN036", made_run(dict(moves)))
    assert found.status == "warn"
    assert "reference moves" in found.found
    stays = {"actor/entropy": [2.9] * 40, "critic/score/mean": made.FLAT}
    assert verdict("RUN036", made_run({**moves, **stays})).status == "pass", "the policy itself stays"
    assert verdict("RUN036", made_run({"actor/kl_loss": [0.0] * 40, "actor/loss": None})).status == "warn"


def test_old_log_probabilities_that_are_the_new_ones() -> None:
    exact = {"actor/ppo_kl": [0.0] * 40, "actor/pg_clipfrac": [0.0] * 40}
    found = verdict("RUN038", made_run(dict(exact)))
    assert found.status == "fail"
    assert "the new policy's own" in found.found
    assert verdict("RUN041", made_run(dict(exact))).status == "pass"
    once = {**exact, "actor/optimizer_steps": [1.0] * 40}
    assert verdict("RUN038", made_run(once)).status == "pass"
    frozen = made_run(dict(exact), audit=need(made.FROZEN.run).audit)
    assert verdict("RUN038", frozen).status == "info"
    assert verdict("RUN041", frozen).status == "fail"


def test_one_large_first_step_is_a_fault_only_with_its_harm() -> None:
    first = {"actor/ppo_kl": [0.7, 0.09, *[0.005] * 38], "critic/score/mean": made.FLAT}
    assert verdict("RUN030", made_run(dict(first))).status == "pass"
    assert verdict("RUN030", made_run({**first, "actor/entropy": [2.9, *[0.01] * 39]})).status == "fail"


def test_gradients_that_pile_up() -> None:
    norms = [0.15 * (1 + 0.15 * step) for step in range(40)]
    slow = [0.03 + 0.001 * step for step in range(40)]
    assert verdict("RUN032", made_run({"actor/grad_norm": norms, "critic/score/mean": slow})).status == "warn"
    assert verdict("RUN032", made_run({"actor/grad_norm": norms})).status == "pass", "the reward rises"
    uneven = [value * (1.2 if step % 2 else 0.8) for step, value in enumerate(norms)]
    assert verdict("RUN032", made_run({"actor/grad_norm": uneven, "critic/score/mean": slow})).status == "pass"


def test_an_entropy_that_is_nearly_spent_for_nothing() -> None:
    spent = {"actor/entropy": [max(0.35, 2.9 * 0.9**step) for step in range(40)]}
    assert verdict("RUN034", made_run({**spent, "critic/score/mean": made.FLAT})).status == "warn"
    assert verdict("RUN034", made_run(dict(spent))).status == "pass"


def test_a_critic_that_is_below_0_to_the_end() -> None:
    below = {"critic/vf_explained_var": [-2.0, -0.3, *[-0.05 + 0.01 * (step % 3) for step in range(18)]]}
    rises = {"critic/score/mean": [0.02 + 0.006 * step for step in range(20)]}
    assert verdict("RUN039", made_run({**below, **rises}, steps=20)).status == "warn"
    knows = {"critic/vf_explained_var": [*below["critic/vf_explained_var"][:17], 0.03, 0.04, 0.03]}
    assert verdict("RUN039", made_run({**knows, **rises}, steps=20)).status == "pass"
