"""`rlcheck memory-profile`: what a run needs, phase by phase, on a GPU that need not be here."""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from rlcheck import __version__
from rlcheck.cli.active import ReportRequest, judge_and_show, recorded
from rlcheck.cli.app import UserError
from rlcheck.cli.plotting import require_plottable
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MeasuredPhase, MemoryProfile
from rlcheck.facts.run import RunFacts
from rlcheck.memory.asked import AskedError, gpu_named, profile_of, ram_bytes, why_no_sizes
from rlcheck.memory.gpus import GpuError, local_gpu, parse_memory
from rlcheck.memory.predict import Gpu
from rlcheck.runs.errors import ReadError

FAMILIES = ("MEM",)
_STAGE_S = 600.0
_TOTAL_S = 3600.0
"""A measurement builds models with random weights and an engine: minutes, on a slow disk many of them."""


@dataclass(frozen=True)
class ProfileRequest:
    """The options of one call, as in `rlcheck memory-profile --help`."""

    report: ReportRequest
    config: str = ""
    overrides: tuple[str, ...] = ()
    gpu: str = ""
    gpu_mem: str = ""
    host_mem: str = ""
    nodes: int = 0
    gpus_per_node: int = 0
    model_shape: str = ""
    framework: str = "auto"
    plot: Path | None = None
    measure: bool = False


def run_memory_profile(request: ProfileRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a config that cannot be read.
    """
    started = time.perf_counter()
    if request.plot is not None:
        require_plottable(request.plot)
    if request.report.facts is not None:
        nodes = _recorded(request)
    else:
        nodes = (_examined(request),)
    code = judge_and_show(request.report, nodes, FAMILIES, "memory-profile", started, alone=True)
    if request.plot is not None:
        sys.stdout.flush()
        from rlcheck.report.memory_plots import write_plot

        write_plot(nodes[0], request.plot)
    return code


def _recorded(request: ProfileRequest) -> tuple[Facts, ...]:
    if request.config or request.measure:
        raise UserError("--facts judges a record; leave CONFIG and --measure out")
    assert request.report.facts is not None
    nodes = tuple(facts for facts in recorded(request.report.facts) if facts.memory.value is not None)
    if not nodes:
        raise UserError(
            f"--facts {request.report.facts}: no prediction in it; `rlcheck memory-profile CONFIG --record` writes one"
        )
    return nodes


def _examined(request: ProfileRequest) -> Facts:
    if not request.config:
        raise UserError("give a CONFIG: a YAML, a recipe, a script, - for standard input, or --facts RECORD")
    if request.measure and (request.gpu or request.gpu_mem):
        raise UserError("--measure runs on this machine's GPU; leave --gpu and --gpu-mem out")
    run = read(request)
    gpu, host_bytes = _machine(request, run)
    try:
        memory = profile_of(run, gpu, host_bytes)
    except AskedError as error:
        raise UserError(str(error)) from None
    if request.measure:
        memory = _measured(request, run, memory)
    return Facts(
        rlcheck_version=__version__,
        node=socket.gethostname(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        run=known(run),
        memory=known(memory),
    )


def read(request: ProfileRequest) -> RunFacts:
    """The config, on the machines that `--nodes` and `--gpus-per-node` name.

    Raises:
        UserError: it cannot be read, or the sizes of its model are not known.
    """
    from rlcheck.runs.read import read_run

    try:
        run = read_run(request.config, request.overrides, framework=request.framework, model_shape=request.model_shape)
    except ReadError as error:
        raise UserError(str(error)) from None
    if why := why_no_sizes(run):
        raise UserError(why)
    wanted = {"nodes": request.nodes, "gpus_per_node": request.gpus_per_node}
    given = {field: value for field, value in wanted.items() if value}
    return msgspec.structs.replace(run, spec=msgspec.structs.replace(run.spec, **given)) if given else run


def _machine(request: ProfileRequest, run: RunFacts) -> tuple[Gpu, int]:
    """The GPU to predict for, and the RAM of a node (0: not known)."""
    try:
        host_bytes = parse_memory(request.host_mem) if request.host_mem else 0
        named = gpu_named(request.gpu, request.gpu_mem)
    except GpuError as error:
        raise UserError(str(error)) from None
    if named is not None:
        return named, host_bytes
    if run.spec.device == "cpu":
        return Gpu("CPU", ram_bytes()), host_bytes or ram_bytes()
    here = local_gpu()
    if here is None:
        raise UserError("no NVIDIA GPU answers on this machine; say which one is meant: --gpu H200, or --gpu-mem 80GiB")
    return Gpu(here.name, here.total_bytes), host_bytes or ram_bytes()


def _measured(request: ProfileRequest, run: RunFacts, memory: MemoryProfile) -> MemoryProfile:
    """The prediction with what the phases really needed beside it, from the trainer's plug-in.

    Raises:
        UserError: the plug-in is not there, or could not measure.
    """
    from rlcheck.active_child import ProbeFailed, run_probe
    from rlcheck.cli.active import Waiting
    from rlcheck.cli.env import interpreter

    job: dict[str, Any] = {"run": msgspec.to_builtins(run), "gpu_bytes": memory.gpu_bytes}
    with Waiting() as waiting:
        waiting.on("the measurement")
        try:
            found = run_probe(
                interpreter(request.report.python), "memory", job, stage_timeout_s=_STAGE_S,
                total_timeout_s=request.report.timeout_s or _TOTAL_S,
                on_stage=lambda stage, done, total: waiting.on(f"{stage} ({done} of {total})" if total else stage),
            )  # fmt: skip
        except ProbeFailed as error:
            last = f"; it last said: {error.tail[-1]}" if error.tail else ""
            raise UserError(f"--measure: {error}{last}") from None
    try:
        phases = msgspec.convert(found.get("measured", []), tuple[MeasuredPhase, ...])
        notes = msgspec.convert(found.get("notes", []), tuple[str, ...])
    except msgspec.ValidationError as error:
        raise UserError(f"--measure: the plug-in answered in a way that this rlcheck cannot read: {error}") from None
    return msgspec.structs.replace(memory, measured=phases, notes=(*memory.notes, *notes))
