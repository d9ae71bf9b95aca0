"""What `rlcheck drift` measured, for a reader: the gap, where it is, what takes it away, where it enters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcheck.facts.document import Facts
from rlcheck.facts.drift import Bin, DriftFacts, Gap, OperationGap, TokenGap, Variant
from rlcheck.facts.run import RunFacts
from rlcheck.finding import Exhibit
from rlcheck.measure.run.look import chart, steps_words
from rlcheck.report.topics.run import ends_of, number

if TYPE_CHECKING:  # every command imports this module, and few measure
    from rlcheck.measure.drift.bands import Band

TREND = {
    "training/rollout_probs_diff_mean": "|p - p'|, mean",
    "training/rollout_probs_diff_max": "|p - p'|, largest",
    "training/rollout_log_probs_diff_mean": "|log p - log p'|",
    "rollout_corr/kl": "KL (k1)",
    "rollout_corr/k3_kl": "KL (k3)",
    "rollout_corr/rollout_is_mean": "weight, mean",
    "rollout_corr/rollout_is_eff_sample_size": "weight, ESS",
    "rollout_corr/rollout_rs_masked_fraction": "rejected",
    "training/rollout_actor_probs_pearson_corr": "correlation",
    "training/rollout_log_probs_slope": "slope of log p",
    "training/policy_staleness/max": "steps behind",
}
"""Metrics of a run that say how far both sides are apart, and what a table calls them."""
_BAR = 24
_CHART = 24
_WORST = 8
_OPERATIONS = 6
_CONTEXT = 10


def headline(facts: Facts) -> str:
    """Rollout against training in a line."""
    if facts.drift.value is not None:
        return _measured(facts.drift.value)
    run = facts.run.value
    curve = run.curves.get("training/rollout_probs_diff_mean") if run is not None else None
    if curve is None or not curve.values:
        return ""
    return (
        f"probabilities differ by {curve.values[-1]:.2g} at step {curve.steps[-1]}, at most by {max(curve.values):.2g}"
    )


def trend(run: RunFacts) -> tuple[str, ...]:
    """Those of `TREND` that the run has."""
    return tuple(name for name in TREND if name in run.curves and run.curves[name].values)


def trend_table(run: RunFacts) -> Exhibit:
    """How far both sides of a run are apart, from start to end."""
    rows: list[tuple[str, ...]] = []
    for name in trend(run):
        curve = run.curves[name]
        start, end = ends_of(curve) or (curve.values[0], curve.values[-1])
        cells = (number(start), number(end), number(max(curve.values)), chart(curve, _CHART))
        rows.append((TREND[name], *cells))
    said = any(not name.startswith("training/policy") for name in trend(run))
    hint = "the run does not say how far both sides are apart: actor_rollout_ref.rollout.calculate_log_probs=true does"
    columns = ("", "start", "end", "largest", steps_words(run.first_step, run.last_step)) if rows else ()
    title = f"Rollout against training: {run.source or 'a record'}"
    return Exhibit(title=title, columns=columns, rows=tuple(rows), notes=() if said else (hint,))


def _measured(drift: DriftFacts) -> str:
    engine = f"{drift.engine or 'engine'} {drift.engine_version}".strip()
    if drift.failure is not None:
        return f"{engine}: {drift.failure.stage or 'start'} failed"
    gap = drift.gap.value
    if gap is None:
        return engine
    return f"{engine}: probabilities differ by {gap.probs_diff_mean:.2g} over {gap.num_tokens} tokens"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The tables of one measurement; nothing where none was made."""
    drift = facts.drift.value
    if drift is None:
        return ()
    found = (_gap(drift), _kinds(drift), _bins("By place in the response", "place", drift.by_position),
             _bins("By length of the sequence", "sequence", drift.by_length), _worst(drift.worst), _variants(drift),
             _operations(drift), _stages(drift))  # fmt: skip
    return tuple(table for table in found if table.rows or table.notes)


def _gap(drift: DriftFacts) -> Exhibit:
    sides = f"{drift.rollout_dtype or '?'} in the engine, {drift.train_dtype or '?'} in training"
    where = f" on {drift.device}" if drift.device else ""
    title = f"Rollout against training, {drift.target or drift.model}{where}: {sides}"
    notes = [*drift.notes]
    if drift.batch_invariant:
        notes.insert(0, "the engine was in batch-invariant mode")
    if drift.weights_from:
        notes.insert(0, f"{drift.weights_from} weights, temperature {drift.temperature:g}")
    gap = drift.gap.value
    if gap is None:
        return Exhibit(title=title, notes=tuple(notes))
    healthy = _band(drift)
    rows = (
        ("|p - p'|, mean", _small(gap.probs_diff_mean), _words(healthy.probs)),
        ("|p - p'|, largest", _small(gap.probs_diff_max), f"{gap.share_above:.2%} of the tokens above 0.01"),
        ("|log p - log p'|, mean", _small(gap.log_probs_diff_mean), _words(healthy.log_probs)),
        ("|log p - log p'|, largest", _small(gap.log_probs_diff_max), ""),
        ("KL (k1), k3", _small(gap.kl), f"k3 {_small(gap.k3_kl)}"),
        ("importance weight", f"{gap.is_mean:.6g}", f"std {_small(gap.is_std)}, effective share {gap.ess:.4g}"),
        ("correlation", _optional(gap.corr), f"of logarithms {_optional(gap.log_corr)}, slope {_optional(gap.slope)}"),
    )
    count = f"{gap.num_tokens} tokens of {drift.num_responses} answers to {drift.num_prompts} prompts"
    return Exhibit(title=title, columns=("", "found", ""), rows=rows, notes=(count, *notes))


def _band(drift: DriftFacts) -> Band:
    """What rounding explains for the coarser of the two dtypes."""
    from rlcheck.measure.drift.bands import band, coarser

    return band(coarser(drift.rollout_dtype, drift.train_dtype), drift.device)


def _words(limits: tuple[float, float]) -> str:
    return f"healthy to {limits[0]:g}, a problem above {limits[1]:g}"


def _kinds(drift: DriftFacts) -> Exhibit:
    rows = tuple(
        (name, str(gap.num_tokens), _small(gap.probs_diff_mean), _small(gap.probs_diff_max), _small(gap.k3_kl))
        for name, gap in drift.by_kind.items()
    )
    return Exhibit(title="By kind of prompt", columns=("kind", "tokens", "mean", "largest", "k3"), rows=rows)


def _bins(title: str, what: str, bins: Sequence[Bin]) -> Exhibit:
    filled = [one for one in bins if one.num_tokens]
    most = max((one.probs_diff_mean for one in filled), default=0.0)
    rows = tuple(
        (span(one), str(one.num_tokens), _small(one.probs_diff_mean), bar(one.probs_diff_mean, most)) for one in filled
    )
    return Exhibit(title=title, columns=(what, "tokens", "mean", ""), rows=rows if len(rows) > 1 else ())


def span(one: Bin) -> str:
    """`8 to 15`; of whole numbers both ends belong to it."""
    if one.low == int(one.low) and one.high == int(one.high):
        return f"{one.low:.0f}" if one.high - one.low <= 1 else f"{one.low:.0f} to {one.high - 1:.0f}"
    return f"{one.low:.1e} to {one.high:.1e}"


def bar(value: float, most: float) -> str:
    """A bar of at most 24 characters, "" for nothing."""
    return "█" * max(1, round(value / most * _BAR)) if value > 0 else ""


def _worst(worst: Sequence[TokenGap]) -> Exhibit:
    rows = tuple(
        (
            str(token.position),
            f"{token.rollout_prob:.4f}",
            f"{token.train_prob:.4f}",
            _small(abs(token.rollout_prob - token.train_prob)),
            token.prompt,
            in_context(token),
        )
        for token in worst[:_WORST]
    )
    columns = ("place", "engine", "training", "apart", "prompt", "in context")
    return Exhibit(title="Tokens that differ most", columns=columns, rows=rows)


def in_context(token: TokenGap) -> str:
    """The token in brackets, with a little text on either side; what is no plain character is spelled."""
    before, after = repr(token.before[-_CONTEXT:])[1:-1], repr(token.after[:_CONTEXT])[1:-1]
    return f"{before}[{repr(token.token)[1:-1]}]{after}"


def _variants(drift: DriftFacts) -> Exhibit:
    """What is left with one thing changed; overrides below the table, where they stay whole."""
    variants = drift.variants.value or ()
    ordered = sorted(variants, key=lambda one: (not one.removes, one.family != "wrong"))
    rows = tuple((_mark(one), one.title or one.name, _left(one)) for one in ordered)
    notes = tuple(f"to have it so: {' '.join(one.overrides)}" for one in ordered if one.removes and one.overrides)
    gap = drift.gap.value
    whole = f"; as the run is: {_small(gap.log_probs_diff_mean)}" if gap is not None else ""
    title = f"With one thing changed: mean |log p - log p'| that is left{whole}" if rows else ""
    return Exhibit(title=title, columns=("", "changed", "left") if rows else (), rows=rows, notes=notes)


def _mark(variant: Variant) -> str:
    return "removes it" if variant.removes else "not tried" if variant.gap is None else ""


def _left(variant: Variant) -> str:
    gap: Gap | None = variant.gap
    return _small(gap.log_probs_diff_mean) if gap is not None else variant.error[:60]


def _operations(drift: DriftFacts) -> Exhibit:
    """Where the difference enters: the first operations that differ though their inputs are equal, then the rest."""
    operations = drift.operations.value or ()
    differing = [one for one in operations if not one.equal]
    shown = differing[:_OPERATIONS]
    shown += [one for one in differing[_OPERATIONS:] if one.input_equal][: _OPERATIONS // 2]
    rows = tuple((_place(one), one.name, _small(one.max_diff), _small(one.scale), _enters(one)) for one in shown)
    same = sum(one.equal for one in operations)
    notes = (f"{same} of {len(operations)} operations are equal to the bit",) if operations else ()
    columns = ("layer", "operation", "largest", "scale", "") if rows else ()
    return Exhibit(title="First operations that differ" if rows else "Operations", columns=columns, rows=rows,
                   notes=notes)  # fmt: skip


def _place(operation: OperationGap) -> str:
    return str(operation.layer) if operation.layer >= 0 else ""


def _enters(operation: OperationGap) -> str:
    return "enters here" if operation.input_equal else ""


def _stages(drift: DriftFacts) -> Exhibit:
    rows = tuple((stage.name, f"{stage.seconds:.1f} s") for stage in drift.stages if stage.seconds >= 0.1)
    return Exhibit(title="Time by stage", columns=("stage", "time"), rows=rows)


def _small(value: float) -> str:
    return f"{value:.2e}" if value and abs(value) < 1e-3 else f"{value:.4g}"


def _optional(value: float | None) -> str:
    return "?" if value is None else f"{value:.6g}"
