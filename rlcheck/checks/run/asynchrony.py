"""RUN061 and RUN062: whether both sides of an asynchronous run have work, and whether the correction leaves enough."""

from __future__ import annotations

from rlcheck.check import Verdict, check, passed, skip, warn
from rlcheck.checks.run.causes import DRIFT
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median

TRAINING, ROLLOUT = "perf/training_idle", "perf/rollout_idle"
_BUFFER = ("rollout/buffer_finished", "rollout/buffer_unfinished", "rollout/interrupted_answers")
_AGES = ("training/policy_staleness/mean", "training/policy_staleness/max")
MASKED, EFFECTIVE = "rollout_corr/rollout_rs_masked_fraction", "rollout_corr/rollout_is_eff_sample_size"
_OUTSIDE = "rollout_corr/rollout_is_oob_ratio"


@check(
    "RUN061",
    "Both sides of an asynchronous run have work",
    needs=NEEDS,
    playbook="generation-tail",
    problem="One side of an asynchronous run waits for the other",
)
def sides(facts: Facts) -> Verdict:
    """Looks at how long ranks and engines are idle where both work at once.

    What it does:
        Reads perf/training_idle and perf/rollout_idle of rltrain over the second half of the run, and warns where one
        is above half of the time.

    Why it matters:
        Half of the devices of that side do nothing, and taking turns on all of them may be faster.
    """
    run = run_of(facts)
    training, rollout = curve_of(run, TRAINING), curve_of(run, ROLLOUT)
    if training is None or rollout is None:
        return skip("the run does not log idle shares: its sides take turns, or it is not rltrain's")
    shares = {TRAINING: _late(training), ROLLOUT: _late(rollout)}
    most = limit("idle_side")
    worst = max(shares, key=shares.__getitem__)
    if shares[worst] <= most:
        return passed(f"ranks are idle for {shares[TRAINING]:.0%} of the time, engines for {shares[ROLLOUT]:.0%}")
    who, whom = ("ranks", "the engines") if worst == TRAINING else ("engines", "training")
    return warn(
        f"each side idle for at most {most:.0%} of the time",
        f"{who} idle for {shares[worst]:.0%}: they wait for {whom}",
        headline=f"{'Training' if worst == TRAINING else 'Rollout'} is starved: it waits for {whom}",
        details=drawn(run, worst, *_BUFFER, *_AGES),
        evidence=(proof(worst, f"{shares[worst]:.0%}", training.steps[0], run.last_step),),
    )


@check(
    "RUN062",
    "The rollout correction leaves most of the samples",
    needs=NEEDS,
    playbook="run-rollout-correction",
    problem="The rollout correction cuts most of the samples",
    caused_by=DRIFT,
)
def cut(facts: Facts) -> Verdict:
    """Looks at what truncated weights and rejection leave of the samples.

    What it does:
        Reads rollout_corr/rollout_rs_masked_fraction, rollout_is_oob_ratio and rollout_is_eff_sample_size over the
        second half of the run, and warns where tokens are lost, or the effective samples are few.

    Why it matters:
        What is left out was paid for, and what is left is another set of answers than the policy gives: shorter ones,
        where whole answers are judged by a sum.
    """
    run = run_of(facts)
    lost = {name: _late(found) for name in (MASKED, _OUTSIDE) if (found := curve_of(run, name)) is not None}
    if (effective := curve_of(run, EFFECTIVE)) is not None:
        lost[EFFECTIVE] = 1 - _late(effective)
    if not lost:
        return skip("the run corrects for nothing, or does not log what it cuts")
    most, worst = limit("correction_cut"), max(lost, key=lost.__getitem__)
    words = "of the effective samples" if worst == EFFECTIVE else "of the tokens"
    if lost[worst] <= most:
        return passed(f"{lost[worst]:.0%} {words} are lost")
    return warn(
        f"at most {most:.0%} {words} lost to the correction",
        f"{lost[worst]:.0%}",
        details=drawn(run, worst, "rollout_corr/kl", *_AGES),
        evidence=(proof(worst, f"{lost[worst]:.0%} lost", run.first_step, run.last_step),),
    )


def _late(curve: Curve) -> float:
    """The median of the second half."""
    return median(curve.values[len(curve.values) // 2 :]) or 0.0
