"""The `rlcheck` command: which sub-commands there are, and how errors end.

Each command's module is imported when it runs, so that `--help` stays quick.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer

from rlcheck import __version__
from rlcheck.cli.declare import command
from rlcheck.errors import DOCTOR_FAILED, INTERRUPTED, USAGE_ERROR, UserError

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_ERROR_LIMIT = 1000
_NEW_OBJECTS = 50_000
"""Between two looks for garbage; Python's own 700 cost a cold start a tenth: what it makes, it keeps."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlcheck {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A doctor for LLM reinforcement-learning training: finds what will stop a run, and names the fix."""


COMMANDS: dict[str, str] = {
    "env": "machines.EnvRequest",
    "ray": "machines.RayRequest",
    "nccl": "machines.NcclRequest",
    "config": "configs.ConfigRequest",
    "memory-profile": "configs.ProfileRequest",
    "data": "configs.DataRequest",
    "rollout": "configs.RolloutRequest",
    "reward": "records.RewardRequest",
    "drift": "configs.DriftRequest",
    "canary": "records.CanaryRequest",
    "run": "records.RunRequest",
    "step": "records.StepRequest",
    "preflight": "configs.PreflightRequest",
    "hang": "records.HangRequest",
    "resume": "records.ResumeRequest",
    "slow": "records.SlowRequest",
    "diagnose": "answers.DiagnoseRequest",
    "bundle": "answers.BundleRequest",
    "collect": "machines.CollectRequest",
    "merge": "machines.MergeRequest",
    "mcp": "answers.McpRequest",
    "explain": "answers.ExplainRequest",
    "list": "answers.ListRequest",
}
"""Each command and the request in `rlcheck.cli.requests` that says what it can be asked; `rlcheck.cli.NAME`, which has
its `run`, is imported when it runs."""


def request_of(name: str) -> type[Any]:
    """Return the request of the command NAME."""
    module, _, request = COMMANDS[name].partition(".")
    return getattr(import_module(f"rlcheck.cli.requests.{module}"), request)


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with the commands NAMES: of one command, typer reads the options of that one alone."""
    app = typer.Typer(
        name="rlcheck",
        help="A doctor for LLM reinforcement-learning training: finds what will stop a run, and names the fix.",
        epilog="Exit codes: 0 healthy, 1 a check failed, 2 wrong options or unreadable input, 3 rlcheck itself failed; "
        "with --format nagios those of its plug-ins.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich's help pages take four times as long as everything else in `--help`
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        app.command(name)(command(request_of(name), f"rlcheck.cli.{name.replace('-', '_')}"))
    return app


def main() -> None:
    """Run the command line; every way out is an exit code and at most one line of error."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us (`>&-`)
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    gc.set_threshold(_NEW_OBJECTS)
    try:
        _run()
    except UserError as error:
        _end(f"rlcheck: {error}", USAGE_ERROR)
    except KeyboardInterrupt:
        _end("rlcheck: interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`rlcheck env | head`): nothing is left to say.
        _give_up_output()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            _give_up_output()
            _end(f"rlcheck: standard output cannot be written: {error.strerror}", USAGE_ERROR)
        if os.environ.get("RLCHECK_TRACEBACK"):
            raise
        _end(
            f"rlcheck: the doctor itself failed: {type(error).__name__}: {error} "
            "(RLCHECK_TRACEBACK=1 shows where; please report it)",
            DOCTOR_FAILED,
        )


def _run() -> None:
    """The command, its output written to the end: what only fails at exit would be reported by Python itself."""
    asked = sys.argv[1:2]
    try:
        make_app(asked if asked and asked[0] in COMMANDS else COMMANDS)()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer has taken the interrupt already
            raise KeyboardInterrupt from None
        if _for_nagios() and not isinstance(ended.__context__, typer.Exit):
            _end("rlcheck: wrong options, which standard error names", USAGE_ERROR)
        sys.stdout.flush()
        raise


def _for_nagios() -> bool:
    """Whether Nagios reads this call, as its words say even where they are wrong otherwise."""
    words = sys.argv[1:]
    pairs = {*pairwise(words)}
    return bool(pairs & {("--format", "nagios"), ("-f", "nagios")} or {"--format=nagios", "-fnagios"} & {*words})


def _give_up_output() -> None:
    """What is still in the buffer of standard output goes nowhere, so that leaving does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, code: int) -> None:
    from rlcheck.report.wording import clean

    line = clean(" ".join(message.split()))
    if _for_nagios():
        from rlcheck.report.monitors import UNKNOWN, status_line

        sys.stdout.write(status_line(UNKNOWN, line.removeprefix("rlcheck: ")))
        sys.stdout.flush()
        raise SystemExit(UNKNOWN)
    print(line if len(line) <= _ERROR_LIMIT else line[:_ERROR_LIMIT] + " …", file=sys.stderr)  # noqa: T201
    raise SystemExit(code)
