"""A user's reward function, called in processes of its own by the trainer's plug-in `reward`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.reward import RewardFacts
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe
from rlcheck.measure.rollout.bridge import failure_of

LIMIT_S = 10.0
"""One call: thirty times what a slow rule takes, a third of what rltrain grants (`reward_model.timeout_s`)."""
STAGE_S, TOTAL_S = 900.0, 3600.0


def examine_reward(
    path: Path,
    data: str,
    *,
    name: str = "",
    arguments: Mapping[str, Any] | None = None,
    prompt_key: str = "prompt",
    form: str = "",
    limit_s: float = LIMIT_S,
    python: Sequence[str] = (),
    on_stage: Callable[[str], None] = lambda _: None,
) -> RewardFacts:
    """Call the reward function in the file PATH on answers made from DATA.

    Args:
        path: a Python file, whose code runs.
        data: a file with rows, or a directory of datasets.save_to_disk.
        name: of the function; "" for the one that is meant.
        arguments: more that it is called with.
        prompt_key: column of the prompt.
        form: how an answer is written, `{}` standing for it; "": the usual forms are tried.
        limit_s: longest time of one call.
        python: the interpreter that has the trainer; empty for the doctor's own.
        on_stage: told what is done, before it is.
    """
    request = {
        "path": str(path.resolve()),
        "name": name,
        "arguments": dict(arguments or {}),
        "data": data,
        "prompt_key": prompt_key,
        "form": form,
        "limit_s": limit_s,
    }
    try:
        found = run_probe(
            python,
            "reward",
            request,
            stage_timeout_s=max(STAGE_S, 8 * limit_s),
            total_timeout_s=max(TOTAL_S, 32 * limit_s),
            on_stage=lambda stage, done, total: on_stage(stage),
        )
        return decoded(found, RewardFacts, "not measured")
    except ProbeFailed as error:
        failure = failure_of(error)
        facts = error.facts(RewardFacts, f"not reached: {failure.line}")
        return msgspec.structs.replace(facts, path=str(path), data=data, failure=failure)
