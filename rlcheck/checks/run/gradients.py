"""RUN031, RUN032: the gradients' norms."""

from __future__ import annotations

import math
from itertools import pairwise

from rlcheck.check import Verdict, check, fail, info, passed, skip, warn
from rlcheck.checks.run.behaviour import GRAD_NORM, end_of, reward_move, reward_span, start_of
from rlcheck.checks.run.causes import SIGNAL
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, proof, run_of
from rlcheck.checks.run.settings import (
    CRITIC_GRAD_CLIP,
    GRAD_CLIP,
    clip_of,
    key_in_use,
    override,
)
from rlcheck.checks.run.spikes import TRL_CLIP, Spike, harm_of, is_held, spikes_of
from rlcheck.checks.run.steps import broken_since, half_rate
from rlcheck.checks.run.trend import rank_correlation
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median, slope, smooth

_LEAST_POINTS = 4
_USUAL_CLIP = 1.0
_WORTH_KEEPING = 10
"""Steps before a spike for which one goes back to a checkpoint and does not start over."""
_GROWS = "A norm that grows comes before a policy that breaks: engine and trainer disagree, or the steps are too large."


@check("RUN031", "No single gradient wrecks the policy", needs=NEEDS, playbook="gradient-spike",
       caused_by=("RUN030",),
       problem="A single gradient was far too long")  # fmt: skip
def spike_is_held(facts: Facts) -> Verdict:
    """Looks for single steps with a gradient far above the usual one, and whether the clip held them.

    What it does:
        Among steps that had something to learn from, finds those whose gradient norm is over ten times the median of
        the steps before and far above the longest tenth around. One that the run's clip cuts down is no harm. One that
        is not cut fails when reward, entropy or the policy's steps changed for the worse there and stayed so, and
        warns when it is a hundred times the usual one.

    Why it matters:
        One batch of bad samples can undo all that was learned; Adam remembers its size for a thousand steps more.
    """
    run = run_of(facts)
    roles = [role for role in ("actor", "critic") if curve_of(run, f"{role}/grad_norm") is not None]
    if not roles:
        return lacking(run, GRAD_NORM)
    if all(len(run.curves[f"{role}/grad_norm"].values) < _LEAST_POINTS for role in roles):
        return skip(f"too few steps to know the usual norm ({_LEAST_POINTS} are needed)")
    if broken_since(run) == run.curves[f"{roles[0]}/grad_norm"].steps[0]:
        return skip("the policy's steps are too large from the first on: there is no usual norm")
    found = [spike for role in roles for spike in spikes_of(run, role)]
    loose = [spike for spike in found if is_held(run, spike) is not True]
    worst = _worst(run, loose)
    if worst is None:
        return passed(_calm_words(run, roles, found))
    return _spike_verdict(run, *worst, loose)


def _worst(run: RunFacts, loose: list[Spike]) -> tuple[Spike, tuple[str, ...]] | None:
    """The first spike that did harm, else the largest that was not clipped or is huge; None where there is neither."""
    harmed = [(spike, harm) for spike in loose if (harm := harm_of(run, spike))]
    if harmed:
        return harmed[0]
    huge = limit("huge_spike_factor")
    bare = [spike for spike in loose if is_held(run, spike) is False or spike.norm >= huge * spike.usual]
    return (max(bare, key=lambda spike: spike.norm / spike.usual), ()) if bare else None


def _spike_verdict(run: RunFacts, spike: Spike, harm: tuple[str, ...], loose: list[Spike]) -> Verdict:
    keys = GRAD_CLIP if spike.role == "actor" else CRITIC_GRAD_CLIP
    said, most = clip_of(run, keys)
    held = f"clipped at {most:g}" if most is not None else "not clipped" if said else "whether clipped is not known"
    if not said and run.framework == "trl":
        held = f"TRL clips at {TRL_CLIP:g} unless max_grad_norm says otherwise"
    times = spike.norm / spike.usual
    found = f"{spike.norm:.3g} at step {spike.step} ({times:.0f} times as long, {held})"
    more = {
        "details": (
            *harm[1:],
            *([f"{len(loose)} such steps: {', '.join(str(one.step) for one in loose[:8])}"] if loose[1:] else []),
            *drawn(run, spike.metric, "critic/score/mean", "actor/entropy", "actor/ppo_kl"),
        ),
        "evidence": (proof(spike.metric, f"{spike.norm:.4g}", spike.step),),
        "params": {
            "step": str(spike.step),
            **({"resume": str(spike.step)} if harm and spike.step - run.first_step >= _WORTH_KEEPING else {}),
            **(override(run, key_in_use(run, keys), _USUAL_CLIP) if most != _USUAL_CLIP else {}),
        },
    }
    expected = f"gradients of the {spike.role} near their usual norm of {spike.usual:.3g}, or clipped"
    if harm:
        return fail(expected, f"{found}; then {harm[0]}", **more)
    if times >= limit("huge_spike_factor"):
        return warn(expected, found, **more)
    return info(f"the norm of the {spike.role}'s gradient is {found}; nothing came of it", **more)


def _calm_words(run: RunFacts, roles: list[str], found: list[Spike]) -> str:
    norms = ", ".join(f"{role} at most {max(run.curves[f'{role}/grad_norm'].values):.3g}" for role in roles)
    held = [spike for spike in found if is_held(run, spike)]
    return f"{norms}" + (f"; {len(held)} spikes, held by the clip" if held else "")


@check("RUN032", "Gradients are finite and do not grow", needs=NEEDS, playbook="gradient-spike",
       caused_by=(*SIGNAL, "RUN010", "RUN014", "RUN030", "RUN031", "RUN033", "RUN036", "RUN039"))  # fmt: skip
def gradient_norm(facts: Facts) -> Verdict:
    """Looks at the trend of the policy's gradient norm.

    What it does:
        Fails when every gradient is exactly 0, or every optimizer step was skipped. Warns when some steps were
        skipped because their gradient was not finite, when the norm rises to ten times its first level, and when it
        rises several-fold and hardly ever falls while little is learned: gradients then pile up from step to step.

    Why it matters:
        Without a gradient nothing is learned, whatever the other curves show. A norm that grows comes before a policy
        that breaks.
    """
    run = run_of(facts)
    curve = curve_of(run, GRAD_NORM)
    skipped = run.curves.get("actor/skipped_steps")
    if curve is None:
        return _all_skipped(run, skipped) or lacking(run, GRAD_NORM)
    return _zero(run, curve) or _all_skipped(run, skipped) or _some_skipped(run, skipped) or _trend(run, curve)


def _zero(run: RunFacts, curve: Curve) -> Verdict | None:
    least = limit("least_grad_norm")
    empty = [step for step, value in zip(curve.steps, curve.values, strict=True) if abs(value) <= least]
    if len(empty) < max(limit("constant_steps"), len(curve.values) // 2):
        return None
    judge = fail if len(empty) == len(curve.values) else warn
    size = "exactly 0" if curve.values.count(0.0) == len(empty) else "next to nothing"
    return judge(
        "gradients that are not 0",
        f"{size} in {len(empty)} of {len(curve.values)} steps, the first is {empty[0]}",
        headline="Gradients are zero",
        details=drawn(run, GRAD_NORM, "actor/pg_loss", "critic/advantages/max", "critic/score/mean"),
        evidence=(proof(GRAD_NORM, 0, empty[0], empty[-1]),),
        params={"empty": f"{len(empty)} of {len(curve.values)} steps"},
    )


def _all_skipped(run: RunFacts, skipped: Curve | None) -> Verdict | None:
    taken = run.curves.get("actor/optimizer_steps")
    if skipped is None or taken is None or not any(skipped.values) or any(taken.values):
        return None
    return fail(
        "optimizer steps that are taken",
        "every one was skipped, because its gradient was not finite",
        headline="Every optimizer step is skipped",
        evidence=(proof("actor/skipped_steps", sum(skipped.values), skipped.steps[0], skipped.steps[-1]),),
    )


def _some_skipped(run: RunFacts, skipped: Curve | None) -> Verdict | None:
    if skipped is None or not any(skipped.values):
        return None
    bad = [step for step, value in zip(skipped.steps, skipped.values, strict=True) if value]
    return warn(
        "gradients that are finite",
        f"{sum(skipped.values):g} optimizer steps skipped, in {len(bad)} steps, the first is {bad[0]}",
        headline="Some gradients are not finite",
        details=drawn(run, "actor/skipped_steps", GRAD_NORM, "actor/ppo_kl"),
        evidence=(proof("actor/skipped_steps", sum(skipped.values), bad[0], bad[-1]),),
        params=half_rate(run),
    )


def _trend(run: RunFacts, curve: Curve) -> Verdict:
    if len(curve.values) < 10:
        return skip(f"{len(curve.values)} steps, too few for a trend (10 are judged)")
    smoothed = smooth(curve, 2)
    first, last, rising = start_of(smoothed), end_of(smoothed), (slope(smoothed) or 0.0) > 0
    if rising and first > 0 and last > limit("grad_norm_growth") * first:
        return warn(
            f"a gradient norm that stays within {limit('grad_norm_growth'):g} times its first level",
            f"a rise from {first:.3g} to {last:.3g}",
            headline="Gradients grow",
            details=drawn(run, GRAD_NORM, "actor/ppo_kl", "training/rollout_probs_diff_mean"),
            evidence=(proof(GRAD_NORM, f"{last:.4g}", curve.steps[0], curve.steps[-1]),),
            params={"grown": f"from {first:.3g} to {last:.3g}", "run": run.source, **_clip(run), **half_rate(run)},
            why=_GROWS,
        )
    if _piles_up(run, curve):
        return warn(
            "a gradient norm that goes up and down with the batch",
            f"a norm that rises from {curve.values[0]:.3g} to {last:.3g}, more evenly than gradients of fresh batches,"
            f" while the reward went from {reward_move(run)}: gradients may pile up from step to step",
            headline="Gradients grow",
            details=drawn(run, GRAD_NORM, "critic/score/mean", "actor/ppo_kl"),
            evidence=(proof(GRAD_NORM, f"{last:.4g}", curve.steps[0], curve.steps[-1]),),
            params={"piled": "gradients"},
            why=_GROWS,
        )
    said, most = clip_of(run, GRAD_CLIP)
    if said and most is not None and end_of(curve) > limit("spike_factor") * most:
        return info(
            f"the norm is about {end_of(curve):.3g}, the clip {most:g}: the clip sets the size of every step",
            details=drawn(run, GRAD_NORM),
        )
    return passed(f"from {first:.3g} to {last:.3g}")


def _clip(run: RunFacts) -> dict[str, str]:
    """The override of the usual clip; empty where the run clips as hard already."""
    _, most = clip_of(run, GRAD_CLIP)
    found = {} if most is not None and most <= _USUAL_CLIP else override(run, key_in_use(run, GRAD_CLIP), _USUAL_CLIP)
    return {"clip": found["override"]} if found else {}


def _piles_up(run: RunFacts, curve: Curve) -> bool:
    """A norm that grows several-fold along a smooth line, which that of fresh batches does not, and little reward."""
    values, move = curve.values, reward_move(run)
    if len(values) < limit("slow_steps") or min(values) <= 0 or move is None:
        return False
    if end_of(curve) < limit("grad_norm_piles_up") * values[0] or move.after - move.before > 0.1 * reward_span(run):
        return False
    together = rank_correlation(range(len(values)), values)
    jumps = [abs(math.log(after / before)) for before, after in pairwise(values)]
    return together is not None and together > 0.97 and (median(jumps) or 0.0) < 0.08
