"""RUN033 to RUN035: the entropy bonus, and the entropy of the policy."""

from __future__ import annotations

from rlcheck.check import Verdict, check, fail, passed, skip, warn
from rlcheck.checks.run.behaviour import (
    ENTROPY,
    Move,
    end_of,
    reward_move,
    solved,
    start_of,
)
from rlcheck.checks.run.causes import ROOTS
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of
from rlcheck.checks.run.loss_terms import Terms, entropy_sign, terms_of
from rlcheck.checks.run.settings import ENTROPY_COEFF, LR, override
from rlcheck.checks.run.steps import broken_since, largest_rate
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import left_band, steps_words, window

_SHOWN = ("actor/entropy", "critic/score/mean", "actor/ppo_kl", "actor/pg_clipfrac")
_FEWEST = 5
_SPENT_STEPS = 10


@check("RUN033", "The entropy bonus has the right sign", needs=NEEDS, playbook="run-entropy",
       caused_by=("RUN030",),
       problem="The entropy bonus does not do what it should")  # fmt: skip
def entropy_bonus(facts: Facts) -> Verdict:
    """Looks at the coefficient of the entropy bonus, as it is set and as it was applied.

    What it does:
        Fails on an entropy_coeff below 0. Where the run logs the loss and its parts, solves for the coefficient that
        was really applied, and fails when it punishes entropy, or when a bonus that is set is not there. Fails, too,
        when the entropy drains away from the first steps on although a bonus of 0.1 or more is set, while the reward
        does not rise and the steps are small.

    Why it matters:
        A bonus with the wrong sign rewards certainty: the policy settles on one answer before it has seen what others
        earn.
    """
    run = run_of(facts)
    asked, terms = number_setting(run, ENTROPY_COEFF), terms_of(run)
    sign = entropy_sign(run, terms) if terms is not None else ""
    if asked is not None and asked < 0:
        return _negative(run, asked)
    if terms is not None and terms.entropy is not None and sign == "wrong":
        return _reversed(run, terms, terms.entropy, asked)
    if terms is not None and sign == "none" and asked:
        return fail(
            f"a bonus of {asked:g} times the entropy in the loss",
            f"none: actor/loss less actor/pg_loss does not hold it, {steps_words(terms.first, terms.last)}",
            details=drawn(run, "actor/loss", "actor/pg_loss", "actor/entropy_loss"),
            evidence=(proof("actor/loss", "no share of the entropy", terms.first, terms.last),),
        )
    drained = _drained(run, asked) if asked else None
    if drained is not None:
        return drained
    if terms is not None and terms.entropy is not None and sign == "right":
        return passed(f"the loss holds {terms.entropy:.4g} times the entropy")
    if asked:
        return skip(f"the loss and its parts are not logged; entropy_coeff is {asked:g}, which is the right sign")
    if asked == 0:
        return skip("no bonus is set")
    return lacking(run, "actor/entropy_loss with actor/loss", f"a config with {ENTROPY_COEFF}")


def _negative(run: RunFacts, asked: float) -> Verdict:
    return fail(
        "an entropy_coeff of 0 or more",
        f"an entropy_coeff of {asked:g}: entropy is punished{_entropy_words(run)}",
        details=drawn(run, *_SHOWN),
        evidence=(proof("actor/entropy", asked, run.first_step, run.last_step),),
        params=override(run, ENTROPY_COEFF, abs(asked)),
    )


def _reversed(run: RunFacts, terms: Terms, found: float, asked: float | None) -> Verdict:
    asked_words = f"-{asked:g}" if asked else "at most 0"
    return fail(
        f"a loss that holds {asked_words} times the entropy",
        f"{found:+.4g} times the entropy, {steps_words(terms.first, terms.last)}: entropy is punished"
        + _entropy_words(run),
        details=(
            "solved from actor/loss - actor/pg_loss, actor/entropy_loss and actor/kl_loss",
            *drawn(run, *_SHOWN),
        ),
        evidence=(proof("actor/loss", f"{found:+.4g} actor/entropy_loss", terms.first, terms.last),),
        params=override(run, ENTROPY_COEFF, 0),
    )


def _entropy_words(run: RunFacts) -> str:
    curve = curve_of(run, *ENTROPY)
    return "" if curve is None else f"; it went from {start_of(curve):.3g} to {end_of(curve):.3g}"


def _drained(run: RunFacts, asked: float) -> Verdict | None:
    """What a strong bonus does not do, whatever the logged loss says: an entropy that drains away from the start."""
    curve, move = curve_of(run, *ENTROPY), reward_move(run)
    if curve is None or asked < limit("entropy_bonus") or move is None or move.up or broken_since(run) is not None:
        return None
    since, most = collapsed_at(curve), curve.steps[0] + max(10, len(curve.steps) // 3)
    low = left_band(curve, 0.25 * _first_level(curve), None, min(3, len(curve.values)))
    if since is None or low is None or low > most:
        return None
    return fail(
        f"an entropy that a bonus of {asked:g} holds up",
        f"an entropy of {end_of(curve):.3g} at the end, {_first_level(curve):.3g} at first, a quarter of it at step"
        f" {low}, while the reward went from {move}: the bonus works as a penalty",
        details=drawn(run, *_SHOWN),
        evidence=(proof("actor/entropy", f"{end_of(curve):.3g}", low, run.last_step),),
        params=override(run, ENTROPY_COEFF, 0),
    )


def _first_level(curve: Curve) -> float:
    """The entropy at first; that of the very first step, where the next ones have lost it already."""
    return max(curve.values[0], start_of(curve))


def _low(curve: Curve) -> float:
    return max(0.0, min(limit("entropy_collapse_share") * _first_level(curve), limit("entropy_low")))


def collapsed_at(curve: Curve) -> int | None:
    """The first step from which the entropy stays near 0, for what it was at first."""
    low = _low(curve)
    since = left_band(curve, low, None, min(3, len(curve.values)))
    return since if since is not None and end_of(curve) <= low else None


@check("RUN034", "The policy still explores", needs=NEEDS, playbook="entropy-collapse",
       caused_by=(*ROOTS, "RUN017"),
       problem="The policy no longer explores")  # fmt: skip
def entropy_stays(facts: Facts) -> Verdict:
    """Looks for an entropy that falls to nothing before the reward has risen.

    What it does:
        Fails when the entropy ends below 0.05 nats and a twentieth of its first level while the reward has not risen.
        Warns when the reward has risen but is not near the best, and when most of the entropy has gone (below 0.15 of
        the first) and the reward does not rise. A policy that is certain because it solves the task is no fault.

    Why it matters:
        A policy without entropy gives one answer to a prompt: there is nothing to compare, and nothing more is learned.
    """
    run = run_of(facts)
    curve = curve_of(run, *ENTROPY)
    if curve is None:
        return lacking(run, *ENTROPY)
    if len(curve.values) < _FEWEST:
        return skip(f"{len(curve.values)} steps, too few to judge ({_FEWEST} are)")
    since, move = collapsed_at(curve), reward_move(run)
    if since is None and not solved(run) and (spent := _spent(run, curve)) is not None:
        return spent
    words = f"from {start_of(curve):.3g} to {end_of(curve):.3g} nats a token"
    if since is None or solved(run):
        return passed(words + (", and the task is solved" if since is not None else ""))
    judge = fail if move is not None and not move.up else warn
    return judge(
        f"an entropy above {_low(curve):.2g}",
        f"an entropy of {end_of(curve):.2g} nats a token from step {since} on ({_first_level(curve):.3g} at first)"
        + _reward_words(move),
        details=drawn(run, *_SHOWN),
        evidence=(proof("actor/entropy", f"{end_of(curve):.3g}", since, run.last_step),),
        params=_more_entropy(run),
    )


def _spent(run: RunFacts, curve: Curve) -> Verdict | None:
    """An entropy that is mostly gone, with a reward that has not risen in the ten steps and more since then."""
    low = limit("entropy_spent_share") * _first_level(curve)
    since = left_band(curve, low, None, min(3, len(curve.values)))
    if since is None or end_of(curve) >= low or len(window(curve, since, run.last_step).values) < _SPENT_STEPS:
        return None
    move = reward_move(run, since)
    if move is None or move.up:
        return None
    return warn(
        f"an entropy above {low:.2g} nats a token while nothing is learned",
        f"an entropy of {end_of(curve):.2g} nats a token from step {since} on ({_first_level(curve):.3g} at first)"
        f"{_reward_words(move)} since then",
        details=drawn(run, *_SHOWN),
        evidence=(proof("actor/entropy", f"{end_of(curve):.3g}", since, run.last_step),),
        params=_more_entropy(run),
    )


def _reward_words(move: Move | None) -> str:
    return "" if move is None else f", while the reward went from {move}"


def _more_entropy(run: RunFacts) -> dict[str, str]:
    asked, rate = number_setting(run, ENTROPY_COEFF), largest_rate(run)
    if asked and asked > 0.5 * limit("entropy_bonus"):
        return override(run, LR, rate / 2) if rate else {}
    return override(run, ENTROPY_COEFF, 2 * asked if asked and asked > 0 else 0.001)


@check("RUN035", "The policy's entropy does not climb", needs=NEEDS, playbook="entropy-explosion",
       caused_by=(*ROOTS, "RUN017"))  # fmt: skip
def entropy_does_not_explode(facts: Facts) -> Verdict:
    """Looks for an entropy that rises while the reward does not.

    What it does:
        Fails when the entropy ends at one and a half times its first level or more while the reward has fallen, warns
        when the reward has not risen. Warns, too, when a bonus above 0.1 keeps the entropy where it was and the reward
        does not rise.

    Why it matters:
        A policy whose entropy climbs gives more and more random text; the reward follows down.
    """
    run = run_of(facts)
    curve = curve_of(run, *ENTROPY)
    if curve is None:
        return lacking(run, *ENTROPY)
    if len(curve.values) < _FEWEST:
        return skip(f"{len(curve.values)} steps, too few to judge ({_FEWEST} are)")
    first, last, move = start_of(curve), end_of(curve), reward_move(run)
    high = max(limit("entropy_explosion_factor") * first, first + limit("entropy_explosion_nats"))
    since = left_band(curve, None, high, min(3, len(curve.values)))
    if move is not None and not move.up and (drowned := _drowned(run, first, last)) is not None:
        return drowned
    if since is None or last <= high or (move is not None and move.up):
        return passed(f"from {first:.3g} to {last:.3g} nats a token")
    judge = fail if move is not None and move.down else warn
    return judge(
        f"an entropy of at most {high:.3g}",
        f"an entropy of {last:.3g} nats a token at the end, above that since step {since}" + _reward_words(move),
        details=drawn(run, *_SHOWN),
        evidence=(proof("actor/entropy", f"{last:.3g}", since, run.last_step),),
        params=_less_entropy(run),
    )


def _drowned(run: RunFacts, first: float, last: float) -> Verdict | None:
    """A bonus that is far above all usual ones, an entropy that does not fall, and a reward that does not rise."""
    asked, most = number_setting(run, ENTROPY_COEFF), limit("entropy_bonus")
    curve = curve_of(run, *ENTROPY)
    if (
        asked is None
        or asked <= most
        or curve is None
        or len(curve.values) < limit("slow_steps")
        or last < 0.95 * first
    ):
        return None
    return warn(
        f"an entropy bonus of at most {most:g}",
        f"an entropy coefficient of {asked:g}: the entropy stays at {last:.3g}{_reward_words(reward_move(run))}",
        details=drawn(run, *_SHOWN),
        evidence=(proof("actor/entropy", f"{last:.3g}", curve.steps[0], curve.steps[-1]),),
        params=_less_entropy(run),
    )


def _less_entropy(run: RunFacts) -> dict[str, str]:
    asked, rate = number_setting(run, ENTROPY_COEFF), largest_rate(run)
    if asked and asked > 0:
        return override(run, ENTROPY_COEFF, asked / 10)
    return override(run, LR, rate / 2) if rate else {}
