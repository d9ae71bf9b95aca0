"""What commands about machines can be asked: env, ray, nccl, collect, merge."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from rlcheck.cli.requests.report import (
    ClusterOption,
    DryRunOption,
    HostsOption,
    OutputOption,
    PlotOption,
    PortOption,
    PythonOption,
    ReportRequest,
    TimeoutOption,
    YesOption,
)

DeepOption = Annotated[bool, typer.Option("--deep", help="Also import every engine in a process of its own (slow).")]


@dataclass(frozen=True)
class EnvReportRequest(ReportRequest):
    """The facts of `rlcheck env` are those that `rlcheck collect` writes."""

    record: None = None


@dataclass(frozen=True)
class EnvRequest:
    """Examine this machine: Python and packages, GPUs and driver, network, NCCL, limits, caches, Ray."""

    ORDER: ClassVar = (
        *("format", "output", "strict", "ignore", "select", "timeout_s", "facts", "hosts", "python", "deep"),
        *("fix", "dry_run", "yes", "verbose", "ascii_only"),
    )
    report: EnvReportRequest = field(default_factory=EnvReportRequest)
    hosts: HostsOption = ""
    deep: DeepOption = False
    fix: Annotated[
        bool, typer.Option("--fix", help="Show the safe fixes, apply them after a question, and examine again.")
    ] = False
    dry_run: DryRunOption = False
    yes: YesOption = False


@dataclass(frozen=True)
class RayRequest:
    """Examine a Ray cluster: the way to its head, layer by layer, and what every node sees of the others."""

    head_ip: Annotated[
        str,
        typer.Option(
            "--head-ip",
            metavar="HOST[:PORT]",
            help="Address of the head. Default: RAY_ADDRESS, or the Ray that ran here.",
        ),
    ] = ""
    port: PortOption = None
    hosts: HostsOption = ""
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="Check that a run on this many nodes would fit.")] = 0
    gpus_per_node: Annotated[
        int,
        typer.Option("--gpus-per-node", min=0, help="Check that a run with this many GPUs on each node would fit."),
    ] = 0
    client: Annotated[bool, typer.Option("--client", help="Also examine the Ray Client's port, 10001.")] = False
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Also examine the dashboard's port, 8265.")] = False
    start_help: Annotated[
        bool, typer.Option("--start-help", help="Print the `ray start` lines for this network and examine nothing.")
    ] = False
    report: ReportRequest = field(default_factory=ReportRequest)


class Backend(str, Enum):
    """What carries the collectives."""

    AUTO = "auto"
    NCCL = "nccl"
    GLOO = "gloo"


class Pairs(str, Enum):
    """Which pairs of machines are measured."""

    AUTO = "auto"
    QUICK = "quick"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True)
class NcclRequest:
    """Run real collectives: alone, over a Ray cluster or --hosts, under torchrun or srun; name the odd one."""

    head_ip: ClusterOption = ""
    port: PortOption = None
    hosts: HostsOption = ""
    backend: Annotated[
        Backend,
        typer.Option("--backend", help="Transport of the collectives; auto: nccl where there are GPUs, else gloo."),
    ] = Backend.AUTO
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer and smaller sizes.")] = False
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="Largest message to measure: 64MiB, 4GiB.")
    ] = ""
    ranks_per_node: Annotated[
        int,
        typer.Option("--ranks-per-node", min=0, help="Processes on each machine. Default: one a GPU; 1 without GPUs."),
    ] = 0
    pairs: Annotated[
        Pairs,
        typer.Option(
            "--pairs",
            help="Pairs of machines to measure: all, quick (two partners each), none; "
            "auto: quick with --quick over 16.",
        ),
    ] = Pairs.AUTO
    step_timeout_s: Annotated[
        float, typer.Option("--step-timeout", min=1, metavar="SECONDS", help="Time after which a step counts as hung.")
    ] = 30.0
    plot: PlotOption = None
    report: ReportRequest = field(default_factory=ReportRequest)


@dataclass(frozen=True)
class CollectRequest:
    """Record the facts of this machine, or of many, as JSON without secrets, to be judged with --facts."""

    output: OutputOption = None
    timeout_s: TimeoutOption = None
    python: PythonOption = ""
    deep: DeepOption = False
    hosts: HostsOption = ""


@dataclass(frozen=True)
class MergeRequest:
    """Put the facts files of several nodes into one."""

    files: Annotated[tuple[Path, ...], typer.Argument(help="Facts files of several nodes.")]
    output: OutputOption = None
