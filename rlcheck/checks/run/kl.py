"""RUN036, RUN037: the KL to the reference: whether it is held back, and how large it is."""

from __future__ import annotations

import msgspec

from rlcheck.check import Verdict, check, fail, info, passed, skip, warn
from rlcheck.checks.run.behaviour import ENTROPY, STEP_KL, end_of, reward_move, reward_span, start_of
from rlcheck.checks.run.causes import DRIFT, SIGNAL
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of, setting
from rlcheck.checks.run.loss_terms import Terms, kl_sign, terms_of
from rlcheck.checks.run.settings import KL_COEF, KL_IN_REWARD, KL_LOSS_COEF, LR, USE_KL_LOSS, override
from rlcheck.checks.run.steps import largest_rate
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import correlation, left_band, median, slope, smooth, steps_words, window

KL_LOSS = "actor/kl_loss"
KL_PENALTY = "actor/reward_kl_penalty"
_SHOWN = (KL_LOSS, KL_PENALTY, "critic/score/mean", "actor/entropy", "actor/ppo_kl")
_FEWEST = 5
_PAID = {"turned": "has the wrong sign"}


@check("RUN036", "The KL penalty pulls back", needs=NEEDS, playbook="kl-loss-sign",
       caused_by=(*DRIFT, "RUN030", "RUN057", "RUN058"),
       problem="The KL penalty does not pull back")  # fmt: skip
def kl_penalty_sign(facts: Facts) -> Verdict:
    """Looks at the coefficient of the KL to the reference, as it is set and as it was applied.

    What it does:
        Fails on a negative coefficient. Where the run logs the loss and its parts, solves for the coefficient that was
        really applied, in the whole run and in its last third, and fails when it rewards distance, when a penalty
        that is set is not there, and when it is more than twice, or less than half, of what is set. Fails on a
        coefficient of 1 and more under which the reward does not rise. For KL in the reward, compares rewards before
        and after it. Fails, too, when the KL stays below 0, and when one that costs much still rises and the reward
        does not. Warns when the KL stays as small as that of one update while the policy goes far: then the reference
        goes with it.

    Why it matters:
        With the wrong sign the policy is paid for leaving the reference, and does so without end; with too large a
        weight it never leaves it.
    """
    run = run_of(facts)
    for key in (KL_LOSS_COEF, KL_COEF):
        asked = number_setting(run, key)
        if asked is not None and asked < 0:
            return _set_negative(run, key, asked)
    looks = (_below_0, _in_the_loss, _pinned, _in_the_reward, _runs_away, _reference_moves)
    for found in (look(run) for look in looks):
        if found is not None:
            return found
    if curve_of(run, KL_LOSS, KL_PENALTY) is None:
        if run.settings and not setting(run, USE_KL_LOSS) and not setting(run, KL_IN_REWARD):
            return skip("no KL to a reference is used")
        return lacking(run, KL_LOSS, KL_PENALTY)
    terms = terms_of(run)
    held = f"the loss holds {terms.kl:+.4g} times the KL, and it" if terms and terms.kl is not None else "the KL"
    return passed(f"{held} ends at {end_of(_kl(run)):.3g}")


def _kl(run: RunFacts) -> Curve:
    curve = curve_of(run, KL_LOSS, KL_PENALTY)
    assert curve is not None
    return curve


def _set_negative(run: RunFacts, key: str, asked: float) -> Verdict:
    return fail(
        f"a {key.rpartition('.')[2]} above 0",
        f"a {key.rpartition('.')[2]} of {asked:g}: distance from the reference is rewarded",
        details=drawn(run, *_SHOWN),
        evidence=(proof(KL_LOSS, asked, run.first_step, run.last_step),),
        params={**_PAID, **override(run, key, abs(asked))},
    )


def _in_the_loss(run: RunFacts) -> Verdict | None:
    terms = terms_of(run) or terms_of(_last_third(run))
    if terms is None or terms.kl is None:
        return None
    asked, sign, where = number_setting(run, KL_LOSS_COEF), kl_sign(run, terms), steps_words(terms.first, terms.last)
    if sign == "none" and asked and setting(run, USE_KL_LOSS):
        found = f"none: actor/loss less actor/pg_loss does not hold it, {where}"
    elif sign == "wrong":
        found = f"{terms.kl:+.4g} times the KL, {where}: distance from the reference is rewarded{_growth(run)}"
    elif asked and run.framework == "rltrain" and _is_other(terms.kl, terms.kl_error, asked):
        return _other_weight(run, terms, terms.kl, asked)
    else:
        return None
    return fail(
        f"a loss that holds {f'{asked:+g}' if asked else 'more than 0'} times the KL",
        found,
        details=("solved from actor/loss - actor/pg_loss, actor/kl_loss and actor/entropy_loss", *drawn(run, *_SHOWN)),
        evidence=(proof("actor/loss", f"{terms.kl:+.4g} actor/kl_loss", terms.first, terms.last),),
        params={**_PAID, **override(run, USE_KL_LOSS, "false")},
    )


def _is_other(found: float, error: float, asked: float) -> bool:
    """The coefficient that was FOUND is more than twice, or less than half, what was ASKED, and that is no error."""
    most = limit("kl_coef_factor")
    return not asked / most <= found <= asked * most and abs(found - asked) > 3 * error


def _other_weight(run: RunFacts, terms: Terms, found: float, asked: float) -> Verdict:
    return fail(
        f"a loss that holds {asked:+g} times the KL",
        f"{found:+.4g} times the KL, {steps_words(terms.first, terms.last)}: {found / asked:.3g} times kl_loss_coef",
        headline="The KL penalty has another weight than the config says",
        details=("solved from actor/loss - actor/pg_loss, actor/kl_loss and actor/entropy_loss", *drawn(run, *_SHOWN)),
        evidence=(proof("actor/loss", f"{found:+.4g} actor/kl_loss", terms.first, terms.last),),
        params={"turned": "has another weight than kl_loss_coef"},
    )


def _pinned(run: RunFacts) -> Verdict | None:
    """A weight far above all usual ones, under which the reward does not move: the policy may not leave its place."""
    kl, (key, weight), move = curve_of(run, KL_LOSS, KL_PENALTY), _weight(run), reward_move(run)
    if kl is None or weight is None or move is None or weight < limit("kl_coef_strong"):
        return None
    if move.up or len(kl.values) < limit("slow_steps"):
        return None
    return fail(
        f"a {key.rpartition('.')[2]} below {limit('kl_coef_strong'):g}; 0.001 to 0.1 are usual",
        f"{weight:g}, under which the KL stays at {end_of(kl):.2g} nats a token and the reward went from {move}: the"
        " policy is held where its reference is",
        headline="The KL penalty is so strong that nothing is learned",
        details=drawn(run, *_SHOWN),
        evidence=(proof(_name_of(run, kl), f"{end_of(kl):.3g}", kl.steps[0], kl.steps[-1]),),
        params=override(run, key, limit("kl_coef_usual")),
    )


def _last_third(run: RunFacts) -> RunFacts:
    """The end of the run, if it is long enough to be solved alone: code may treat later steps in another way."""
    loss = curve_of(run, "actor/loss")
    if loss is None or len(loss.steps) < 4 * _FEWEST:
        return run
    since = loss.steps[-(len(loss.steps) // 3)]
    return msgspec.structs.replace(
        run, curves={name: window(one, since, run.last_step) for name, one in run.curves.items()}
    )


def _below_0(run: RunFacts) -> Verdict | None:
    """A KL that stays negative. Single estimates may be so by chance, those of type k2 and k3 in no case."""
    kl = curve_of(run, KL_LOSS, KL_PENALTY)
    since = negative_since(run)
    if kl is None or since is None:
        return None
    before = [value for step, value in zip(kl.steps, kl.values, strict=True) if step < since]
    level = end_of(window(kl, since, run.last_step))
    turned = f", after {before[-1]:.3g} at step {since - 1}" if before and before[-1] > 0 else ""
    return fail(
        "a KL of 0 or more",
        f"a KL of {level:.3g} nats a token, {steps_words(since, run.last_step)}{turned}: no KL is negative, so its sign"
        " is turned round, or the answers are not of this policy",
        details=drawn(run, *_SHOWN),
        evidence=(proof(_name_of(run, kl), f"{level:.4g}", since, run.last_step),),
        params={"turned": "is below 0"},
    )


def negative_since(run: RunFacts) -> int | None:
    """The first step from which the KL to the reference stays below what chance gives, to the end of the run."""
    kl = curve_of(run, KL_LOSS, KL_PENALTY)
    if kl is None:
        return None
    key = (
        "algorithm.kl_penalty"
        if kl is run.curves.get(KL_PENALTY)
        else f"{KL_LOSS_COEF.rpartition('.')[0]}.kl_loss_type"
    )
    squared = str(setting(run, key) or "").rstrip("+") in ("k2", "k3", "mse", "low_var_kl")
    least = limit("kl_rounding" if squared else "kl_negative")
    since = left_band(kl, -least, None, 3 if squared else _FEWEST)
    return since if since is not None and end_of(kl) < -least else None


def _reference_moves(run: RunFacts) -> Verdict | None:
    """A KL to the reference that stays at the size of one update's, through many updates that lead far away."""
    kl, step, entropy, move = (
        curve_of(run, KL_LOSS, KL_PENALTY),
        curve_of(run, STEP_KL),
        curve_of(run, *ENTROPY),
        reward_move(run),
    )
    if kl is None or step is None or len(kl.values) < limit("steps_of_a_moving_reference") or entropy is None:
        return None
    half = kl.steps[len(kl.steps) // 2]
    away, one = end_of(kl), median(abs(value) for value in window(step, half, run.last_step).values) or 0.0
    middle = median(abs(value) for value in window(kl, half, run.last_step).values) or 0.0
    small = limit("tiny_step_kl") < one and middle <= limit("moving_reference") * one and 0 <= away <= 2 * start_of(kl)
    if any(kl.values) and not small:
        return None
    far = abs(end_of(entropy) - start_of(entropy)) > 0.1 * abs(start_of(entropy))
    if not far or move is None or not move.up:
        return None
    return warn(
        "a reference that stays as it was: the farther the policy goes, the larger the KL to it",
        f"a KL to the reference of {middle:.2g} nats a token, that of one update is {one:.2g}, through {len(kl.values)}"
        f" steps in which the entropy went from {start_of(entropy):.3g} to {end_of(entropy):.3g} and the reward from"
        f" {move}: the reference moves with the policy",
        headline="The reference moves with the policy",
        details=drawn(run, *_SHOWN),
        evidence=(proof(_name_of(run, kl), f"{middle:.3g}", kl.steps[0], kl.steps[-1]),),
        params={"frozen": "reference"},
    )


def _name_of(run: RunFacts, kl: Curve) -> str:
    return KL_LOSS if kl is run.curves.get(KL_LOSS) else KL_PENALTY


def _growth(run: RunFacts) -> str:
    return f"; the KL went from {start_of(_kl(run)):.3g} to {end_of(_kl(run)):.3g}"


def _in_the_reward(run: RunFacts) -> Verdict | None:
    """What the KL did to the reward: score less reward must rise with the KL, and can in no case fall and fall."""
    kl, score, reward = (curve_of(run, name) for name in (KL_PENALTY, "critic/score/mean", "critic/rewards/mean"))
    if score is None or reward is None:
        return None
    after = dict(zip(reward.steps, reward.values, strict=True))
    pairs = [
        (step, value - after[step]) for step, value in zip(score.steps, score.values, strict=True) if step in after
    ]
    taken = Curve(steps=tuple(step for step, _ in pairs), values=tuple(value for _, value in pairs))
    if len(pairs) < _FEWEST:
        return None
    together = correlation(kl, taken) if kl is not None else None
    if together is None:
        given = -end_of(taken)
        least = limit("kl_gift") * reward_span(run)
        wrong = given > least and abs(start_of(taken)) < 0.5 * given and (slope(taken) or 0.0) < 0
        words = f"rewards above the scores, by {-start_of(taken):.3g} at first and {given:.3g} at the end"
    else:
        # A penalty of whole answers also falls when answers become shorter; what is still taken is taken.
        wrong = together < -limit("kl_reward_correlation") and end_of(taken) < 0
        words = f"rewards that it raises, by {-end_of(taken):.3g} at the end (correlation {together:.2f}){_growth(run)}"
    if not wrong:
        return None
    return fail(
        "rewards that the KL lowers",
        f"{words}, {steps_words(pairs[0][0], pairs[-1][0])}",
        details=drawn(run, KL_PENALTY, "critic/score/mean", "critic/rewards/mean"),
        evidence=(proof("critic/rewards/mean", f"{end_of(reward):.3g}", pairs[0][0], pairs[-1][0]),),
        params={**_PAID, **override(run, KL_IN_REWARD, "false")},
    )


def _runs_away(run: RunFacts) -> Verdict | None:
    """What a penalty does not let happen, whatever the logged loss says: a KL that costs far more than it earns."""
    kl, asked, move = curve_of(run, KL_LOSS), number_setting(run, KL_LOSS_COEF), reward_move(run)
    if kl is None or not asked or not setting(run, USE_KL_LOSS) or move is None or len(kl.values) < _FEWEST:
        return None
    cost = asked * end_of(kl)
    if move.up or cost <= limit("kl_cost") or not _rising(kl):
        return None
    return fail(
        "a KL that its penalty holds back",
        f"a KL of {start_of(kl):.3g} that becomes {end_of(kl):.3g}, which adds {cost:.3g} to the loss and earns"
        f" nothing: the reward went from {move}",
        details=drawn(run, *_SHOWN),
        evidence=(proof(KL_LOSS, f"{end_of(kl):.3g}", kl.steps[0], kl.steps[-1]),),
        params={**_PAID, **override(run, USE_KL_LOSS, "false")},
    )


def _rising(curve: Curve) -> bool:
    """It ends above its middle, and its slope is up."""
    middle = median(curve.values) or 0.0
    return (slope(smooth(curve, 2)) or 0.0) > 0 and end_of(curve) > 1.1 * middle


@check("RUN037", "The KL to the reference stays in its band", needs=NEEDS, playbook="kl-explosion",
       caused_by=(*DRIFT, *SIGNAL, "RUN010", "RUN030", "RUN031", "RUN033", "RUN036", "RUN057", "RUN058"))  # fmt: skip
def kl_in_band(facts: Facts) -> Verdict:
    """Looks at the KL between policy and reference, in the loss or in the reward.

    What it does:
        Warns when the KL stays above 0.15 nats a token and still rises. Fails above 10. One that is there before the
        first update is for RUN058. One below 0 is for RUN036. A KL that rises with the
        reward under a weight of 0.001 and less is information and no finding: so small a weight is meant to let it.

    Why it matters:
        A policy that leaves its reference without end forgets how to write before it learns what is asked.
    """
    run = run_of(facts)
    kl = curve_of(run, KL_LOSS, KL_PENALTY)
    if kl is None:
        if run.settings and not setting(run, USE_KL_LOSS) and not setting(run, KL_IN_REWARD):
            return skip("no KL to a reference is used")
        return lacking(run, KL_LOSS, KL_PENALTY)
    high, broken = limit("kl_band"), limit("kl_broken")
    name = _name_of(run, kl)
    since = left_band(kl, None, high, min(3, len(kl.values)))
    if since is not None and end_of(kl) > broken:
        return _out_of_band(run, kl, name, since, "fail", f"a KL of {end_of(kl):.3g} at the end")
    if since is not None and end_of(kl) > high and _rising(kl):
        found = f"a KL of {end_of(kl):.3g} at the end, and rising"
        if _let_go(run):
            return info(
                f"{found}, as the reward is, under a weight of {_weight(run)[1]:g}", details=drawn(run, *_SHOWN)
            )
        return _out_of_band(run, kl, name, since, "warn", found)
    negative = negative_since(run)
    if negative is not None:
        return info(f"a KL of {end_of(kl):.3g} at the end, which no KL can be (RUN036)", details=drawn(run, *_SHOWN))
    return passed(f"from {start_of(kl):.3g} to {end_of(kl):.3g} nats a token")


def _out_of_band(run: RunFacts, kl: Curve, name: str, since: int, status: str, found: str) -> Verdict:
    judge = fail if status == "fail" else warn
    return judge(
        f"a KL between 0 and {limit('kl_band'):g} nats a token",
        f"{found} (out of the band since step {since})",
        details=drawn(run, *_SHOWN),
        evidence=(proof(name, f"{end_of(kl):.4g}", since, run.last_step),),
        params=_stronger(run),
    )


def _let_go(run: RunFacts) -> bool:
    """Whether the weight is next to nothing, and the reward rises: the policy is not meant to be held."""
    (_, weight), move = _weight(run), reward_move(run)
    return weight is not None and 0 < weight <= limit("tiny_kl_weight") and move is not None and move.up


def _weight(run: RunFacts) -> tuple[str, float | None]:
    """The key of the KL's weight that is in use, and its value."""
    key = KL_LOSS_COEF if setting(run, USE_KL_LOSS) else KL_COEF if setting(run, KL_IN_REWARD) else ""
    return key, number_setting(run, key) if key else None


def _stronger(run: RunFacts) -> dict[str, str]:
    (key, weight), rate = _weight(run), largest_rate(run)
    if key and weight is not None and weight > 0:
        return override(run, key, 2 * weight)
    return override(run, LR, rate / 2) if rate else {}
