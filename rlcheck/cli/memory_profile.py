"""`rlcheck memory-profile`: what a run needs, phase by phase, on a GPU that need not be here."""

from __future__ import annotations

import os
import shlex
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
from rlcheck.facts.base import known, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MeasuredPhase, MemoryProfile
from rlcheck.facts.run import RunFacts
from rlcheck.memory.gpus import GpuError, by_name, local_gpu, parse_memory
from rlcheck.memory.predict import Gpu, UnknownModelError
from rlcheck.memory.profile import profile
from rlcheck.runs import fields
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
    memory = _profiled(run, gpu, host_bytes)
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
    model = run.models.get("actor")
    reason = why_missing(model) if model is not None else None
    if model is None or reason is not None:
        path = run.spec.actor.model.path or "(none is named)"
        why = f": {reason.reason}" if reason is not None else ""
        raise UserError(
            f"{request.config}: the sizes of the actor's model {path} are not known{why}; "
            "give its config.json with --model-shape FILE"
        )
    wanted = {"nodes": request.nodes, "gpus_per_node": request.gpus_per_node}
    given = {field: value for field, value in wanted.items() if value}
    return msgspec.structs.replace(run, spec=msgspec.structs.replace(run.spec, **given)) if given else run


def _machine(request: ProfileRequest, run: RunFacts) -> tuple[Gpu, int]:
    """The GPU to predict for, and the RAM of a node (0: not known)."""
    try:
        host_bytes = parse_memory(request.host_mem) if request.host_mem else 0
        if request.gpu:
            found = by_name(request.gpu)
            size = parse_memory(request.gpu_mem) if request.gpu_mem else found.total_bytes
            return Gpu(found.name, size), host_bytes
        if request.gpu_mem:
            return Gpu("GPU", parse_memory(request.gpu_mem)), host_bytes
    except GpuError as error:
        raise UserError(str(error)) from None
    if run.spec.device == "cpu":
        return Gpu("CPU", _ram_bytes()), host_bytes or _ram_bytes()
    here = local_gpu()
    if here is None:
        raise UserError("no NVIDIA GPU answers on this machine; say which one is meant: --gpu H200, or --gpu-mem 80GiB")
    return Gpu(here.name, here.total_bytes), host_bytes or _ram_bytes()


def _ram_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


_LEAST_ONE = (
    "nodes", "gpus_per_node", "data.max_prompt_length", "data.max_response_length", "data.train_batch_size",
    "rollout.n", "rollout.tensor_parallel", "actor.micro_batch_size", "actor.infer_micro_batch_size",
    "actor.max_tokens", "actor.sharding.sequence_parallel", "critic.micro_batch_size", "critic.max_tokens",
)  # fmt: skip
"""Numbers that mean nothing below 1."""


def _profiled(run: RunFacts, gpu: Gpu, host_bytes: int) -> MemoryProfile:
    """The prediction; numbers of a config that no arithmetic can use are the user's, not the doctor's failure."""
    for field in _LEAST_ONE:
        role, value = field.partition(".")[0], None
        if fields.actual(run, role) is not None:
            value = fields.actual(run, field)
        if value is not None and value < 1:
            raise UserError(_beyond(run, field, value, "it must be at least 1"))
    share = run.spec.rollout.memory_utilization
    if not 0 < share <= 1:
        raise UserError(_beyond(run, "rollout.memory_utilization", share, "it is a share of the GPU, from 0 to 1"))
    try:
        return profile(run, gpu, host_bytes)
    except UnknownModelError as error:
        raise UserError(f"{run.source}: {error}") from None


def _beyond(run: RunFacts, field: str, value: float, why: str) -> str:
    return f"{fields.place_of(run, field)}: {fields.key_of(run, field) or field} is {value:g}; {why}"


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


def named(config: str, overrides: tuple[str, ...], name: str, path: str) -> tuple[str, tuple[str, ...]]:
    """CONFIG and overrides, for a config that is named by Hydra's `--config-name` as a line that would start it.

    CONFIG is an override then: `rlcheck memory-profile --config-name ppo_trainer a=b`.
    """
    if not name and not path:
        return config, overrides
    words = ["python", "-m", "verl.trainer.main_ppo"]
    words += [f"--config-path={os.path.abspath(path)}"] if path else []
    words += [f"--config-name={name}"] if name else []
    return shlex.join(words), (*((config,) if config else ()), *overrides)
