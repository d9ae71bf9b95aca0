"""`rlcheck drift`: the engine's log-probabilities of its samples against the training stack's, measured or read."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.plotting import require_plottable
from rlcheck.cli.requests.configs import DriftRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import DriftFacts

_METRICS = (".jsonl", ".ndjson", "trainer_state.json")


def run(request: DriftRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, a config or a run that cannot be read.
    """
    if request.plot is not None:
        require_plottable(request.plot)
    examination = begin(request.report, "drift", alone=True)
    if request.report.facts is not None:
        nodes = _recorded(request)
    elif is_run(request.target):
        nodes = (_passive(request),)
    else:
        nodes = (document(drift=known(_measured(request))),)
    report = examination.judge(nodes)
    runs = [facts.run.value for facts in nodes if facts.run.value is not None and facts.drift.value is None]
    if len(runs) == len(nodes):
        from rlcheck.report.topics.drift import trend_table

        report = msgspec.structs.replace(report, exhibits=tuple(map(trend_table, runs)))
    code = examination.end(report, nodes)
    if request.plot is not None:
        sys.stdout.flush()
        from rlcheck.report.pages.drift_plots import write_plot

        write_plot(nodes[0], request.plot)
    return code


def is_run(target: str) -> bool:
    """Whether `target` is a run that is read, not a config that is started: a directory, or a file of metrics."""
    name = os.path.basename(target)
    return os.path.isdir(target) or name.endswith(_METRICS) or "tfevents" in name


def _recorded(request: DriftRequest) -> tuple[Facts, ...]:
    if request.target:
        raise UserError("--facts judges a record; leave CONFIG or RUN_DIR out")
    assert request.report.facts is not None
    lacking = "no measurement and no run in it; `rlcheck drift CONFIG --record` writes one"
    return recorded_with(request.report.facts, ("drift", "run"), lacking)


def _passive(request: DriftRequest) -> Facts:
    given = {"--all": request.try_all, "--operations": request.operations, "--num-prompts": request.num_prompts,
             "--batch-invariant": request.batch_invariant, "--random-weights": request.random_weights}  # fmt: skip
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None or request.overrides:
        raise UserError(
            f"{wrong or request.overrides[0]}: needs a CONFIG, whose engine and training side are started; "
            f"{request.target} is a run that is only read"
        )
    from rlcheck.measure.run.read import read_training

    return document(run=known(read_training(Path(request.target))))


def _device(config: ConfigFacts) -> str:
    """Where the run will be here: a config that leaves it open goes to a CPU where there is no driver of a GPU."""
    has_gpu = any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd"))
    return config.spec.device if has_gpu else "cpu"


def _measured(request: DriftRequest) -> DriftFacts:
    from rlcheck.measure.config.whole import read_whole
    from rlcheck.measure.drift.bands import noise
    from rlcheck.measure.drift.bridge import STAGE_S, DriftOptions, examine_drift

    if not request.target:
        raise UserError("give a CONFIG to measure, a RUN_DIR to read, or --facts RECORD")
    config = read_whole(request.target, request.overrides, framework=request.framework)
    dtypes = ("float32", "float16", "bfloat16")
    options = DriftOptions(
        num_prompts=request.num_prompts,
        random_weights=request.random_weights,
        try_all=request.try_all,
        operations=request.operations,
        batch_invariant=request.batch_invariant,
        budget_s=request.budget_s,
        noise=tuple((dtype, noise(dtype, dtype, _device(config))) for dtype in dtypes),
    )
    limit_s = request.report.timeout_s
    # As Ctrl-C does: what was started here and written to the temporary directory must go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="rlcheck-drift-") as directory, Waiting() as waiting:
        return examine_drift(
            config,
            request.target,
            request.overrides,
            directory,
            options,
            python=interpreter(request.report.python),
            start_s=min(request.start_timeout_s, limit_s or request.start_timeout_s),
            stage_s=min(STAGE_S, limit_s or STAGE_S),
            on_stage=lambda stage: waiting.on(stage),
        )
