"""How metrics read in a terminal: columns, units, one-line summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Column:
    """One column of the table: a metric in a fixed width."""

    title: str
    metric: str
    width: int
    form: str

    def cell(self, step: int, metrics: Mapping[str, float]) -> str:
        """The metric's text; `-` where this step has none."""
        if not self.metric:
            return str(step)
        value = metrics.get(self.metric)
        return "-" if value is None else number(value, self.form)


COLUMNS = (
    Column("step", "", 5, "d"),
    Column("reward", "critic/score/mean", 6, ".3f"),
    Column("val", "val/reward/mean", 5, ".3f"),
    Column("KL", "actor/ppo_kl", 7, ".1e"),
    Column("entropy", "actor/entropy", 7, ".3f"),
    Column("pg", "actor/pg_loss", 7, ".3f"),
    Column("vf", "critic/vf_loss", 6, ".3f"),
    Column("ev", "critic/vf_explained_var", 5, ".2f"),
    Column("gnorm", "actor/grad_norm", 6, ".2f"),
    Column("len", "response_length/mean", 6, ".1f"),
    Column("s/step", "timing_s/step", 6, ".2f"),
)

STAGES = ("gen", "update_weights", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")


def number(value: float, form: str) -> str:
    """VALUE in FORM, also when it is not finite."""
    return format(value, form) if math.isfinite(value) else str(value)


def sparkline(values: Iterable[float]) -> str:
    """A small picture of VALUES, from their least to their greatest."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span else 0] for value in finite)


def footer(metrics: Mapping[str, float]) -> list[str]:
    """Two lines under the table: drift, communication, speed and memory; and where the step's time went."""
    facts = [
        _fact(metrics, "training/rollout_probs_diff_mean", "rollout_probs_diff {:.1e}"),
        _fact(metrics, "timing_s/grad_comm", "grad comm {:.3f} s"),
        _fact(metrics, "perf/throughput", "{:,.0f} tokens/s"),
        _fact(metrics, "perf/max_memory_allocated_gb", "GPU {:.1f} GiB"),
        _fact(metrics, "perf/cpu_memory_used_gb", "host {:.1f} GiB"),
    ]
    stages = [
        f"{name} {metrics[key]:.2f}"
        for name in STAGES
        if (key := f"timing_s/{name}") in metrics and metrics[key] >= 0.005
    ]
    return [" · ".join(fact for fact in facts if fact), " · ".join(stages)]


def _fact(metrics: Mapping[str, float], name: str, form: str) -> str:
    return form.format(metrics[name]) if name in metrics else ""


def plain_line(step: int, total: int, metrics: Mapping[str, float]) -> str:
    """One step as one line of words and numbers."""
    parts = [f"step {step}/{total}"]
    for column in COLUMNS[1:]:
        if column.metric in metrics:
            parts.append(f"{column.title} {number(metrics[column.metric], column.form)}")
    if drift := _fact(metrics, "training/rollout_probs_diff_mean", "probs diff {:.1e}"):
        parts.append(drift)
    if speed := _fact(metrics, "perf/throughput", "{:,.0f} tokens/s"):
        parts.append(speed)
    return "  ".join(parts)
