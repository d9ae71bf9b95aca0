"""The command `rltrain`: in this release it says that there is no trainer yet, and what there is instead."""

from __future__ import annotations

from typing import Annotated

import typer

from trainer import __version__

MISUSE = 2
NOT_YET = (
    f"rltrain {__version__}: this release contains the doctor only; `rltrain run` is not there yet. Try `rlcheck env`."
)

app = typer.Typer(add_completion=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rltrain {__version__}")
        raise typer.Exit


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def rltrain(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """The trainer that rlcheck guards. This release contains the doctor only: nothing here trains yet."""
    typer.echo(NOT_YET, err=True)
    raise typer.Exit(MISUSE)


def main() -> None:
    """Entry point of the command."""
    app(prog_name="rltrain")
