"""`rlcheck drift`: the engine's log-probabilities of its samples against the training stack's, measured or read."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from rlcheck import __version__
from rlcheck.cli.active import ReportRequest, Waiting, judged, recorded, write_record
from rlcheck.cli.app import UserError
from rlcheck.cli.config import ConfigRequest
from rlcheck.cli.config import read as read_config
from rlcheck.cli.env import interpreter, show
from rlcheck.cli.plotting import require_plottable
from rlcheck.cli.run import document, read
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import DriftFacts
from rlcheck.facts.run import RunFacts

FAMILIES = ("DRF",)
_METRICS = (".jsonl", ".ndjson", "trainer_state.json")


@dataclass(frozen=True)
class DriftRequest:
    """The options of one call, as in `rlcheck drift --help`."""

    report: ReportRequest
    target: str = ""
    overrides: tuple[str, ...] = ()
    framework: str = "auto"
    num_prompts: int = 0
    random_weights: bool = False
    try_all: bool = False
    operations: bool = False
    batch_invariant: bool = False
    start_timeout_s: float = 900.0
    budget_s: float = 600.0
    plot: Path | None = None


def run_drift(request: DriftRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, a config or a run that cannot be read.
    """
    started = time.perf_counter()
    if request.plot is not None:
        require_plottable(request.plot)
    if request.report.facts is not None:
        nodes = _recorded(request)
    elif is_run(request.target):
        nodes = (_passive(request),)
    else:
        nodes = (_document(_measured(request)),)
    report = judged(request.report, nodes, FAMILIES, "drift", started, alone=True)
    runs = [facts.training.value for facts in nodes if facts.training.value is not None and facts.drift.value is None]
    if len(runs) == len(nodes):
        from rlcheck.report.drift_exhibits import trend_table

        report = msgspec.structs.replace(report, exhibits=tuple(map(trend_table, runs)))
    show(report, request.report.format, request.report.output, request.report.verbose, request.report.ascii_only)
    if request.report.record is not None:
        write_record(request.report.record, nodes)
    if request.plot is not None:
        sys.stdout.flush()
        from rlcheck.report.drift_plots import write_plot

        write_plot(nodes[0], request.plot)
    return report.exit_code


def is_run(target: str) -> bool:
    """Whether `target` is a run that is read, not a config that is started: a directory, or a file of metrics."""
    name = os.path.basename(target)
    return os.path.isdir(target) or name.endswith(_METRICS) or "tfevents" in name


def _recorded(request: DriftRequest) -> tuple[Facts, ...]:
    if request.target:
        raise UserError("--facts judges a record; leave CONFIG or RUN_DIR out")
    assert request.report.facts is not None
    nodes = tuple(
        facts
        for facts in recorded(request.report.facts)
        if facts.drift.value is not None or facts.training.value is not None
    )
    if not nodes:
        raise UserError(
            f"--facts {request.report.facts}: no measurement and no run in it; "
            "`rlcheck drift CONFIG --record` writes one"
        )
    return nodes


def _passive(request: DriftRequest) -> Facts:
    given = {"--all": request.try_all, "--operations": request.operations, "--num-prompts": request.num_prompts,
             "--batch-invariant": request.batch_invariant, "--random-weights": request.random_weights}  # fmt: skip
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None or request.overrides:
        raise UserError(
            f"{wrong or request.overrides[0]}: needs a CONFIG, whose engine and training side are started; "
            f"{request.target} is a run that is only read"
        )
    return document(read(request.target))


def _document(drift: DriftFacts) -> Facts:
    return Facts(
        rlcheck_version=__version__,
        node=socket.gethostname(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        drift=known(drift),
    )


def _device(run: RunFacts) -> str:
    """Where the run will be here: a config that leaves it open goes to a CPU where there is no driver of a GPU."""
    has_gpu = any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd"))
    return run.spec.device if has_gpu else "cpu"


def _measured(request: DriftRequest) -> DriftFacts:
    from rlcheck.checks.drf.bands import noise
    from rlcheck.drift.engine import STAGE_S, DriftOptions, examine_drift

    if not request.target:
        raise UserError("give a CONFIG to measure, a RUN_DIR to read, or --facts RECORD")
    run = read_config(ConfigRequest(request.report, request.target, request.overrides, request.framework))
    dtypes = ("float32", "float16", "bfloat16")
    options = DriftOptions(
        num_prompts=request.num_prompts,
        random_weights=request.random_weights,
        try_all=request.try_all,
        operations=request.operations,
        batch_invariant=request.batch_invariant,
        budget_s=request.budget_s,
        noise=tuple((dtype, noise(dtype, dtype, _device(run))) for dtype in dtypes),
    )
    limit_s = request.report.timeout_s
    # As Ctrl-C does: what was started here and written to the temporary directory must go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="rlcheck-drift-") as directory, Waiting() as waiting:
        return examine_drift(
            run,
            request.target,
            request.overrides,
            directory,
            options,
            python=interpreter(request.report.python),
            start_s=min(request.start_timeout_s, limit_s or request.start_timeout_s),
            stage_s=min(STAGE_S, limit_s or STAGE_S),
            on_stage=lambda stage: waiting.on(stage),
        )
