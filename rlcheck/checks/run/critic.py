"""RUN039: the critic learns what answers are worth."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rlcheck.check import Verdict, check, fail, passed, skip, warn
from rlcheck.checks.run.behaviour import EDGE, end_of, solved
from rlcheck.checks.run.causes import DRIFT, SIGNAL, WORK
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of
from rlcheck.checks.run.settings import CRITIC_LR, override, usual_lr
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.config.estimators import needs
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median

EXPLAINED = "critic/vf_explained_var"
_SHOWN = (EXPLAINED, "critic/vf_loss", "critic/values/mean", "critic/returns/mean", "critic/grad_norm", "critic/lr")
_VALUES, _AIMS = (
    ("critic/values/mean", "critic/vpred_mean"),
    ("critic/returns/mean", "critic/rewards/mean", "critic/score/mean"),
)
_FEWEST = 8
_MOST_POINTS = 1000
"""Of a long run that are looked at, evenly spread."""


class Point(NamedTuple):
    """One step: explained variance, mean value and mean return, both in widths of what returns span."""

    step: int
    explained: float | None
    value: float | None
    aim: float | None

    @property
    def bias(self) -> float | None:
        """How far the mean value is off."""
        return None if self.value is None or self.aim is None else abs(self.value - self.aim)


@check("RUN039", "The critic learns", needs=NEEDS, playbook="critic-does-not-learn",
       caused_by=(*DRIFT, *SIGNAL, *WORK, "RUN010", "RUN030", "RUN036"))  # fmt: skip
def critic_learns(facts: Facts) -> Verdict:
    """Looks at what the critic predicts, against the returns.

    What it does:
        Fails when the critic's gradient, its learning rate or its optimizer steps are 0 throughout, when its mean
        prediction stays far from the mean return or does not follow it, and when it stays worse than a constant
        (explained variance below 0) without getting better. Warns when it stays no better than one, or is below 0 in
        all of the last third. Steps in which nearly all returns are alike are left out: there is nothing to explain.

    Why it matters:
        Advantages are measured against the critic. One that does not learn turns them into noise, or into a constant
        that is added to every answer.
    """
    run = run_of(facts)
    if curve_of(run, EXPLAINED, "critic/vf_loss", *_VALUES) is None:
        if run.settings and not needs(str(run.settings.get("algorithm.adv_estimator", "gae")), "critic"):
            return skip("the run has no critic")
        return lacking(run, EXPLAINED)
    stopped = _stopped(run)
    if stopped is not None:
        return stopped
    points = _points(run)
    if not points and curve_of(run, "critic/vf_loss") is not None:
        return _loss_alone(run)
    if len(points) < _FEWEST:
        return skip(f"{len(points)} steps whose returns differ, too few to judge ({_FEWEST} are)")
    return _judge(run, points)


def _stopped(run: RunFacts) -> Verdict | None:
    """The plain evidence: nothing drives the critic, or far too much does."""
    for name, what in (("critic/grad_norm", "gradients"), ("critic/lr", "a learning rate"),
                       ("critic/optimizer_steps", "optimizer steps")):  # fmt: skip
        curve = run.curves.get(name)
        least = limit("least_lr") if name == "critic/lr" else 0.0
        if curve is not None and len(curve.values) >= EDGE and max(curve.values[1:]) <= least:
            return _failed(run, f"{what} of the critic above {least:g}", f"{max(curve.values):g} in every step",
                           curve.steps[0], _usual_rate(run) if name == "critic/lr" else {})  # fmt: skip
    used = curve_of(run, "critic/lr")
    rate = max(used.values) if used is not None else number_setting(run, CRITIC_LR)
    if rate is not None and rate >= limit("absurd_lr"):
        return _failed(run, "a learning rate that a network takes", f"{rate:g} for the critic", run.first_step,
                       _usual_rate(run))  # fmt: skip
    return None


def _points(run: RunFacts) -> list[Point]:
    """The steps whose returns differ. Where no returns are logged the rewards stand for them."""
    explained, values, aims = (_table(curve_of(run, *names)) for names in ((EXPLAINED,), _VALUES, _AIMS))
    high, low = (_table(curve_of(run, f"critic/returns/{end}", f"critic/score/{end}")) for end in ("max", "min"))
    widest = max((high[step] - low[step] for step in high if step in low), default=0.0)
    if not widest and aims:
        widest = max(aims.values()) - min(aims.values())
    points: list[Point] = []
    steps = sorted(set(explained) | set(values))
    for step in steps[:: max(1, len(steps) // _MOST_POINTS)]:
        width = high[step] - low[step] if step in high and step in low else None
        value, aim = values.get(step), aims.get(step)
        if width is not None and width < 0.01 * widest:
            continue
        scaled = [None if one is None or widest <= 0 else one / widest for one in (value, aim)]
        points.append(Point(step, explained.get(step), *scaled))
    return points


def _loss_alone(run: RunFacts) -> Verdict:
    """Nothing but the value loss is logged: one that only grows is no learning."""
    curve = run.curves["critic/vf_loss"]
    if len(curve.values) < 2 * _FEWEST:
        return skip(f"{len(curve.values)} steps, too few to judge the value loss ({2 * _FEWEST} are)")
    first, last = median(curve.values[1 : 1 + EDGE]) or 0.0, end_of(curve)
    if last <= limit("value_loss_growth") * first or last < 0.5 * max(curve.values):
        return passed(f"value loss {first:.3g} at first, {last:.3g} at the end")
    return warn(
        "a value loss that falls again",
        f"{last:.3g} at the end, {first:.3g} at first",
        details=drawn(run, *_SHOWN, "critic/score/mean"),
        evidence=(proof("critic/vf_loss", f"{last:.3g}", curve.steps[0], curve.steps[-1]),),
        params=_raised_rate(run),
    )


def _table(curve: Curve | None) -> dict[int, float]:
    return {} if curve is None else dict(zip(curve.steps, curve.values, strict=True))


def _judge(run: RunFacts, points: list[Point]) -> Verdict:
    early, late = points[: max(EDGE, len(points) // 5)], points[len(points) // 2 :]
    off = _off(points)
    if off:
        found = f"one that {off} ({_pair(run)} at the end)"
        return _failed(run, "a mean value near the mean return", found, late[0].step, _raised_rate(run))
    explained, at_first = _median_of(late, "explained"), _median_of(early, "explained")
    if explained is None or at_first is None:
        return passed(f"the mean value is off by {_median_of(late, 'bias') or 0.0:.1%} of what returns span")
    if explained < limit("critic_worse") and explained < at_first + 0.2 * abs(at_first):
        return _failed(
            run,
            "an explained variance above 0",
            f"an explained variance of {explained:.2g} since step {late[0].step}, {at_first:.2g} at first: worse than a"
            " constant",
            late[0].step,
            _raised_rate(run),
        )
    if _no_better_than_a_constant(run, points, late):
        return warn(
            "an explained variance above 0",
            f"an explained variance of {explained:.2g} since step {late[0].step}: no better than a constant",
            details=drawn(run, *_SHOWN),
            evidence=(proof(EXPLAINED, f"{explained:.3g}", late[0].step, late[-1].step),),
            params=_raised_rate(run),
        )
    return passed(f"explained variance {at_first:.2g} at first, {explained:.2g} later")


def _no_better_than_a_constant(run: RunFacts, points: list[Point], late: list[Point]) -> bool:
    """After a good many steps hardly any explains more than nothing, and the task is not solved.

    A critic that knows something is above 0 in at least one step of a run's last third.
    """
    least = limit("critic_explains")
    third = [point.explained for point in points[-(len(points) // 3) :]]
    if len(third) >= 5 and all(value is not None and value < 0 for value in third) and not solved(run):
        return True
    above = sum(point.explained is not None and point.explained > least for point in late)
    lately = _median_of(late, "explained")
    if lately is None or lately > least or above > 0.25 * len(late):
        return False
    return len(points) >= limit("critic_explains_steps") and not solved(run)


def _off(points: list[Point]) -> str:
    """How the mean value is off at the end, where it is far off or has not followed, and does not come nearer."""
    part = max(EDGE, len(points) // 3)
    first, last = points[:part], points[-part:]
    at_first, now = _median_of(first, "bias"), _median_of(last, "bias")
    if at_first is None or now is None or len(points) < limit("critic_bias_steps") or now <= 0.8 * at_first:
        return ""
    if now > limit("critic_bias"):
        return f"is off by {now:.0%} of what returns span"
    moved = (_median_of(last, "aim") or 0.0) - (_median_of(first, "aim") or 0.0)
    followed = (_median_of(last, "value") or 0.0) - (_median_of(first, "value") or 0.0)
    explained = _median_of(last, "explained")
    worse = now > at_first and (explained is None or explained < 0)
    if worse and abs(moved) > limit("critic_follows") and followed / moved < 0.2:
        return f"does not follow: returns moved by {moved:.0%} of what they span, it by {followed:.0%}"
    return ""


def _median_of(points: list[Point], field: Literal["explained", "value", "aim", "bias"]) -> float | None:
    values: list[float | None] = [getattr(point, field) for point in points]
    return median(value for value in values if value is not None)


def _pair(run: RunFacts) -> str:
    value, aim = curve_of(run, *_VALUES), curve_of(run, *_AIMS)
    return f"{value.values[-1]:.3g} for {aim.values[-1]:.3g}" if value is not None and aim is not None else ""


def _failed(run: RunFacts, expected: str, found: str, since: int, params: dict[str, str]) -> Verdict:
    return fail(
        expected,
        found,
        details=drawn(run, *_SHOWN),
        evidence=(proof(EXPLAINED, found, since, run.last_step),),
        params=params,
    )


def _usual_rate(run: RunFacts) -> dict[str, str]:
    """The critic's head is new: ten times the policy's rate, unless the policy learns at a tiny model's rate."""
    usual = usual_lr(run)
    return override(run, CRITIC_LR, usual if usual >= 1e-3 else 10 * usual)


def _raised_rate(run: RunFacts) -> dict[str, str]:
    rate = number_setting(run, CRITIC_LR)
    return _usual_rate(run) if rate is None else override(run, CRITIC_LR, max(10 * rate, 0.0)) if rate < 1e-4 else {}
