"""RUN055 and RUN063: how many updates are between the weights that sampled and those that learn."""

from __future__ import annotations

from rlcheck.check import Verdict, check, fail, passed, skip, unknown, warn
from rlcheck.checks.run.behaviour import end_of
from rlcheck.checks.run.causes import SYNC
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, number_setting, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import left_band, median

MEAN, MOST = "training/policy_staleness/mean", "training/policy_staleness/max"
_BOUNDS = ("max_off_policy_steps", "rollout.max_head_offpolicyness", "trainer.fully_async.max_staleness_steps",
           "grpo.async_grpo.max_trajectory_age_steps", "trainer.v1.sampler.max_off_policy_threshold")  # fmt: skip
_STALE, _DROPPED = "fully_async/count/stale_samples_processed", "fully_async/count/dropped_stale_samples"


@check(
    "RUN055",
    "Samples are as fresh as the method allows",
    needs=NEEDS,
    playbook="drift-weights-late",
    caused_by=SYNC,
    problem="Samples are older than the method allows",
)
def staleness(facts: Facts) -> Verdict:
    """Compares the age of samples, in updates of the policy, with what is allowed.

    What it does:
        Fails when samples of a synchronous run of rltrain are older than the weights, and when an asynchronous run
        exceeds the bound that its config sets. Where no bound is known, warns above 8 updates.

    Why it matters:
        PPO's ratio corrects for a policy that is a few updates old. For an older one its clip throws most tokens away,
        or lets the wrong ones through.
    """
    run = run_of(facts)
    curve = curve_of(run, MOST, MEAN)
    if curve is None:
        return _counted(run)
    name = MOST if MOST in run.curves and curve is run.curves[MOST] else MEAN
    bound, said = _bound(run)
    since = left_band(curve, None, bound, min(3, len(curve.values)))
    if since is None:
        return passed(f"at most {max(curve.values):g} updates old, {bound:g} are allowed")
    judge = fail if said else warn
    return judge(
        f"samples that are at most {bound:g} updates old" + ("" if said else " (the run sets no bound)"),
        f"{end_of(curve):g} at the end, more than that since step {since}",
        details=drawn(run, MEAN, MOST, "actor/ppo_kl", "training/rollout_probs_diff_mean"),
        evidence=(proof(name, f"{end_of(curve):g}", since, run.last_step),),
    )


@check(
    "RUN063",
    "Most samples are fresher than the bound on staleness",
    needs=NEEDS,
    playbook="generation-tail",
    problem="Samples are as old as the bound on staleness lets them be",
)
def at_bound(facts: Facts) -> Verdict:
    """Compares the usual age of samples with the bound of an asynchronous run.

    What it does:
        Warns where a bound of two updates or more is set, and the samples' mean age is at it over the second half of
        the run.

    Why it matters:
        Samples that always wait until the last moment are ready long before: a smaller bound gives the same speed and
        fresher samples. Where training waits nevertheless, the bound keeps answers from being begun in time.
    """
    run = run_of(facts)
    curve, (bound, said) = curve_of(run, MEAN), _bound(run)
    if curve is None or not said or bound < 2:
        return skip("the run sets no bound of two updates or more, or does not log the mean age of its samples")
    late = median(curve.values[len(curve.values) // 2 :]) or 0.0
    if late < limit("staleness_at_bound") * bound:
        return passed(f"{late:.3g} updates old in the mean, {bound:g} are allowed")
    idle = curve_of(run, "perf/training_idle")
    waits = idle is not None and (median(idle.values[len(idle.values) // 2 :]) or 0.0) > limit("waits_nevertheless")
    return warn(
        f"a mean age below {limit('staleness_at_bound') * bound:.3g} updates",
        f"{late:.3g} of {bound:g}: "
        + ("training waits all the same" if waits else "answers are ready long before a step learns from them"),
        details=drawn(run, MEAN, MOST, "perf/training_idle", "perf/rollout_idle"),
        evidence=(proof(MEAN, f"{late:.3g}", curve.steps[len(curve.steps) // 2], run.last_step),),
    )


def _bound(run: RunFacts) -> tuple[float, bool]:
    """The largest age that is allowed, and whether the run itself says so."""
    if run.framework == "rltrain":
        return number_setting(run, "algorithm.max_staleness") or 0.0, True
    asked = number_setting(run, *_BOUNDS)
    return (asked, True) if asked is not None else (limit("staleness"), False)


def _counted(run: RunFacts) -> Verdict:
    """verl's fully asynchronous trainer counts stale samples instead."""
    stale, dropped = curve_of(run, _STALE), curve_of(run, _DROPPED)
    if dropped is not None and stale is not None and end_of(dropped) > max(end_of(stale), 1.0):
        return warn(
            "stale samples that are still of use",
            f"{median(dropped.values) or 0.0:g} dropped, {median(stale.values) or 0.0:g} used: most are too old",
            details=drawn(run, _DROPPED, _STALE),
            evidence=(proof(_DROPPED, f"{end_of(dropped):g}", dropped.steps[0], dropped.steps[-1]),),
        )
    if stale is not None:
        return passed(f"{end_of(stale):g} stale samples used")
    return unknown("the run does not log how old its samples are")
