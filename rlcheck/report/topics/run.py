"""A training run for a reader: what it is, and its metrics from start to end as lines that fit a terminal."""

from __future__ import annotations

from typing import NamedTuple

from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.finding import Exhibit
from rlcheck.measure.run.look import chart, first_last, steps_words

CHART_WIDTH = 32
"""With it the table fits 80 columns."""
SHARE = 0.1
"""Start and end are medians of this share of the points."""
_MAX_VALIDATIONS = 3


class Row(NamedTuple):
    """A metric that every reader wants to see; the first of `names` that the run has is taken."""

    label: str
    names: tuple[str, ...]


ROWS = (
    Row("reward", ("critic/score/mean", "critic/rewards/mean")),
    Row("loss", ("train/loss",)),
    Row("held-out loss", ("val/loss",)),
    Row("KL of an update", ("actor/ppo_kl",)),
    Row("KL to reference", ("actor/reward_kl_penalty", "actor/kl_loss")),
    Row("entropy", ("actor/entropy", "actor/entropy_loss")),
    Row("response length", ("response_length/mean",)),
    Row("cut or at the limit", ("response/truncated_ratio", "response_length/clip_ratio")),
    Row("gradient norm", ("actor/grad_norm",)),
    Row("clipped", ("actor/pg_clipfrac",)),
    Row("critic explains", ("critic/vf_explained_var",)),
    Row("drift", ("training/rollout_probs_diff_mean", "rollout_corr/k3_kl", "rollout_corr/kl")),
    Row("tokens/s per rank", ("perf/throughput",)),
    Row("seconds per step", ("timing_s/step", "perf/time_per_step")),
)
OUTCOMES = {"running": "running", "finished": "finished", "failed": "failed", "interrupted": "interrupted",
            "dead": "its process is gone"}  # fmt: skip


def headline(facts: Facts) -> str:
    """The run in a line: how far it came, how it ended, the reward from start to end."""
    return "" if facts.run.value is None else headline_of(facts.run.value)


def headline_of(run: RunFacts) -> str:
    """The same of a run."""
    reward = curve_of(run, ROWS[0])
    ends = ends_of(reward) if reward is not None else None
    words = f"reward {ends[0]:.3g} to {ends[1]:.3g}" if ends is not None else ""
    return ", ".join(part for part in (run.framework, progress(run), OUTCOMES.get(run.outcome, ""), words) if part)


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The table of the run; nothing where none was read."""
    run = facts.run.value
    if run is None:
        return ()
    rows = tuple(row for row in (_row(run, row) for row in shown_rows(run)) if row)
    steps = steps_words(run.first_step, run.last_step)
    notes = [f"start and end: median of {SHARE:.0%} of the steps" if run.num_steps >= 2 / SHARE else "", _ending(run),
             *run.notes]  # fmt: skip
    return (
        Exhibit(
            title=f"The run: {run.source or 'a record'}",
            columns=("", "start", "end", steps),
            rows=rows,
            notes=tuple(note for note in notes if note),
        ),
    )


def progress(run: RunFacts) -> str:
    """`step 90 of 200`; without a plan `up to step 90`."""
    if not run.num_steps:
        return "no step yet"
    return f"step {run.last_step} of {run.total_steps}" if run.total_steps else f"up to step {run.last_step}"


def curve_of(run: RunFacts, row: Row) -> Curve | None:
    """The curve of a row; None where the run has none of its names."""
    return next((run.curves[name] for name in row.names if name in run.curves and run.curves[name].values), None)


def name_of(run: RunFacts, row: Row) -> str:
    """Under which of its names the run has the row; "" for none."""
    return next((name for name in row.names if name in run.curves and run.curves[name].values), "")


def ends_of(curve: Curve) -> tuple[float, float] | None:
    """Start and end of a curve, outliers left out; a single value is both."""
    if len(curve.values) == 1:
        return curve.values[0], curve.values[0]
    return first_last(curve, SHARE)


def shown_rows(run: RunFacts) -> tuple[Row, ...]:
    """Those of `ROWS` that the run has, validation after the reward."""
    validations = [name for name in sorted(run.curves) if name.startswith(("val-core/", "val/reward/mean"))]
    core = [name for name in validations if name.startswith("val-core/")] or validations
    extra = tuple(Row(_validation_label(name), (name,)) for name in core[:_MAX_VALIDATIONS])
    rows = (ROWS[0], *extra, *ROWS[1:])
    return tuple(row for row in rows if curve_of(run, row) is not None)


def _validation_label(name: str) -> str:
    source = "/".join(name.split("/")[1:-2])
    return f"val {source}"[:20] if name.startswith("val-core/") and source else "validation"


def _row(run: RunFacts, row: Row) -> tuple[str, ...]:
    curve = curve_of(run, row)
    ends = ends_of(curve) if curve is not None else None
    if curve is None or ends is None:
        return ()
    return row.label, number(ends[0]), number(ends[1]), chart(curve, CHART_WIDTH)


def number(value: float) -> str:
    """A value in at most nine characters."""
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:.4g}"


def _ending(run: RunFacts) -> str:
    """What the run said when it failed, and since when it is silent."""
    if run.error:
        return f"it ended with: {run.error}"
    idle = run.idle_s.value
    if run.outcome in ("running", "dead") and idle is not None:
        return f"the metrics were written last {idle:.0f} s ago"
    return ""
