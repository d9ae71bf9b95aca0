"""The options of `rlcheck preflight`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from rlcheck.cli import options as opt


class LinkName(str, Enum):
    """The links of the chain, in their order (`rlcheck.preflight.links`, which takes longer to import)."""

    MACHINE = "machine"
    NETWORK = "network"
    COLLECTIVES = "collectives"
    DATA = "data"
    CONFIG = "config"
    MEMORY = "memory"
    ROLLOUT = "rollout"
    SMOKE = "smoke"


SmokeOption = Annotated[bool, typer.Option("--smoke", help="End with one real training step on a cut-down batch.")]
QuickChainOption = Annotated[
    bool, typer.Option("--quick", help="Leave collectives and engine out; of data read the first rows.")
]
SkipOption = Annotated[list[LinkName] | None, typer.Option("--skip", help="Leave a link out. Repeatable.")]
ChainHeadOption = Annotated[
    str,
    typer.Option(
        "--head-ip", metavar="HOST[:PORT]", help="The cluster's head. Default, for several nodes: what is known here."
    ),
]


def preflight(
    config: opt.ConfigArgument = "",
    overrides: opt.OverridesArgument = None,
    smoke: SmokeOption = False,
    quick: QuickChainOption = False,
    skip: SkipOption = None,
    head_ip: ChainHeadOption = "",
    port: opt.PortOption = None,
    gpu: opt.GpuOption = "",
    gpu_mem: opt.GpuMemoryOption = "",
    host_mem: opt.HostMemoryOption = "",
    model_shape: opt.ModelShapeOption = "",
    framework: opt.FrameworkOption = "auto",
    config_name: opt.ConfigNameOption = "",
    config_path: opt.ConfigPathOption = "",
    start_timeout: opt.StartTimeoutOption = 600.0,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """The whole chain before a run: machine, network, collectives, data, config, memory, engine, and a real step.

    It stops where the next link cannot hold, and says why.
    """
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.hydra_options import named
    from rlcheck.cli.preflight import PreflightRequest, run_preflight

    report = ReportRequest(
        format, output, strict, tuple(ignore or ()), (), timeout, None, record, python, verbose, ascii_only
    )
    source, words = named(config, tuple(overrides or ()), config_name, config_path)
    chosen = tuple(link.value for link in skip or ())
    machine = (head_ip, port, gpu, gpu_mem, host_mem, model_shape, framework, start_timeout)
    raise typer.Exit(run_preflight(PreflightRequest(report, source, words, smoke, quick, chosen, *machine)))
