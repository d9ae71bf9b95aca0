"""DRF009: engine and training agree beyond the first token as they do at it."""

from __future__ import annotations

from rlcheck.check import Verdict, check, fail, passed, skip
from rlcheck.checks.drift.reading import DRIFT_METRICS, FIRST_TOKEN, LAST_TOKEN, LOG_CORR, MISMATCH, series
from rlcheck.checks.drift.start import start
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.measure.run.look import charted, median


@check("DRF009", "Engine and training agree beyond the first token", needs=NEEDS, playbook="drift-after-first-token",
       caused_by=("DRF001", "DRF004", "RUN057"),
       problem="Engine and training agree at the first token of answers and not beyond it")  # fmt: skip
def agrees_beyond_first(facts: Facts) -> Verdict:
    """The log-probabilities of later tokens of an answer are as equal on both sides as those of its first.

    What it does:
        Compares the difference at the first token of each answer with that of all tokens. Fails when the first is
        rounding, and the others are not, from the first step on.

    Why it matters:
        The first token is read from the prompt alone: weights, prompt, head and temperature are right. What
        differs is what the answer adds to it, and every ratio after the first token is wrong.
    """
    run = run_of(facts)
    found, firsts = series(run), curve_of(run, FIRST_TOKEN)
    if found is None:
        return lacking(run, *DRIFT_METRICS)
    if firsts is None:
        return skip("the run does not write the difference at first tokens")
    begun, first = start(run), median(firsts.values) or 0.0
    if begun.kind == "none":
        return passed(f"{found.said(found.curve.values[0])} at the first step, {first:.2g} at first tokens")
    if begun.kind != "positions":
        return skip("the drift that there is comes from something else")
    prompts = ", prompts are equal token by token" if curve_of(run, MISMATCH) is not None else ""
    return fail(
        "later tokens that agree as the first one does",
        f"{first:.2g} at first tokens, {found.said(begun.first)} over all at the first step, {begun.size:.3g} usually:"
        f" weights, head and temperature are right{prompts}; positions, attention or the cache are not",
        details=(charted(found.label, found.curve), *drawn(run, FIRST_TOKEN, LAST_TOKEN, LOG_CORR)),
        evidence=(proof(FIRST_TOKEN, f"{first:.2g}", firsts.steps[0], run.last_step),),
    )
