"""The options that every command shares, spelled once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    """What a report can be printed as."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"


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


FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print the report.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the report to this file instead of standard output.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 also for warnings and for checks that could not be made.")
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="ID", help="Waive a check; it is shown as waived. Repeatable.")
]
SelectOption = Annotated[
    list[str] | None, typer.Option("--select", metavar="ID|FAMILY", help="Only these checks. Repeatable.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="Longest time that any one examination may take. Each has a deadline of its own, too.",
    ),
]
FactsOption = Annotated[
    Path | None, typer.Option("--facts", help="Judge a file of `rlcheck collect` instead of this machine.")
]
PythonOption = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Examine another Python: an interpreter, a venv or conda directory, or a command that starts one.",
    ),
]
DeepOption = Annotated[bool, typer.Option("--deep", help="Also import every engine in a process of its own (slow).")]
FixOption = Annotated[bool, typer.Option("--fix", help="Apply the safe fixes, after showing them, and look again.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="With --fix: show what would be done, and stop.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, with its evidence.")]
AsciiOption = Annotated[bool, typer.Option("--ascii", help="Use ASCII characters only.")]
HeadOption = Annotated[
    str,
    typer.Option(
        "--head-ip", metavar="HOST[:PORT]", help="The head's address. Default: RAY_ADDRESS, or the Ray that ran here."
    ),
]
MeasuredHeadOption = Annotated[
    str,
    typer.Option(
        "--head-ip", metavar="HOST[:PORT]", help="Measure the nodes of this Ray cluster. Default: this machine alone."
    ),
]
PortOption = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="The head's port (6379).")]
HostsOption = Annotated[
    str,
    typer.Option(
        "--hosts",
        metavar="FILE|slurm",
        help="Machines to reach by ssh, one a line ([user@]host[:port] [slots=N]), or those of this Slurm job by srun.",
    ),
]
RecordOption = Annotated[
    Path | None, typer.Option("--record", help="Also write the facts, secrets removed, for a later --facts.")
]
WantedNodesOption = Annotated[int, typer.Option("--nodes", min=0, help="Would a run on so many nodes fit?")]
WantedGpusOption = Annotated[
    int, typer.Option("--gpus-per-node", min=0, help="Would a run with so many GPUs on each node fit?")
]
ClientOption = Annotated[bool, typer.Option("--client", help="Also examine the Ray Client's port, 10001.")]
DashboardOption = Annotated[bool, typer.Option("--dashboard", help="Also examine the dashboard's port, 8265.")]
StartHelpOption = Annotated[
    bool, typer.Option("--start-help", help="Print the `ray start` lines for this network, and stop.")
]
BackendOption = Annotated[Backend, typer.Option("--backend", help="auto: nccl where there are GPUs, else gloo.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Fewer and smaller sizes.")]
MaxSizeOption = Annotated[str, typer.Option("--max-size", metavar="SIZE", help="Largest message: 64MiB, 4GiB.")]
RanksOption = Annotated[
    int, typer.Option("--ranks-per-node", min=0, help="Processes on each machine (one a GPU; 1 without).")
]
PairsOption = Annotated[
    Pairs,
    typer.Option(
        "--pairs", help="Pairs of machines: all, quick (two partners each), none; auto: all, quick for --quick over 16."
    ),
]
StepTimeoutOption = Annotated[
    float, typer.Option("--step-timeout", min=1, metavar="SECONDS", help="Deadline of one step before it hangs.")
]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png|.html", help="Draw bandwidth over size.")]
