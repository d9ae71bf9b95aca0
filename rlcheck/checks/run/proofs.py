"""RUN057-RUN060: what a trainer that measures itself proves: no trend is needed, and one step is enough."""

from __future__ import annotations

from collections.abc import Callable

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown, warn
from rlcheck.checks.run.causes import NUMBERS
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, num_ranks, number_setting, proof, run_of, setting
from rlcheck.checks.run.settings import KL_IN_REWARD, USE_KL_LOSS
from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.run import AuditStep, Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median, steps_words

RATIO = "actor/log_ratio_before_step"
REFERENCE_KL = "actor/ref_kl"
RANK_MIN, RANK_MAX, RANK_LEAST = (f"actor/grad_norm_rank_{end}" for end in ("min", "max", "of_min"))
REDUCED = "actor/grad_reduce_error"
ENTROPY, ENTROPY_LOSS = "actor/entropy", "actor/entropy_loss"
_ACTOR = "actor_rollout_ref.actor"
_FEWEST = 3


@check("RUN057", "Log-probabilities are the same when they are read again", needs=NEEDS,
       playbook="log-probs-read-otherwise",
       problem="Training reads other log-probabilities for the same rows under the same weights")  # fmt: skip
def read_again(facts: Facts) -> Verdict:
    """Training agrees with itself about the rows that it learns from.

    What it does:
        Reads from the audit record by how much log-probabilities changed when rows were read again, each alone, and
        from the metrics the largest log ratio before the first optimizer step of an update, when new and old
        log-probabilities are of one policy. Fails in float32 where either is more than rounding, and warns in 16 bits.

    Why it matters:
        Ratio, clip and KL are then wrong for every token from the first step on. The engine has no part in it: what is
        compared are two readings of the training side.
    """
    run = run_of(facts)
    audit = tuple(one for one in value_or(run.audit, ()) if one.recomputed_max_diff is not None)
    ratio = curve_of(run, RATIO)
    if not audit and ratio is None:
        return _not_measured(run, RATIO)
    dtype = str(setting(run, f"{_ACTOR}.fsdp_config.dtype") or "bfloat16")
    exact = dtype in ("float32", "fp32")
    say = fail if exact else warn
    reading = _recomputed(audit, limit("recomputed_float32" if exact else "recomputed_16_bits"))
    if reading:
        return _reads_otherwise(run, reading, len(audit), dtype, say)
    if ratio is not None and (far := _far(ratio, limit("log_ratio_float32" if exact else "log_ratio_16_bits"))):
        return _updates_otherwise(run, ratio, far, dtype, say)
    return passed(f"{len(audit)} records and {len(ratio.values) if ratio else 0} first ratios: nothing but rounding")


def _not_measured(run: RunFacts, name: str) -> Verdict:
    """Verdict where the run lacks the metric NAME, which only rltrain writes."""
    return lacking(run, name) if run.framework in ("rltrain", "") else skip(f"{run.framework} does not measure it")


def _recomputed(audit: tuple[AuditStep, ...], most: float) -> list[AuditStep]:
    wrong = [one for one in audit if (one.recomputed_max_diff or 0.0) > most]
    return wrong if len(wrong) >= max(1, len(audit) // 4) else []


def _far(ratio: Curve, most: float) -> list[tuple[int, float]]:
    far = [(step, value) for step, value in zip(ratio.steps, ratio.values, strict=True) if value > most]
    return far if len(far) >= max(1, len(ratio.values) // 4) else []


def _reads_otherwise(
    run: RunFacts, wrong: list[AuditStep], count: int, dtype: str, say: Callable[..., Verdict]
) -> Verdict:
    worst = max(one.recomputed_max_diff or 0.0 for one in wrong)
    return say(
        f"log-probabilities that are the same when a row is read alone, but for the rounding of {dtype}",
        f"they differ by {worst:.3g} at most, in {len(wrong)} of {count} steps: training against itself, with the same"
        " weights, so neither the engine nor the sync has a part in it",
        details=(
            *(f"step {one.step}: {one.recomputed_max_diff:.3g}" for one in wrong[:4]),
            *drawn(run, RATIO, "training/rollout_log_probs_diff_mean"),
        ),
        evidence=(evidence("run.audit.recomputed_max_diff", wrong[0].recomputed_max_diff,
                           steps_words(wrong[0].step, wrong[-1].step)),),
        params={"reading": "the pass that reads old log-probabilities"},
    )  # fmt: skip


def _updates_otherwise(
    run: RunFacts, ratio: Curve, far: list[tuple[int, float]], dtype: str, say: Callable[..., Verdict]
) -> Verdict:
    worst = max(value for _, value in far)
    return say(
        f"a log ratio of 0 before the first optimizer step, but for the rounding of {dtype}",
        f"{worst:.3g} at most, in {len(far)} of {len(ratio.values)} steps: the update computes other log-probabilities"
        " than the pass before it, under the same weights",
        details=drawn(run, RATIO, "actor/ppo_kl", "actor/pg_clipfrac"),
        evidence=(proof(RATIO, f"{worst:.3g}", far[0][0], far[-1][0]),),
        params={"update": "the update"},
    )


@check("RUN058", "The policy begins as its reference", needs=NEEDS, playbook="reference-is-another-model",
       caused_by=(*NUMBERS, "RUN057"),
       problem="The reference is another model than the policy began as")  # fmt: skip
def begins_as_reference(facts: Facts) -> Verdict:
    """Before the first update, policy and reference are one model.

    What it does:
        Fails when the KL between the two is above 0.02 nats a token before the first update of a run. Where a run logs
        it for the whole first step only, warns when it is far above what one step's updates make.

    Why it matters:
        The penalty then pulls the policy towards a model that it never was: the stronger the penalty, the worse.
    """
    run = run_of(facts)
    before, logged = curve_of(run, REFERENCE_KL), curve_of(run, "actor/kl_loss", "actor/reward_kl_penalty")
    kl = before or logged
    if kl is None:
        if run.settings and not setting(run, USE_KL_LOSS) and not setting(run, KL_IN_REWARD):
            return skip("no KL to a reference is used")
        return lacking(run, REFERENCE_KL, "actor/kl_loss", "actor/reward_kl_penalty")
    if kl.steps[0] > 1:
        return skip(f"the run's first steps are not there: it begins at step {kl.steps[0]}")
    found, most = kl.values[0], limit("kl_at_start")
    name = REFERENCE_KL if before is not None else "actor/kl_loss" if "actor/kl_loss" in run.curves else "the KL"
    if before is None:
        moved = abs(step.values[0]) if (step := curve_of(run, "actor/ppo_kl")) is not None else 0.0
        most = max(limit("kl_band") if step is None else most, 5 * moved)
    if found <= most:
        return passed(f"a KL of {found:.2g} {'before' if before is not None else 'in'} the first update")
    return (fail if before is not None else warn)(
        f"a KL of 0 {'before the first update' if before is not None else 'at first'}, but for rounding",
        f"{found:.3g} nats a token {'before the first update' if before is not None else 'in the first step'}: the"
        " reference is another model, or it is read otherwise",
        details=drawn(run, name, "actor/kl_loss", "critic/score/mean"),
        evidence=(proof(name, f"{found:.3g}", kl.steps[0]),),
    )


@check("RUN059", "The gradient of every rank counts", needs=NEEDS, playbook="rank-gradient-lost",
       caused_by=(*NUMBERS, "RUN011"),
       problem="The gradient of a rank is lost")  # fmt: skip
def gradients_count(facts: Facts) -> Verdict:
    """What each rank learnt reaches the weights.

    What it does:
        Fails when one rank sends a gradient of exactly 0 while others do not, in half of the steps and more, and when
        what the ranks receive does not add up to what they sent.

    Why it matters:
        A part of every batch is generated and scored, and nothing is learnt from it. The curves are those of a run that
        learns more slowly.
    """
    run = run_of(facts)
    least, most, error = (curve_of(run, name) for name in (RANK_MIN, RANK_MAX, REDUCED))
    if least is None or most is None:
        return skip("one rank") if num_ranks(run) == 1 else _not_measured(run, RANK_MIN)
    pairs = [(step, low, high) for step, low, high in zip(least.steps, least.values, most.values, strict=False)
             if high > 0]  # fmt: skip
    silent = [step for step, low, high in pairs if low <= 1e-9 * high]
    if len(silent) >= max(_FEWEST, len(pairs) / 2):
        return _silent_rank(run, silent, len(pairs), most)
    if error is not None:
        wrong = [(step, value) for step, value in zip(error.steps, error.values, strict=True)
                 if value > limit("grad_reduce_error")]  # fmt: skip
        if len(wrong) >= max(_FEWEST, len(error.values) / 2):
            return _not_added_up(run, wrong, len(error.values))
    return passed(f"each of the ranks sends a gradient, in {len(pairs) - len(silent)} of {len(pairs)} steps")


def _silent_rank(run: RunFacts, silent: list[int], count: int, most: Curve) -> Verdict:
    which = curve_of(run, RANK_LEAST)
    rank = f"rank {which.values[-1]:g}" if which is not None and len(set(which.values)) == 1 else "one rank"
    return fail(
        "a gradient from every rank",
        f"0 from {rank} in {len(silent)} of {count} steps, {steps_words(silent[0], silent[-1])}, where another rank"
        f" sends {median(most.values) or 0.0:.3g}: what it generated and scored is not learnt from",
        details=drawn(run, RANK_MIN, RANK_MAX, "actor/grad_norm", "actor/shard_loss_spread"),
        evidence=(proof(RANK_MIN, 0, silent[0], silent[-1]),),
        params={"rank": rank},
    )


def _not_added_up(run: RunFacts, wrong: list[tuple[int, float]], count: int) -> Verdict:
    size = median(value for _, value in wrong) or 0.0
    return fail(
        "gradients that add up to what the ranks sent",
        f"off by {size:.2g} of a rank's own gradient in {len(wrong)} of {count} steps: what a rank sends is lost or"
        " changed on the way",
        details=drawn(run, REDUCED, RANK_MIN, RANK_MAX, "actor/grad_norm"),
        evidence=(proof(REDUCED, f"{size:.3g}", wrong[0][0], wrong[-1][0]),),
        params={"wire": "the reduction"},
    )


@check("RUN060", "The loss counts each token once", needs=NEEDS, playbook="loss-counted-many-times",
       caused_by=(*NUMBERS, "RUN030", "RUN031", "RUN056", "RUN057"),
       problem="The loss counts tokens more than once")  # fmt: skip
def counts_once(facts: Facts) -> Verdict:
    """The entropy that the loss holds is the entropy of the policy.

    What it does:
        Compares the mean entropy as the update adds it up, over micro batches and ranks, with that of the same answers
        before the update. Fails when the first is two or more times the second, and the same number of times in every
        step.

    Why it matters:
        Losses of micro batches that are added and not divided make gradients as many times as large. Adam hides most
        of it, clipping the rest; the learning rate and the clip are no longer those of the config.
    """
    run = run_of(facts)
    own, summed = curve_of(run, ENTROPY), curve_of(run, ENTROPY_LOSS)
    if run.framework != "rltrain":
        return skip("the two entropies are known to be of the same tokens in rltrain's runs only")
    if own is None or summed is None:
        return lacking(run, ENTROPY_LOSS if summed is None else ENTROPY)
    at = dict(zip(own.steps, own.values, strict=True))
    ratios = [value / at[step] for step, value in zip(summed.steps, summed.values, strict=True)
              if at.get(step, 0.0) > limit("entropy_low")]  # fmt: skip
    if len(ratios) < _FEWEST:
        return unknown("too few steps with an entropy to compare")
    usual = median(ratios) or 0.0
    steady = sum(abs(one - usual) <= 0.1 * usual for one in ratios) >= 0.9 * len(ratios)
    if usual < limit("entropy_counted") or not steady:
        return passed(f"{usual:.3g} times the entropy of the policy")
    passes = _micro_batches(run)
    same = passes is not None and abs(usual - passes) <= 0.15 * passes
    told = (
        f"as many as the {passes:g} micro batches of a mini batch: their losses are added, not divided"
        if same
        else ("the losses of micro batches, ranks or epochs are added, not divided")
    )
    return fail(
        "an entropy in the loss that is the policy's",
        f"{usual:.3g} times the policy's in {len(ratios)} steps, {told}",
        details=drawn(run, ENTROPY_LOSS, ENTROPY, "actor/grad_norm", "actor/pg_loss"),
        evidence=(proof(ENTROPY_LOSS, f"{usual:.3g} times {ENTROPY}", summed.steps[0], summed.steps[-1]),),
    )


def _micro_batches(run: RunFacts) -> float | None:
    """Micro batches of a mini batch on each rank, where the config fixes them."""
    prompts, rows = (number_setting(run, f"{_ACTOR}.{key}") for key in (
        "ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu"))  # fmt: skip
    ranks = (number_setting(run, "trainer.n_gpus_per_node") or 1) * (number_setting(run, "trainer.nnodes") or 1)
    if not prompts or not rows or setting(run, f"{_ACTOR}.use_dynamic_bsz"):
        return None
    return prompts * (number_setting(run, "actor_rollout_ref.rollout.n") or 1) / ranks / rows
