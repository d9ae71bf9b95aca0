"""The essence of a run's config: the headline, and one small table with its models, its machines and its arithmetic."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.finding import Exhibit
from rlcheck.report.topics.config_table import framework_name, model_name, rows_of
from rlcheck.text import counted


def headline(facts: Facts) -> str:
    """The framework, the algorithm, the model and the GPUs, in a few words."""
    run = facts.config.value
    if run is None:
        return ""
    spec = run.spec
    lacking = run.without
    gpus = f"{spec.nodes} × {spec.gpus_per_node} GPUs" if spec.nodes > 1 else counted(spec.gpus_per_node, "GPU")
    gpus = gpus if spec.device == "cuda" else spec.device
    parts = (
        framework_name(run), run.unsure_keys,
        "" if "algorithm.adv_estimator" in lacking else spec.algorithm.adv_estimator,
        "" if "actor.model.path" in lacking else model_name(spec.actor),
        "" if lacking.keys() & {"nodes", "gpus_per_node"} else gpus, run.source,
    )  # fmt: skip
    return ", ".join(part for part in parts if part)


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The table, where a config was read."""
    run = facts.config.value
    if run is None or facts.memory.value is not None:  # a prediction of memory has tables of its own
        return ()
    found = Exhibit(title=f"What {run.source or 'the config'} asks for", columns=("", ""), rows=rows_of(run),
                    notes=_notes(run))  # fmt: skip
    return (found,)


def _notes(run: ConfigFacts) -> tuple[str, ...]:
    table = run.table
    days = "" if table.age_days is None else f", {counted(table.age_days, 'day')} old"
    keys = (f"keys of {framework_name(run)}: {table.source}, {table.date}{days}",) if table.source else ()
    return (*run.notes, *keys, *(f"assumed: {text}" for text in run.fallbacks))


def config_data(run: ConfigFacts) -> dict[str, Any]:
    """What programs read of a config: the framework, and how many of its keys were read."""
    unknown = [problem.key for problem in run.problems if problem.kind in ("unknown", "moved", "unread")]
    read = [key for key in run.given if key not in unknown]
    keys: dict[str, Any] = {"read": len(read), "unknown": unknown}
    if run.table.source:
        keys["table"] = msgspec.to_builtins(run.table)
    return {"framework": {"name": run.framework, "version": run.version}, "keys": keys}
