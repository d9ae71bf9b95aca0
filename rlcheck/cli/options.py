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
