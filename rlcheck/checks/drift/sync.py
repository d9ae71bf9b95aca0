"""DRF001-DRF003: the engine samples with the weights that the actor learns with, all of them, and of the last step."""

from __future__ import annotations

from rlcheck.check import Verdict, check, fail, info, passed, skip, unknown, warn
from rlcheck.checks.drift.delay import allowed, counted
from rlcheck.checks.drift.growth import Growth, changed_then, growth
from rlcheck.checks.drift.reading import (
    DRIFT_METRICS,
    LOG_CORR,
    ROLLOUT_PPL,
    STALENESS,
    Series,
    series,
)
from rlcheck.checks.drift.start import Start, start
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.measure.run.look import charted, steps_words

_ALWAYS_LATE = ("prime-rl",)
"""Frameworks that sample with older weights by design."""
_OWN = ("rltrain", "")
"""Where a counted staleness is not the report of an asynchronous mode that was asked for."""


@check("DRF001", "The engine takes the actor's new weights", needs=NEEDS, playbook="drift-weights-not-taken",
       caused_by=("RUN057",), problem="The engine does not get the actor's new weights")  # fmt: skip
def weights_are_taken(facts: Facts) -> Verdict:
    """After each update the engine samples with the new weights.

    What it does:
        Follows the difference of engine's and actor's log-probabilities. Where there is none at the first step, and
        from some step on it grows without end while rewards, lengths and the engine's own log-probabilities stand
        still, the engine has kept the weights of that step. Where the two do not even correlate at the first step,
        it never had the actor's.

    Why it matters:
        The actor learns from what another policy did: it moves away from the samples, and what it learns is never
        tried.
    """
    run = run_of(facts)
    found = series(run)
    behind = counted(run)
    if behind is not None and behind[1] > 0.5:
        return _never_again(run, found, int(run.last_step - behind[0]), _moves_text(run))
    if found is None:
        return lacking(run, *DRIFT_METRICS)
    begun, grown = start(run), growth(run)
    if begun.kind == "weights":
        return _other_weights(run, found, begun, "other weights")
    if grown.kind == "frozen" and grown.ended:
        return _for_a_while(run, found, grown)
    if grown.kind == "frozen":
        return _never_again(run, found, grown.last_good, _moves_text(run))
    return _else(found, grown, begun, "the engine's weights follow the actor's")


@check("DRF002", "The engine takes all of the weights", needs=NEEDS, playbook="drift-weights-not-taken",
       caused_by=("DRF001", "RUN022", "RUN057"),
       problem="The engine does not take all of the weights")  # fmt: skip
def weights_are_all_taken(facts: Facts) -> Verdict:
    """After each update all weights of the engine are the new ones.

    What it does:
        Looks for drift that begins after the first step and grows without end although the engine's policy changes,
        too; or that is far above rounding and far below what one step changes. Then a part of the weights, or one of
        several engines, keeps old values. Only warns where lengths of answers jump at the step at which drift begins:
        then the engine may sample otherwise.

    Why it matters:
        The engine runs a mixture of old and new weights that were never trained together. It gets worse with every
        step, slowly enough to be taken for instability.
    """
    run = run_of(facts)
    found = series(run)
    if found is None:
        return lacking(run, *DRIFT_METRICS)
    grown, begun = growth(run), start(run)
    if begun.kind == "part":
        return _other_weights(
            run, found, begun, "with equal prompts, a part of the weights, or what is computed, is another"
        )
    if grown.kind != "part":
        return _else(found, grown, begun, "no part of the weights stays behind")
    which = "its weights, or a part of them, do not follow"
    if grown.moved:
        which = (
            "and the engine's policy changes, too: a part of its weights, or one of several engines, does not follow"
        )
    say, params = (
        fail,
        {"when": f"between steps {grown.last_good} and {grown.onset}", "since": f"from step {grown.onset} on"},
    )
    if grown.jumped:
        params = {"sampled": f"at step {grown.onset}"}
        say, which = warn, f"{changed_then(grown)}; only then is it a part of the weights"
    text = f"drift {_by(grown)} from step {grown.onset} on, {which}"
    return say(
        "no drift beyond rounding after each sync",
        text,
        details=_charts(run, found),
        evidence=(proof(found.name, found.written(found.curve.values[-1]), grown.onset, run.last_step),),
        params=params,
    )


@check("DRF003", "The engine's weights are those of the last step", needs=NEEDS, playbook="drift-weights-late",
       caused_by=("DRF001", "DRF002", "RUN057"),
       problem="The engine's weights are some steps old")  # fmt: skip
def weights_are_of_the_last_step(facts: Facts) -> Verdict:
    """Samples come from the weights of the last update, or from as old ones as the config allows.

    What it does:
        Reads training/policy_staleness. Without it, or where it says 0, looks for drift that begins in the first steps
        and then stays at the size of a few updates, or that is gone at every n-th step only.

    Why it matters:
        With older samples PPO's ratio does not start at 1, and clipping removes the tokens that matter. Two or three
        steps are enough to make high learning rates unstable.
    """
    run = run_of(facts)
    found = series(run)
    told = counted(run)
    if told is not None and told[1] <= 0.5 and told[0] >= 0.5:
        return _late(run, found, round(told[0]), run.first_step, "policy_staleness says so")
    if found is None:
        return lacking(run, *DRIFT_METRICS)
    grown, begun = growth(run), start(run)
    if grown.kind == "late":
        return _late(run, found, grown.behind, grown.onset, _stayed(grown), bool(grown.jumped))
    if grown.kind == "now and then" and grown.behind > 1:
        return _late(run, found, grown.behind, grown.onset, f"drift is gone only about once in {grown.behind} steps")
    return _else(found, grown, begun, "samples come from the last step's weights")


def _stayed(grown: Growth) -> str:
    said = "drift has stayed at the size of that many updates"
    return f"{said}; {changed_then(grown)}" if grown.jumped else said


def _other_weights(run: RunFacts, found: Series, begun: Start, what: str) -> Verdict:
    alike = "" if begun.corr is None else f", correlation {begun.corr:.2f}"
    until = "; from the next step on they agree" if begun.only_first else ""
    text = f"at the first step already, {found.said(begun.first)}{alike}: {what}{until}"
    return fail(
        "an engine that starts with the actor's weights",
        text,
        headline="The engine starts with other weights than the actor",
        details=_charts(run, found),
        evidence=(proof(found.name, found.written(begun.first), found.curve.steps[0]),),
        params={"when": "before the first step"},
    )


def _never_again(run: RunFacts, found: Series | None, last_good: int, still: str) -> Verdict:
    size = f"; engine and actor have drifted apart to {_last(found)}{still}" if found is not None else ""
    name = found.name if found is not None else STALENESS
    return fail(
        "new weights in the engine after each update",
        f"none for {run.last_step - last_good} steps{size}",
        headline=f"The engine has had no new weights since step {last_good}",
        details=_charts(run, found),
        evidence=(proof(name, "grows", last_good, run.last_step),),
        params={"when": f"after step {last_good}"},
    )


def _for_a_while(run: RunFacts, found: Series, grown: Growth) -> Verdict:
    return fail(
        "new weights in the engine after each update",
        f"none from step {grown.last_good} until step {grown.ended}: drift that grows, and then is gone at once",
        headline=f"The engine had no new weights until step {grown.ended}",
        details=_charts(run, found),
        evidence=(proof(found.name, "grows", grown.onset, grown.ended - 1),),
        params={"when": f"after step {grown.last_good}"},
    )


def _late(run: RunFacts, found: Series | None, steps: int, onset: int, why: str, jumped: bool = False) -> Verdict:
    most = allowed(run)
    said = f"weights about {steps} step{'s' if steps != 1 else ''} old ({why})"
    by_design = run.framework in _ALWAYS_LATE or (run.framework not in _OWN and counted(run) is not None)
    if by_design and most is None:
        return info(f"{said}; {run.framework} samples so by design", details=_charts(run, found))
    if most is not None and steps <= most:
        return passed(f"{said}; {most:g} are allowed")
    # Other frameworks sample ahead on purpose, and metrics alone do not say whether this run was to.
    say = fail if (run.framework in _OWN or run.settings) and not jumped else warn
    expected = "weights of the last update" if not most else f"weights at most {most:g} steps old"
    return say(
        expected,
        f"{said}, {steps_words(onset, run.last_step)}",
        details=_charts(run, found),
        evidence=(proof(found.name if found else STALENESS, steps, onset, run.last_step),),
        params={"steps": str(steps)},
    )


def _else(found: Series, grown: Growth, begun: Start, fine: str) -> Verdict:
    """Verdict where the check's own cause is not the one that shows."""
    if len(found.curve.values) < 2:
        return skip("one step only: whether new weights arrive shows at the second")
    if grown.kind == "unclear":
        return unknown(f"drift since {steps_words(grown.onset, found.curve.steps[-1])}: too few steps to say why")
    if grown.kind != "none":
        return skip("the drift that there is comes from something else")
    if begun.kind != "none":
        return skip("drift is there at the first step already, before any update")
    return passed(f"{fine}: {_last(found)} at step {found.curve.steps[-1]}")


def _by(grown: Growth) -> str:
    if grown.ratio <= 1.2:
        return "of a size that no delay makes"
    return f"that grows ({grown.ratio:.1f} times as large in the last third as in the first)"


def _moves_text(run: RunFacts) -> str:
    return ", and what the engine does has not changed since" if curve_of(run, ROLLOUT_PPL) is not None else ""


def _last(found: Series) -> str:
    return found.said(found.curve.values[-1])


def _charts(run: RunFacts, found: Series | None) -> tuple[str, ...]:
    own = (charted(found.label, found.curve),) if found is not None else ()
    return own + drawn(run, LOG_CORR, ROLLOUT_PPL, "critic/score/mean", STALENESS)
