"""`rlcheck slow`: where the time of a step goes, against a floor, and what to change first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.requests.records import SlowRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.hygiene import made_safe
from rlcheck.facts.slow import SlowFacts
from rlcheck.measure.slow.answer import answer


def run(request: SlowRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that do not go together, or nothing in what was given says how long a step took.
    """
    examination = begin(request.report, "slow", alone=True)
    if request.report.facts is not None:
        if request.targets or request.config or request.gpu or request.model_shape:
            raise UserError("--facts judges a record; leave RUN, --config, --gpu and --model-shape out")
        lacking = "no look at a step's time in it; `rlcheck slow RUN --record` writes one"
        nodes = recorded_with(request.report.facts, ("slow",), lacking)
    else:
        looked = made_safe("slow", known(_looked(request)))
        if looked.missing is not None:
            why = looked.missing.reason
            raise UserError(f"{request.targets[0]}: {why}; give a run's folder, its metrics, a trace, or a scrape")
        nodes = (document(slow=looked),)
    report = examination.judge(nodes)
    found = next(facts.slow.value for facts in nodes if facts.slow.value is not None)
    data: dict[str, Any] = {**report.data, "slow": msgspec.to_builtins(answer(found))}
    return examination.end(msgspec.structs.replace(report, data=data), nodes)


def _looked(request: SlowRequest) -> SlowFacts:
    from rlcheck.measure.slow.look import look

    if not request.targets:
        raise UserError("give RUN: a run's folder, its metrics, a trace, a text of /metrics; or --facts RECORD")
    with Waiting() as waiting:
        return look([Path(one) for one in request.targets], config=request.config, gpu=request.gpu,
                    model_shape=request.model_shape, on=lambda what: waiting.on(what))  # fmt: skip
