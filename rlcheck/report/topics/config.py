"""The essence of a run's config: the headline, and one small table with its models, its machines and its arithmetic."""

from __future__ import annotations

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.finding import Exhibit
from rlcheck.report.topics.config_table import model_name, rows_of
from rlcheck.text import counted


def headline(facts: Facts) -> str:
    """The framework, the algorithm, the model and the GPUs, in a few words."""
    run = facts.config.value
    if run is None:
        return ""
    spec = run.spec
    gpus = f"{spec.nodes} × {spec.gpus_per_node} GPUs" if spec.nodes > 1 else counted(spec.gpus_per_node, "GPU")
    name = " ".join(filter(None, (run.framework, run.version)))
    parts = (name, run.unsure_keys, spec.algorithm.adv_estimator, model_name(spec.actor),
             gpus if spec.device == "cuda" else spec.device, run.source)  # fmt: skip
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
    return (*run.notes, *(f"assumed: {text}" for text in run.fallbacks))
