"""The essence of a run's config: the headline, and one small table with its models, its machines and its arithmetic."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.facts.run import RoleSpec, RunFacts
from rlcheck.report.model import Exhibit


def headline(facts: Facts) -> str:
    """The framework, the algorithm, the model and the GPUs, in a few words."""
    run = facts.run.value
    if run is None:
        return ""
    spec = run.spec
    gpus = f"{spec.nodes} × {spec.gpus_per_node} GPUs" if spec.nodes > 1 else counted(spec.gpus_per_node, "GPU")
    parts = (" ".join(filter(None, (run.framework, run.version))), spec.algorithm.adv_estimator, model_name(spec.actor),
             gpus if spec.device == "cuda" else spec.device, run.source)  # fmt: skip
    return ", ".join(part for part in parts if part)


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The table, where a config was read."""
    run = facts.run.value
    if run is None or facts.memory.value is not None:  # a prediction of memory has tables of its own
        return ()
    # Only here: every command imports this module, and few read a config.
    from rlcheck.report.config_table import rows_of

    found = Exhibit(title=f"What {run.source or 'the config'} asks for", columns=("", ""), rows=rows_of(run),
                    notes=_notes(run))  # fmt: skip
    return (found,)


def _notes(run: RunFacts) -> tuple[str, ...]:
    return (*run.notes, *(f"assumed: {text}" for text in run.fallbacks))


def model_name(role: RoleSpec) -> str:
    """The model's name: the last part of a path, the whole of a name on the hub."""
    path = role.model.path or ""
    return path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", "~", ".")) else path


def counted(number: int, word: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {word}{'' if number == 1 else 's'}"
