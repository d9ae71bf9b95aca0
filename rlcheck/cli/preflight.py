"""`rlcheck preflight`: the whole chain of trust before a run, in the order in which links break."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from rlcheck import doctor as clinic
from rlcheck.cli.active import ReportRequest, Waiting, write_record
from rlcheck.cli.app import UserError
from rlcheck.cli.env import make_context, show, without_the_asked_for
from rlcheck.config import ConfigError, load_settings
from rlcheck.facts.run import RunFacts
from rlcheck.memory.asked import gpu_named
from rlcheck.memory.gpus import GpuError, parse_memory
from rlcheck.memory.predict import Gpu
from rlcheck.preflight.chain import Step, run_chain
from rlcheck.preflight.links import SLOW
from rlcheck.preflight.looks import SAMPLE_ROWS, looks
from rlcheck.preflight.state import Request
from rlcheck.runs.errors import ReadError
from rlcheck.runs.whole import read_whole


@dataclass(frozen=True)
class PreflightRequest:
    """The options of one call, as in `rlcheck preflight --help`."""

    report: ReportRequest
    config: str = ""
    overrides: tuple[str, ...] = ()
    smoke: bool = False
    quick: bool = False
    skip: tuple[str, ...] = ()
    head_ip: str = ""
    port: int | None = None
    gpu: str = ""
    gpu_mem: str = ""
    host_mem: str = ""
    model_shape: str = ""
    framework: str = "auto"
    start_timeout_s: float = 600.0


def run_preflight(request: PreflightRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a config that cannot be read at all.
    """
    # As Ctrl-C does: what was started must end, and temporary directories must go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = request.report
    gpu, host_bytes = _gpu(request)
    run = _read(request, here=gpu is None)
    doctor = clinic.summon()
    try:
        chain = Request(
            run=run,
            source=request.config,
            overrides=request.overrides,
            context=make_context(asked.python, deep=False),
            settings=load_settings(Path(_working_directory())),
            ignore=asked.ignore,
            strict=asked.strict,
            left_out=left_out(request),
            timeout_s=asked.timeout_s,
            gpu=gpu,
            host_bytes=host_bytes,
            head_ip=request.head_ip,
            port=request.port,
            most_rows=max(SAMPLE_ROWS, 2 * run.spec.data.train_batch_size) if request.quick else 0,
            start_s=request.start_timeout_s,
        )
        with Waiting() as waiting:
            found = run_chain(chain, looks(doctor), doctor, waiting, _tell)
    except (ConfigError, clinic.SelectionError) as error:
        raise UserError(str(error)) from None
    report = without_the_asked_for(found.report, found.nodes[0], asked.python)
    show(report, asked.format, asked.output, asked.verbose, asked.ascii_only)
    if asked.record is not None:
        write_record(asked.record, found.nodes)
    return report.exit_code


def left_out(request: PreflightRequest) -> dict[str, str]:
    """Links that the options leave out, and which option it was."""
    found = dict.fromkeys(SLOW, "--quick") if request.quick else {}
    found |= {name: f"--skip {name}" for name in request.skip}
    if request.smoke and "smoke" not in request.skip:
        found.pop("smoke", None)
    elif not request.smoke:
        found["smoke"] = "--smoke makes one"
    return found


def _gpu(request: PreflightRequest) -> tuple[Gpu | None, int]:
    try:
        host_bytes = parse_memory(request.host_mem) if request.host_mem else 0
        return gpu_named(request.gpu, request.gpu_mem), host_bytes
    except GpuError as error:
        raise UserError(str(error)) from None


def _read(request: PreflightRequest, *, here: bool) -> RunFacts:
    """The config as this machine would run it; where a GPU is named, as a machine with such GPUs would."""
    if not request.config:
        raise UserError("give a CONFIG: a YAML, a recipe, a script, or - for standard input")
    try:
        return read_whole(
            request.config,
            request.overrides,
            framework=request.framework,
            model_shape=request.model_shape,
            here=here,
        )
    except ReadError as error:
        raise UserError(str(error)) from None


def _tell(step: Step) -> None:
    """A line for each link where nobody looks at a terminal: a log then says what took the time."""
    if not sys.stderr.isatty():
        time = f" ({step.seconds:.1f} s)" if step.seconds else ""
        sys.stderr.write(f"preflight: {step.title}: {step.line()}{time}\n")
        sys.stderr.flush()


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"
