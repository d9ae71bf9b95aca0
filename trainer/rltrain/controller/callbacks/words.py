"""How metrics read in a terminal of 80 columns: columns, units, one-line summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlcheck.text import sparkline

WIDTH = 80


@dataclass(frozen=True)
class Column:
    """One column of the table: a metric in a fixed width. A line break in the title makes a second line of heading."""

    title: str
    metric: str
    width: int
    form: str

    def cell(self, step: int, metrics: Mapping[str, float]) -> str:
        """The metric's text, no wider than the column; `-` where this step has none."""
        value = metrics.get(self.metric) if self.metric else step
        return "-" if value is None else fitted(value, self.form, self.width)


COLUMNS = (
    Column("step", "", 5, "d"),
    Column("reward", "critic/score/mean", 6, ".3f"),
    Column("val", "val/reward/mean", 5, ".3f"),
    Column("KL", "actor/ppo_kl", 8, ".1e"),
    Column("en-\ntropy", "actor/entropy", 5, ".2f"),
    Column("policy\nloss", "actor/pg_loss", 6, ".3f"),
    Column("critic\nloss", "critic/vf_loss", 6, ".3f"),
    Column("expl.\nvar", "critic/vf_explained_var", 5, ".2f"),
    Column("grad\nnorm", "actor/grad_norm", 5, ".2f"),
    Column("probs\ndiff", "training/rollout_probs_diff_mean", 7, ".1e"),
    Column("len", "response_length/mean", 5, ".1f"),
    Column("sec/\nstep", "timing_s/step", 6, ".2f"),
)
"""With a blank after each but the last: 80 columns."""

SFT_COLUMNS = (
    Column("step", "", 6, "d"),
    Column("loss", "train/loss", 8, ".4f"),
    Column("val\nloss", "val/loss", 8, ".4f"),
    Column("grad\nnorm", "train/grad_norm", 7, ".3f"),
    Column("lr", "train/lr", 8, ".1e"),
    Column("tokens", "train/global_tokens", 8, ".0f"),
    Column("learnt", "train/loss_tokens", 8, ".0f"),
    Column("epoch", "train/epoch", 6, ".2f"),
    Column("sec/\nstep", "timing_s/step", 6, ".2f"),
)


@dataclass(frozen=True)
class View:
    """What of a training is shown: the columns of the table; a line's facts; the curve; what a validation adds."""

    columns: tuple[Column, ...]
    facts: tuple[tuple[str, str], ...]
    """Metric, and its form in a plain line."""
    curve: str
    curve_name: str
    validation: str


RUN_VIEW = View(
    columns=COLUMNS,
    facts=(
        ("critic/score/mean", "reward {:.3f}"),
        ("val/reward/mean", "val {:.3f}"),
        ("actor/ppo_kl", "KL {:.1e}"),
        ("response_length/mean", "len {:.1f}"),
        ("timing_s/step", "{:.2f} s/step"),
    ),
    curve="critic/score/mean",
    curve_name="reward",
    validation="val/reward/mean",
)
SFT_VIEW = View(
    columns=SFT_COLUMNS,
    facts=(
        ("train/loss", "loss {:.4f}"),
        ("val/loss", "val {:.4f}"),
        ("train/grad_norm", "grad {:.2f}"),
        ("train/lr", "lr {:.1e}"),
        ("timing_s/step", "{:.2f} s/step"),
    ),
    curve="train/loss",
    curve_name="loss",
    validation="val/loss",
)

STAGES = {
    "gen": ("generate", "generating"),
    "update_weights": ("sync", "bringing weights to the engine"),
    "reshard": ("sleep", "putting the engine to sleep"),
    "reward": ("reward", "scoring"),
    "old_log_prob": ("log-probs", "reading log-probabilities"),
    "ref": ("reference", "reading the reference's log-probabilities"),
    "values": ("values", "reading values"),
    "adv": ("advantages", "weighing advantages"),
    "update_critic": ("critic", "updating the critic"),
    "update_actor": ("actor", "updating the actor"),
    "update": ("update", "learning"),
    "testing": ("validation", "validating"),
    "audit": ("audit", "auditing"),
    "save_checkpoint": ("checkpoint", "saving the checkpoint"),
}
"""Stage of the clock: its name in the list of times, and in words."""


def doing(stage: str) -> str:
    """STAGE in words."""
    return STAGES[stage][1] if stage in STAGES else stage


def fitted(value: float, form: str, width: int) -> str:
    """VALUE in FORM, or with fewer digits where that is wider than WIDTH."""
    if not math.isfinite(value):
        return str(value)
    shorter = (".0e",) if form.endswith("e") else (".1f", ".0f", ".1e", ".0e")
    texts = (format(value, each) for each in (form, *shorter))
    return next((text for text in texts if len(text) <= width), "#" * width)


def trend(values: Iterable[float]) -> str:
    """A small picture of VALUES, from their least to their greatest."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return sparkline((value - low) / ((high - low) or 1) for value in finite)


def bar(share: float, width: int) -> str:
    """A bar of WIDTH signs, SHARE of it filled."""
    filled = round(width * min(max(share, 0.0), 1.0))
    return "━" * filled + "╌" * (width - filled)


def duration(seconds: float) -> str:
    """SECONDS in words.

    >>> duration(4000)
    '67 min'
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def footer(metrics: Mapping[str, float]) -> list[str]:
    """What stands under the table of the last step: speed, memory, where the time went, how far the policy went."""
    speed = [
        _fact(metrics, "perf/throughput", "{:,.0f} tokens/s"),
        _fact(metrics, "timing_s/grad_comm", "gradient communication {:.2f} s"),
        _fact(metrics, "perf/device_memory_used_gb", "GPU {:.1f} GiB"),
        _fact(metrics, "perf/max_memory_allocated_gb", "of it torch {:.1f}"),
        _fact(metrics, "perf/cpu_memory_used_gb", "host {:.1f} GiB"),
    ]
    times = [
        f"{name} {metrics[key]:.2f}"
        for stage, (name, _) in STAGES.items()
        if (key := f"timing_s/{stage}") in metrics and metrics[key] >= 0.005
    ]
    drift = [
        _fact(metrics, "actor/kl_loss", "{:.1e} in the loss"),
        _fact(metrics, "actor/reward_kl_penalty", "{:.1e} in the reward"),
    ]
    idle = [
        _fact(metrics, "perf/training_idle", "ranks idle {:.0%}"),
        _fact(metrics, "perf/rollout_idle", "engines idle {:.0%}"),
        _fact(metrics, "training/policy_staleness/mean", "{:.1f} updates behind")
        if "perf/rollout_idle" in metrics
        else "",
        _fact(metrics, "rollout/buffer_finished", "{:.0f} groups wait"),
        _fact(metrics, "rollout/interrupted_answers", "{:.0%} of answers interrupted"),
    ]
    parts = {"": speed, "seconds: ": times, "asynchrony: ": idle, "KL to the reference: ": drift}
    return [line for title, facts in parts.items() for line in _joined(title, [fact for fact in facts if fact])]


def _fact(metrics: Mapping[str, float], name: str, form: str) -> str:
    return form.format(metrics[name]) if name in metrics else ""


def _joined(title: str, parts: Sequence[str]) -> list[str]:
    """PARTS with dots between them, after TITLE, broken into lines that fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= WIDTH:
            lines[-1] += f" · {part}"
        else:
            lines.append((" " * len(title) if lines else title) + part)
    return lines


def plain_line(step: int, total: int, metrics: Mapping[str, float], view: View = RUN_VIEW) -> str:
    """One step as one line of words and numbers."""
    facts = [_fact(metrics, name, form) for name, form in view.facts]
    return "  ".join([f"step {step}/{total}", *(fact for fact in facts if fact)])
