"""The rollout engine: whether the framework has one of that name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rlcheck.check import Verdict, check
from rlcheck.checks.config.say import Case, conclude, config_of
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_other, is_verl, who
from rlcheck.measure.config.engines import names

_LOADED_BY = ("external_lib", "VERL_USE_EXTERNAL_MODULES")
"""What makes verl import code that may register engines of its own."""


def _loads_code(facts: Facts, run: ConfigFacts) -> bool:
    given = any(value and key.rpartition(".")[2] in _LOADED_BY for key, value in run.values.items())
    return given or bool((facts.environ.value or {}).get(_LOADED_BY[1]))


def engine_cases(facts: Facts, run: ConfigFacts) -> Iterator[Case]:
    """Names that are no engine of the framework. rltrain's own choices are CFG005's."""
    if run.framework == "rltrain" or is_other(run):
        return
    known = names(run.framework)
    model = run.spec.reward_model
    chosen = {"rollout.name": run.spec.rollout.name}
    if model is not None and model.engine is not None:
        chosen["reward_model.engine.name"] = model.engine.name
    for field, name in chosen.items():
        # No name is CFG006's; one that only the shell knows may be any.
        if not name or name in known or "$" in name:
            continue
        near = difflib.get_close_matches(name, known, 1)
        sure = is_verl(run) and not _loads_code(facts, run)
        yield Case("fail" if sure else "warn", field,
                   f"a rollout engine that {who(run) if is_verl(run) else 'rlcheck'} knows: {', '.join(known)}",
                   name, near[0] if near else None)  # fmt: skip


@check("CFG070", "The rollout engine is one that the framework has", needs=("config",), playbook="engine-unknown",
       problem="The framework does not have the rollout engine")  # fmt: skip
def known_engine(facts: Facts) -> Verdict:
    """Looks the names of rollout engines up among those of the framework.

    What it does:
        Compares rollout.name, and that of a reward model's engine, with verl's registry, and names the nearest one.
        Warns only where the run loads code that may register an engine of its own (external_lib,
        VERL_USE_EXTERNAL_MODULES).

    Why it matters:
        verl looks the name up when the rollout is built, after Ray and the models have started: "Rollout vlllm with
        mode async not found". No rule and no memory of an engine can be checked until its name is known.
    """
    run = config_of(facts)
    return conclude(run, list(engine_cases(facts, run)), run.spec.rollout.name or "no engine is named")
