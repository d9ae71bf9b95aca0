"""Ranks, weights, progress, speed, memory, age of samples and the audit record of a run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.check import Verdict
from rlcheck.checks import family_checks
from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.judging import judge
from rlcheck.playbook import Library
from tests.checks.run import optimisation_cases as made
from tests.checks.run.optimisation_cases import audit
from tests.checks.run.synthetic import ACTOR, curve, healthy_audit, healthy_curves, made_run, only

CHECKS = {check.id: check for check in family_checks("RUN")}
CHECKED = tuple(CHECKS[id] for id in made.CASES)
UNAUDITED = absent("trainer.audit is off")


def verdict(id: str, facts: Facts) -> Verdict:
    return CHECKS[id].judge(facts)


@pytest.mark.row("F44")
def test_ranks_with_equal_hashes_losses_or_spread() -> None:
    spread = {"actor/shard_loss_spread": [0.0] * 40}
    assert verdict("RUN040", made.SAME_ROWS).status == "fail"
    losses = made_run(audit=known(audit(shard_hashes=(), shard_losses=(0.25, 0.25))))
    assert verdict("RUN040", losses).status == "fail"
    assert verdict("RUN040", made_run(spread, audit=UNAUDITED)).status == "fail"
    assert verdict("RUN040", made_run(audit=UNAUDITED)).status == "pass"
    alone = made_run(spread, settings={"trainer.n_gpus_per_node": 1}, audit=UNAUDITED)
    assert verdict("RUN040", alone).status == "skip"


def test_a_spread_of_zero_says_nothing_where_the_number_of_ranks_is_not_known() -> None:
    spread = {"actor/shard_loss_spread": [0.0] * 40}
    one = made_run(
        {**spread, "actor/grad_norm_rank_min": None}, settings={"trainer.n_gpus_per_node": None}, audit=UNAUDITED
    )
    assert verdict("RUN040", one).status == "unknown"
    several = made_run(
        {**spread, "actor/grad_norm_rank_min": [0.5] * 40}, settings={"trainer.n_gpus_per_node": None}, audit=UNAUDITED
    )
    assert verdict("RUN040", several).status == "fail"


def test_one_rank_has_no_gradients_of_others() -> None:
    alone = made_run({"actor/grad_norm_rank_min": None}, settings={"trainer.n_gpus_per_node": 1})
    assert verdict("RUN059", alone).status == "skip"


def test_equal_rows_in_one_step_are_chance() -> None:
    records = list(healthy_audit())
    records[7] = audit(shard_hashes=("c", "c"))[7]
    assert verdict("RUN040", made_run(audit=known(tuple(records)))).status == "pass"


def test_ranks_that_share_their_rows_by_design() -> None:
    pairs = known(audit(shard_hashes=("a", "a", "b", "b"), shard_losses=()))
    assert verdict("RUN040", made_run(audit=pairs)).status == "fail"
    said = {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 2}
    assert verdict("RUN040", made_run(audit=pairs, settings=said)).status == "pass"


def test_three_ranks_of_which_two_share_their_rows() -> None:
    found = verdict("RUN040", made_run(audit=known(audit(shard_hashes=("a", "b", "b"), shard_losses=()))))
    assert found.status == "fail"
    assert "only 2 different parts" in found.found


@pytest.mark.parametrize(("rows", "status"), [((1.0, 1.0), "fail"), ((1.0, 1.5), "pass")])
def test_losses_that_each_rank_wrote(rows: tuple[float, float], status: str) -> None:
    """An averaged loss is the same everywhere; then the rows tell."""
    loss = curve([0.1, 0.3, 0.2, 0.25])
    ranks = {"actor/pg_loss": (loss, loss), "response_length/mean": tuple(curve([row] * 4) for row in rows)}
    assert verdict("RUN040", only("response_length/mean", ranks=ranks)).status == status


def test_weights_that_stay() -> None:
    assert verdict("RUN041", made.FROZEN).status == "fail"
    assert verdict("RUN041", made.RATE_0).status == "fail"
    warming = made_run({"actor/lr": [0.0] * 4}, settings={"trainer.critic_warmup": 10}, audit=UNAUDITED, steps=4)
    assert verdict("RUN041", warming).status == "pass"
    zero = {"actor/ppo_kl": [0.0] * 40, "actor/pg_clipfrac": [0.0] * 40}
    still = {**zero, "actor/entropy": [2.9] * 40, "critic/score/mean": made.FLAT}
    assert verdict("RUN041", made_run(still, audit=UNAUDITED)).status == "fail"
    assert verdict("RUN041", made_run(zero, audit=UNAUDITED)).status == "pass", "reward and entropy moved"
    once = {"actor/ppo_kl": [0.0] * 40, "actor/pg_clipfrac": [0.0] * 40, "actor/optimizer_steps": [1.0] * 40}
    assert verdict("RUN041", made_run(once, audit=UNAUDITED)).status == "unknown"


def test_a_rate_that_rounds_to_nothing() -> None:
    assert verdict("RUN041", made_run({"actor/lr": [1e-14] * 40}, audit=UNAUDITED)).status == "fail"
    assert verdict("RUN041", made_run({"actor/lr": [1e-8] * 40}, audit=UNAUDITED)).status == "pass"


def test_a_schedule_that_ends_before_the_run() -> None:
    ends = {"actor/lr": [1e-3] * 8 + [0.0] * 32}
    found = verdict("RUN041", made_run(dict(ends)))
    assert found.status == "fail"
    assert "from step 9 on, in 32 of 40 steps" in found.found
    assert found.params["override"].endswith("lr_scheduler_type=constant")
    assert verdict("RUN041", made_run({"actor/lr": [1e-3] * 37 + [0.0] * 3})).status == "pass"


def test_steps_that_bfloat16_rounds_away() -> None:
    said = {"actor_rollout_ref.actor.fsdp_config.model_dtype": "bfloat16"}
    tiny = {"actor/lr": [1e-5] * 40, "actor/ppo_kl": [1e-6] * 40, "actor/pg_clipfrac": [0.0] * 40}
    flat = {**tiny, "critic/score/mean": made.FLAT}
    found = verdict("RUN041", made_run(dict(flat), settings=said))
    assert found.status == "warn"
    assert found.params["override"].endswith("model_dtype=float32")
    assert verdict("RUN030", made_run(dict(flat), settings=said)).status == "pass", "told once"
    assert verdict("RUN030", made_run(dict(flat))).status == "warn"
    assert verdict("RUN041", made_run(dict(tiny), settings=said)).status == "pass", "it learns all the same"


def test_weights_need_not_change_where_no_step_was_taken() -> None:
    still = audit(parameter_hashes=("a", "b"), optimizer_steps=0)
    assert verdict("RUN041", made_run({"actor/ppo_kl": None}, audit=known(still))).status != "fail"


@settings(max_examples=30, deadline=None)
@given(st.floats(1, 1e6), st.floats(0.1, 1e4))
def test_silence_is_judged_by_the_time_of_a_step(idle: float, step: float) -> None:
    facts = made_run({"timing_s/step": [step] * 40}, outcome="running", total_steps=99, idle_s=known(idle))
    assert (verdict("RUN050", facts).status == "fail") == (idle > max(300, 10 * step))


@pytest.mark.parametrize(
    ("outcome", "status"), [("failed", "fail"), ("dead", "fail"), ("interrupted", "info"), ("finished", "pass")]
)
def test_ends(outcome: str, status: str) -> None:
    assert verdict("RUN050", made_run(outcome=outcome, total_steps=99)).status == status


def test_a_run_of_which_nobody_knows_whether_it_runs() -> None:
    assert verdict("RUN050", only("timing_s/step", idle_s=known(1e6))).status == "info"
    assert verdict("RUN050", only("timing_s/step")).status == "skip"
    assert verdict("RUN050", only("timing_s/step", total_steps=40)).status == "pass"
    assert (
        verdict("RUN050", made_run(outcome="running", total_steps=99, num_steps=0, idle_s=known(900.0))).status
        == "pass"
    )


def test_longer_answers_explain_a_lower_throughput() -> None:
    slower = {"perf/throughput": [3000.0 - 40 * step for step in range(40)]}
    assert verdict("RUN051", made_run(dict(slower))).status == "warn"
    longer = {**slower, "response_length/mean": [100.0 + 20 * step for step in range(40)]}
    assert verdict("RUN051", made_run(dict(longer))).status == "info"


def test_a_step_that_counts_its_audit_is_explained() -> None:
    """rltrain's step is from step end to step end."""
    audited = made_run({"timing_s/step": [3.0] * 40, "timing_s/audit": [1.2] * 40, "timing_s/capsule": [0.4] * 40})
    assert verdict("RUN052", audited).status == "pass"


@pytest.mark.parametrize(
    ("curves", "word"),
    [
        ({"timing_s/reward": [0.6] * 40, "timing_s/step": [1.5] * 40}, "reward takes"),
        ({"timing_s/update_weights": [0.8] * 40, "timing_s/step": [1.7] * 40}, "update_weights takes"),
        ({"timing_s/step": [3.0] * 40}, "belongs to no stage"),
        ({"timing_s/gen": [0.4 + 0.1 * step for step in range(40)], "timing_s/step": [4.0] * 40}, "gen takes"),
    ],
)
def test_odd_stages(curves: dict[str, list[float]], word: str) -> None:
    found = verdict("RUN052", made_run(dict(curves)))
    assert found.status == "warn"
    assert word in " ".join((found.found, *found.details))


def test_validation_is_made_more_seldom() -> None:
    assert verdict("RUN052", made.VALIDATES_OFTEN).params == {"override": "trainer.test_freq=2"}


def test_memory_that_fills_up_and_stays_is_no_creep() -> None:
    fills = [2.0 + min(step, 15) * 0.2 for step in range(40)]
    assert verdict("RUN054", made_run({"perf/run_memory_used_gb": fills})).status == "pass"
    saw = [2.0 + 0.3 * (step % 5) for step in range(40)]
    assert verdict("RUN054", made_run({"perf/run_memory_used_gb": saw})).status == "pass"
    host = {"perf/cpu_memory_used_gb": [20.0 + step for step in range(120)]}
    assert verdict("RUN054", made_run(dict(host))).status == "pass"
    assert verdict("RUN054", made_run({**host, "perf/run_memory_used_gb": None})).status == "warn"
    shorter = {"perf/cpu_memory_used_gb": [20.0 + step for step in range(40)], "perf/run_memory_used_gb": None}
    assert verdict("RUN054", made_run(shorter)).status == "pass"


def test_bounds_of_staleness() -> None:
    old = {"training/policy_staleness/max": [3.0] * 40}
    assert verdict("RUN055", made_run(dict(old))).status == "fail"
    other = {"framework": "verl"}
    assert verdict("RUN055", made_run(dict(old), **other)).status == "pass"
    assert verdict("RUN055", made_run({"training/policy_staleness/max": [12.0] * 40}, **other)).status == "warn"
    bound = {"trainer.v1.sampler.max_off_policy_threshold": 2}
    assert verdict("RUN055", made_run(dict(old), settings=bound, **other)).status == "fail"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"loss_tokens": 1.0}, "fail"),
        ({"reward_again": 0.7}, "warn"),
        ({"adam_steps": 4}, "fail"),
        ({"recomputed_max_diff": None, "reward": None}, "pass"),
    ],
)
def test_sums_of_the_audit(changes: dict[str, object], status: str) -> None:
    assert verdict("RUN056", made_run(audit=known(audit(**changes)))).status == status


def test_each_epoch_counts_the_tokens_again() -> None:
    doubled = known(tuple(audit(loss_tokens=2.0 * one.loss_tokens)[place] for place, one in enumerate(healthy_audit())))
    assert verdict("RUN056", made_run(audit=doubled)).status == "fail"
    assert verdict("RUN056", made_run(audit=doubled, settings={f"{ACTOR}.ppo_epochs": 2})).status == "pass"


def test_sixteen_bits_may_differ_more_when_read_alone() -> None:
    facts = made_run(audit=known(audit(recomputed_max_diff=0.3)), settings={f"{ACTOR}.fsdp_config.dtype": "bfloat16"})
    assert verdict("RUN056", facts).status == "pass"


ODD = st.sampled_from([0.0, 1.0, -5.0, 1e-300, 1e300, -1e300, float(2**60)])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(healthy_curves())), st.lists(ODD, max_size=30)), st.integers(0, 50))
def test_whatever_a_run_logs_there_is_a_verdict(odd: dict[str, list[float]], last: int) -> None:
    facts = made_run(dict(odd), num_steps=last, last_step=last)
    statuses = {found.id: found.message for found in judge(facts, CHECKED, Library()) if found.status == "error"}
    assert statuses == {}


def test_no_check_is_caused_by_itself() -> None:
    """Findings are put in order along causes; a circle would leave it to chance which comes first."""
    causes = {check.id: check.caused_by for check in (*family_checks("RUN"), *family_checks("DRF"))}

    def follow(id: str, path: tuple[str, ...]) -> None:
        assert id not in path, f"{' <- '.join((*path, id))}"
        for cause in causes.get(id, ()):
            follow(cause, (*path, id))

    for id in causes:
        follow(id, ())


def test_equal_tokens_of_a_policy_without_a_choice_prove_nothing() -> None:
    dead = {"actor/entropy": [2.9, *[0.0] * 39], "actor/shard_loss_spread": None}
    same = tuple(audit(shard_hashes=("c", "c"), shard_losses=())[1:])
    assert verdict("RUN040", made_run(dict(dead), audit=known(same))).status == "unknown"
