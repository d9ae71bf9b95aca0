"""`rlcheck memory-profile`: what a run needs, phase by phase, on a GPU that need not be here."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from rlcheck.cli.facts_files import document, recorded_with
from rlcheck.cli.front_door import begin
from rlcheck.cli.hydra_options import named
from rlcheck.cli.interpreter import interpreter
from rlcheck.cli.plotting import require_plottable
from rlcheck.cli.requests.configs import MachineRequest, ProfileRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MeasuredMemory, MemoryProfile
from rlcheck.measure.config.arithmetic import is_other, who
from rlcheck.measure.machine.local_gpus import local_gpu
from rlcheck.measure.memory.asked import gpu_named, profile_of, ram_bytes, why_no_sizes
from rlcheck.measure.memory.gpus import parse_memory
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.unsaid import assumed

_STAGE_S = 600.0
_TOTAL_S = 3600.0
"""A measurement builds models with random weights and an engine: minutes, on a slow disk many of them."""


def run(request: ProfileRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a config that cannot be read.
    """
    if request.plot is not None:
        require_plottable(request.plot)
    examination = begin(request.report, "memory-profile", alone=True)
    nodes = _recorded(request) if request.report.facts is not None else (_examined(request),)
    code = examination.conclude(nodes)
    if request.plot is not None:
        sys.stdout.flush()
        from rlcheck.report.pages.memory_plots import write_plot

        write_plot(nodes[0], request.plot)
    return code


def _recorded(request: ProfileRequest) -> tuple[Facts, ...]:
    if named(request.source)[0] or request.measure:
        raise UserError("--facts judges a record; leave CONFIG and --measure out")
    assert request.report.facts is not None
    lacking = "no prediction in it; `rlcheck memory-profile CONFIG --record` writes one"
    return recorded_with(request.report.facts, ("memory",), lacking)


def _examined(request: ProfileRequest) -> Facts:
    if not named(request.source)[0]:
        raise UserError("give a CONFIG: a YAML, a recipe, a script, - for standard input, or --facts RECORD")
    if request.measure and (request.machine.gpu or request.machine.gpu_mem):
        raise UserError("--measure runs on this machine's GPU; leave --gpu and --gpu-mem out")
    config = _read(request)
    if request.measure and is_other(config):
        raise UserError(f"--measure: the doctor cannot run {who(config)}; leave --measure out")
    memory = profile_of(config, *_machine(request.machine, config))
    if request.measure:
        memory = _measured(request, config, memory)
    return document(config=known(config), memory=known(memory))


def _read(request: ProfileRequest) -> ConfigFacts:
    """The config, on the machines that `--nodes` and `--gpus-per-node` name.

    Raises:
        UserError: it cannot be read, or the sizes of its model are not known.
    """
    from rlcheck.measure.config.read import read_run

    run = read_run(*named(request.source), framework=request.framework, model_shape=request.model_shape)
    if why := why_no_sizes(run):
        raise UserError(why)
    wanted = {"nodes": request.nodes, "gpus_per_node": request.gpus_per_node}
    given = {field: value for field, value in wanted.items() if value}
    return assumed(run, (*(f"{field}={value}" for field, value in given.items()), *request.assume))


def _machine(machine: MachineRequest, run: ConfigFacts) -> tuple[Gpu, int]:
    """The GPU to predict for, and the RAM of a node (0: not known)."""
    host_bytes = parse_memory(machine.host_mem) if machine.host_mem else 0
    gpu = gpu_named(machine.gpu, machine.gpu_mem)
    if gpu is not None:
        return gpu, host_bytes
    if run.spec.device == "cpu":
        return Gpu("CPU", ram_bytes()), host_bytes or ram_bytes()
    here = local_gpu()
    if here is None:
        raise UserError("no NVIDIA GPU answers on this machine; say which one is meant: --gpu H200, or --gpu-mem 80GiB")
    return Gpu(here.name, here.total_bytes), host_bytes or ram_bytes()


def _measured(request: ProfileRequest, run: ConfigFacts, memory: MemoryProfile) -> MemoryProfile:
    """The prediction with what the phases really needed beside it, from the trainer's plug-in.

    Raises:
        UserError: the plug-in is not there, or could not measure.
    """
    from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe

    job: dict[str, Any] = {"run": msgspec.to_builtins(run), "gpu_bytes": memory.gpu_bytes}
    with Waiting() as waiting:
        waiting.on("the measurement")
        try:
            found = run_probe(
                interpreter(request.report.python), "memory", job, stage_timeout_s=_STAGE_S,
                total_timeout_s=request.report.timeout_s or _TOTAL_S,
                on_stage=lambda stage, done, total: waiting.on(f"{stage} ({done} of {total})" if total else stage),
            )  # fmt: skip
            facts = decoded(found, MeasuredMemory, "")
        except ProbeFailed as error:
            last = f"; it last said: {error.tail[-1]}" if error.tail else ""
            raise UserError(f"--measure: {error}{last}") from None
    return msgspec.structs.replace(memory, measured=facts.measured, notes=(*memory.notes, *facts.notes))
