"""`rlcheck reward`: a reward function of one's own, called on answers that are known to be right, wrong or odd."""

from __future__ import annotations

import json
import signal
from typing import Any

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.requests.records import RewardRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.reward import RewardFacts


def run(request: RewardRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a file that is not there.
    """
    examination = begin(request.report, "reward", alone=True)
    if request.report.facts is not None:
        nodes = _recorded(request)
    else:
        nodes = (document(reward=known(_examined(request))),)
    return examination.conclude(nodes)


def _recorded(request: RewardRequest) -> tuple[Facts, ...]:
    if request.file is not None or request.data or request.words:
        raise UserError("--facts judges a record; leave FILE, --data and arguments out")
    assert request.report.facts is not None
    lacking = "no reward function in it; `rlcheck reward FILE --data DATA --record` writes one"
    return recorded_with(request.report.facts, ("reward",), lacking)


def _examined(request: RewardRequest) -> RewardFacts:
    from rlcheck.measure.reward import LIMIT_S, examine_reward

    if request.file is None:
        raise UserError("give a FILE with a reward function, or --facts RECORD; its code is run")
    if not request.file.is_file():
        raise UserError(f"{request.file}: there is no such file; name the Python file of the reward function")
    if not request.data:
        raise UserError("give --data: a file with rows, from whose ground truths answers are made")
    if request.form and "{}" not in request.form:
        raise UserError(f"--form {request.form}: {{}} must stand where the answer goes, as in '<answer>{{}}</answer>'")
    # As Ctrl-C does: the processes that call the function must end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Waiting() as waiting:
        return examine_reward(
            request.file,
            request.data,
            name=request.name,
            arguments=dict(map(_argument, request.words)),
            prompt_key=request.prompt_key or "prompt",
            form=request.form.replace("\\n", "\n"),
            limit_s=request.report.timeout_s or LIMIT_S,
            python=interpreter(request.report.python),
            on_stage=lambda stage: waiting.on(f"the reward function: {stage}"),
        )


def _argument(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"{word}: an argument of the function is NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
