"""`rlcheck preflight`: the whole chain of trust before a run, in the order in which links break."""

from __future__ import annotations

import signal
import sys

from rlcheck.cli.front_door import begin
from rlcheck.cli.hydra_options import named
from rlcheck.cli.interpreter import make_context
from rlcheck.cli.requests.configs import LinkName, MachineRequest, PreflightRequest
from rlcheck.cli.waiting import Waiting
from rlcheck.doctor import clinic
from rlcheck.errors import UserError
from rlcheck.facts.config import ConfigFacts
from rlcheck.measure.config.whole import read_whole
from rlcheck.measure.memory.asked import gpu_named
from rlcheck.measure.memory.gpus import parse_memory
from rlcheck.measure.memory.predict import Gpu
from rlcheck.preflight.chain import Step, run_chain
from rlcheck.preflight.links import SLOW
from rlcheck.preflight.looks import SAMPLE_ROWS, looks
from rlcheck.preflight.state import Request


def run(request: PreflightRequest) -> int:
    """Run the command and return its exit code.

    Raises:
        UserError: options that cannot be used, or a config that cannot be read at all.
    """
    # As Ctrl-C does: what was started must end, and temporary directories must go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = request.report
    gpu, host_bytes = _gpu(request.machine)
    config = _read(request, here=gpu is None)
    source, overrides = named(request.source)
    examination = begin(asked, "preflight")
    chain = Request(
        run=config,
        source=source,
        overrides=overrides,
        context=make_context(asked.python, deep=False),
        settings=examination.settings,
        ignore=asked.ignore,
        strict=asked.strict,
        left_out=left_out(request),
        timeout_s=asked.timeout_s,
        gpu=gpu,
        host_bytes=host_bytes,
        head_ip=request.head_ip,
        port=request.port,
        most_rows=max(SAMPLE_ROWS, 2 * config.spec.data.train_batch_size) if request.quick else 0,
        start_s=request.start_timeout_s,
    )
    with Waiting() as waiting:
        found = run_chain(chain, looks(examination.doctor), examination.doctor, waiting, _tell)
    report = clinic.fail_if_python_missing(found.report, found.nodes[0], asked.python)
    return examination.end(report, found.nodes)


def left_out(request: PreflightRequest) -> dict[str, str]:
    """Links that the options leave out, and which option it was."""
    found = dict.fromkeys(SLOW, "--quick") if request.quick else {}
    found |= {link.value: f"--skip {link.value}" for link in request.skip}
    for link, wanted in ((LinkName.SMOKE, request.smoke), (LinkName.REHEARSE, request.rehearse)):
        if wanted and link not in request.skip:
            found.pop(link.value, None)
        elif not wanted:
            found[link.value] = f"--{link.value} {'makes one' if link is LinkName.SMOKE else 'tries it'}"
    return found


def _gpu(machine: MachineRequest) -> tuple[Gpu | None, int]:
    host_bytes = parse_memory(machine.host_mem) if machine.host_mem else 0
    return gpu_named(machine.gpu, machine.gpu_mem), host_bytes


def _read(request: PreflightRequest, *, here: bool) -> ConfigFacts:
    """The config as this machine would run it; where a GPU is named, as a machine with such GPUs would."""
    config, overrides = named(request.source)
    if not config:
        raise UserError("give a CONFIG: a YAML, a recipe, a script, or - for standard input")
    return read_whole(config, overrides, framework=request.framework, model_shape=request.model_shape, here=here)


def _tell(step: Step) -> None:
    """A line for each link where nobody looks at a terminal: a log then says what took the time."""
    if not sys.stderr.isatty():
        time = f" ({step.seconds:.1f} s)" if step.seconds else ""
        sys.stderr.write(f"preflight: {step.title}: {step.line()}{time}\n")
        sys.stderr.flush()
