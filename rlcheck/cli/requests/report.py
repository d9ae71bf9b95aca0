"""What commands share: options that several declare, and those that say what becomes of a report."""

# No `from __future__ import annotations`: `rlcheck.cli.declare` reads the annotations as values.

from dataclasses import dataclass
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
    PROMETHEUS = "prometheus"
    NAGIOS = "nagios"


def _format(name: str) -> str:
    try:
        return Format("markdown" if name == "md" else name).value
    except ValueError:
        known = ", ".join(f"'{one.value}'" for one in Format)
        raise typer.BadParameter(f"{name!r} is not one of {known}.") from None


def _formats(incomplete: str) -> list[str]:
    return [one.value for one in Format if one.value.startswith(incomplete)]


def named(incomplete: str) -> list[str]:
    """The IDs of checks and playbooks that begin so, in the case that is typed, for the completion of a shell."""
    from rlcheck.doctor import clinic

    doctor = clinic.summon()
    ids = (check.id.lower() if incomplete.islower() else check.id for check in doctor.checks)
    return [id for id in (*ids, *doctor.library.ids()) if id.startswith(incomplete)]


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        parser=_format,
        metavar="[text|json|markdown|junit|sarif|prometheus|nagios]",
        autocompletion=_formats,
        show_default="text",
        help="Format of the report.",
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
]
SelectOption = Annotated[
    tuple[str, ...],
    typer.Option("--select", metavar="ID|FAMILY", autocompletion=named, help="Run only these checks. Repeatable."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 also for warnings and for checks that could not run.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show every check or diagnosis in full, with its evidence.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="With --fix: show what would be done and change nothing.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="With --fix: do it without asking, and overwrite what is there.")
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png|.html", help="Draw the result into this file.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="Limit each examination to this time. Each has a limit of its own, too.",
    ),
]
PythonOption = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Examine another Python: an interpreter, a venv or conda directory, or a command that starts one.",
    ),
]
AsciiOption = Annotated[bool, typer.Option("--ascii", "--ascii-only", help="Use ASCII characters only.")]
# Each trainer has a table of its name; to import them all takes longer than to list these.
_TRAINERS = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "data" / "trainers").glob("*.json"))
FrameworkOption = Annotated[
    str,
    typer.Option(
        "--framework",
        metavar="NAME",
        help=f"Framework of the config (rltrain, verl, {', '.join(_TRAINERS)}, each also with @VERSION; spec), where "
        "rlcheck cannot see it.",
    ),
]
PromptKeyOption = Annotated[
    str,
    typer.Option("--prompt-key", metavar="COLUMN", help="Column of the prompt. Default: the config's, or `prompt`."),
]
PortOption = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port of the head (6379).")]
ModelShapeOption = Annotated[
    str,
    typer.Option(
        "--model-shape",
        metavar="FILE|NAME|SIZES",
        help="Shape of a model whose files are not here: its config.json, the name of a known model, or "
        "hidden_size=…,num_hidden_layers=…",
    ),
]
GpuOption = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="GPU to plan for, H200 or 80GiB. Default: this machine's; slow: the one that the run's traces name.",
    ),
]
HostsOption = Annotated[
    str,
    typer.Option(
        "--hosts",
        metavar="FILE|slurm",
        help="File of machines to reach by ssh, one a line ([user@]host[:port] [slots=N]); slurm: those of this job.",
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--head-ip", metavar="HOST[:PORT]", help="Take the nodes of this Ray cluster. Default: this machine alone."
    ),
]


@dataclass(frozen=True)
class ReportRequest:
    """What becomes of the report."""

    format: FormatOption = Format.TEXT
    output: OutputOption = None
    record: Annotated[
        Path | None,
        typer.Option("--record", help="Also write the facts to this file, without secrets, for a later --facts."),
    ] = None
    facts: Annotated[
        Path | None, typer.Option("--facts", help="Judge a file written by `rlcheck collect` instead of this machine.")
    ] = None
    strict: StrictOption = False
    ignore: Annotated[
        tuple[str, ...],
        typer.Option(
            "--ignore", metavar="ID", help="Waive a check: show its failure, but do not count it. Repeatable."
        ),
    ] = ()
    select: SelectOption = ()
    timeout_s: TimeoutOption = None
    python: PythonOption = ""
    verbose: VerboseOption = False
    ascii_only: AsciiOption = False
