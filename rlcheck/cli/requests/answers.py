"""What commands that read logs and pages can be asked: diagnose, bundle, mcp, explain, list."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from rlcheck.cli.requests.report import (
    AsciiOption,
    Format,
    FormatOption,
    FrameworkOption,
    OutputOption,
    PythonOption,
    StrictOption,
    VerboseOption,
    named,
)


@dataclass(frozen=True)
class DiagnoseRequest:
    """Read logs or a traceback: what failed first, how sure that is, how to verify it, and the fix to type."""

    words: Annotated[
        tuple[str, ...],
        typer.Argument(
            metavar="[LOG|KEY=VALUE]...",
            help="Logs: files (also .gz), directories of them, - for standard input; overrides of --config.",
            show_default=False,
        ),
    ] = ()
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep reading as the logs are written and report each problem at once.")
    ] = False
    everything: Annotated[
        bool, typer.Option("--all", help="Also show what ranks lower and what only follows from it.")
    ] = False
    facts: Annotated[
        Path | None,
        typer.Option("--facts", help="Confirm by a file that `rlcheck collect` wrote on the machine of the log."),
    ] = None
    here: Annotated[
        bool, typer.Option("--here", help="Confirm by examining this machine, where the log was written.")
    ] = False
    config: Annotated[
        str,
        typer.Option("--config", metavar="CONFIG", help="Config of the run; fixes are then printed as its overrides."),
    ] = ""
    framework: FrameworkOption = "auto"
    python: PythonOption = ""
    format: FormatOption = Format.TEXT
    output: OutputOption = None
    strict: StrictOption = False
    ignore: Annotated[
        tuple[str, ...],
        typer.Option("--ignore", metavar="ID|FAMILY", help="Leave out a playbook, those of a check, or a family."),
    ] = ()
    select: Annotated[
        tuple[str, ...],
        typer.Option("--select", metavar="ID|FAMILY", help="Use only these playbooks, those of a check, or a family."),
    ] = ()
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.1,
            metavar="SECONDS",
            help="With --follow: end after this time without a new line. With --here: limit of each examination.",
        ),
    ] = None
    verbose: VerboseOption = False
    ascii_only: AsciiOption = False


@dataclass(frozen=True)
class BundleRequest:
    """Pack what others need to help with a run: versions, config, facts, last lines, stacks, dumps, findings.

    Of any trainer's folder of a run, or of logs. Secrets are left out, links are not followed; issue.md in it has what
    a maintainer's form for bugs asks for.
    """

    target: Annotated[
        str, typer.Argument(metavar="[RUN]", help="A run's folder, or that of its logs.", show_default=False)
    ] = ""
    output: OutputOption = None
    python: PythonOption = ""


@dataclass(frozen=True)
class McpRequest:
    """Serve what rlcheck reads to an assistant, over the Model Context Protocol on standard input and output."""


@dataclass(frozen=True)
class ExplainRequest:
    """Show a check or a playbook in full: what happens, why, how to verify it, how to fix it."""

    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", autocompletion=named, help="ID of a check (SYS001) or a playbook (shm-too-small)."
        ),
    ]
    ascii_only: AsciiOption = False


class ListFormat(str, Enum):
    """What a list can be printed as."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class ListRequest:
    """List every check with its family, the facts that it needs and its playbook; or every playbook."""

    format: Annotated[ListFormat, typer.Option("--format", "-f", help="Format of the list.")] = ListFormat.TEXT
    select: Annotated[
        tuple[str, ...], typer.Option("--select", metavar="ID|FAMILY", help="List only these checks. Repeatable.")
    ] = ()
    playbooks: Annotated[bool, typer.Option("--playbooks", help="List the playbooks instead of the checks.")] = False
