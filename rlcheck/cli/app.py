"""The `rlcheck` command: which sub-commands there are, and how errors end.

Each command's module is imported when it runs, so that `--help` stays quick.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlcheck import __version__
from rlcheck.cli import options as opt
from rlcheck.cli import run_commands
from rlcheck.cli.preflight_command import preflight
from rlcheck.errors import UserError

USAGE_ERROR = 2
DOCTOR_FAILED = 3
INTERRUPTED = 130
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_ERROR_LIMIT = 1000

app = typer.Typer(
    name="rlcheck",
    help="A doctor for LLM reinforcement-learning training: finds what will stop a run, and names the fix.",
    epilog="Exit codes: 0 healthy, 1 a check failed, 2 wrong options or unreadable input, 3 rlcheck itself failed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help pages take four times as long as everything else in `--help`
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlcheck {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A doctor for LLM reinforcement-learning training: finds what will stop a run, and names the fix."""


@app.command()
def env(
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    facts: opt.FactsOption = None,
    hosts: opt.HostsOption = "",
    python: opt.PythonOption = "",
    deep: opt.DeepOption = False,
    fix: opt.FixOption = False,
    dry_run: opt.DryRunOption = False,
    yes: opt.YesOption = False,
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Examine this machine: Python and packages, GPUs and driver, network, NCCL, limits, caches, Ray."""
    from rlcheck.cli.env import EnvRequest, run_env

    request = EnvRequest(
        format=format,
        output=output,
        strict=strict,
        ignore=tuple(ignore or ()),
        select=tuple(select or ()),
        timeout_s=timeout,
        facts=facts,
        hosts=hosts,
        python=python,
        deep=deep,
        fix=fix,
        dry_run=dry_run,
        yes=yes,
        verbose=verbose,
        ascii_only=ascii_only,
    )
    raise typer.Exit(run_env(request))


@app.command()
def ray(
    head_ip: opt.HeadOption = "",
    port: opt.PortOption = None,
    hosts: opt.HostsOption = "",
    nodes: opt.WantedNodesOption = 0,
    gpus_per_node: opt.WantedGpusOption = 0,
    client: opt.ClientOption = False,
    dashboard: opt.DashboardOption = False,
    start_help: opt.StartHelpOption = False,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Examine a Ray cluster: the way to its head, layer by layer, and what every node sees of the others."""
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.ray import RayRequest, run_ray

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, python, verbose, ascii_only)
    request = RayRequest(report, head_ip, port, client, dashboard, hosts, nodes, gpus_per_node, start_help)
    raise typer.Exit(run_ray(request))


@app.command()
def nccl(
    head_ip: opt.MeasuredHeadOption = "",
    port: opt.PortOption = None,
    hosts: opt.HostsOption = "",
    backend: opt.BackendOption = opt.Backend.AUTO,
    quick: opt.QuickOption = False,
    max_size: opt.MaxSizeOption = "",
    ranks_per_node: opt.RanksOption = 0,
    pairs: opt.PairsOption = opt.Pairs.AUTO,
    step_timeout: opt.StepTimeoutOption = 30.0,
    plot: opt.PlotOption = None,
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    record: opt.RecordOption = None,
    facts: opt.FactsOption = None,
    strict: opt.StrictOption = False,
    ignore: opt.IgnoreOption = None,
    select: opt.SelectOption = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    verbose: opt.VerboseOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Run real collectives: alone, over a Ray cluster or --hosts, under torchrun or srun; name who is odd."""
    from rlcheck.cli.active import ReportRequest
    from rlcheck.cli.nccl import NcclRequest, run_nccl

    ids = (tuple(ignore or ()), tuple(select or ()))
    report = ReportRequest(format, output, strict, *ids, timeout, facts, record, python, verbose, ascii_only)
    sizes = (backend.value, quick, max_size, ranks_per_node, pairs.value, step_timeout)
    raise typer.Exit(run_nccl(NcclRequest(report, head_ip, port, hosts, *sizes, plot)))


app.command()(run_commands.config)
app.command("memory-profile")(run_commands.memory_profile)
app.command()(run_commands.data)
app.command()(run_commands.rollout)
app.command()(run_commands.drift)
app.command()(run_commands.run)
app.command()(preflight)


@app.command()
def diagnose(
    words: opt.LogsArgument = None,
    follow: opt.FollowOption = False,
    everything: opt.AllOption = False,
    facts: opt.ConfirmFactsOption = None,
    here: opt.HereOption = False,
    config: opt.FixConfigOption = "",
    framework: opt.FrameworkOption = "auto",
    format: opt.FormatOption = opt.Format.TEXT,
    output: opt.OutputOption = None,
    strict: opt.StrictWarningsOption = False,
    ignore: opt.WaiveOption = None,
    select: opt.WantedOption = None,
    timeout: opt.SilenceOption = None,
    verbose: opt.FullOption = False,
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Read logs or a traceback: what failed first, how sure that is, how to verify it, and the fix to type."""
    from rlcheck.cli.diagnose import DiagnoseRequest, run_diagnose

    ids = (tuple(ignore or ()), tuple(select or ()))
    what = (tuple(words or ()), follow, everything, facts, here, config, framework)
    raise typer.Exit(run_diagnose(DiagnoseRequest(*what, format, output, strict, *ids, timeout, verbose, ascii_only)))


@app.command()
def collect(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output without it.")
    ] = None,
    timeout: opt.TimeoutOption = None,
    python: opt.PythonOption = "",
    deep: opt.DeepOption = False,
    hosts: opt.HostsOption = "",
) -> None:
    """Record the facts of this machine, or of many, as JSON without secrets, to be judged with --facts."""
    from rlcheck.cli.collect import run_collect

    raise typer.Exit(run_collect(output, timeout, python, deep, hosts))


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Facts files of several nodes.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output without it.")
    ] = None,
) -> None:
    """Put the facts files of several nodes into one."""
    from rlcheck.cli.collect import run_merge

    raise typer.Exit(run_merge(files, output))


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="ID", help="A check (SYS001) or a playbook (shm-too-small).")],
    ascii_only: opt.AsciiOption = False,
) -> None:
    """Show a check or a playbook in full: what happens, why, how to be sure, how to mend it."""
    from rlcheck.cli.explain import run_explain

    raise typer.Exit(run_explain(name, ascii_only))


@app.command("list")
def list_command(
    format: opt.FormatOption = opt.Format.TEXT,
    select: opt.SelectOption = None,
    playbooks: opt.PlaybooksOption = False,
) -> None:
    """List every check with its family, the facts that it needs and its playbook; or every playbook."""
    from rlcheck.cli.explain import run_list

    raise typer.Exit(run_list(format, tuple(select or ()), playbooks))


def main() -> None:
    """Run the command line; every way out is an exit code and at most one line of error."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us (`>&-`)
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        _run()
    except UserError as error:
        _end(f"rlcheck: {error}", USAGE_ERROR)
    except KeyboardInterrupt:
        _end("rlcheck: interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`rlcheck env | head`): nothing left to tell anybody.
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
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer has taken the interrupt already
            raise KeyboardInterrupt from None
        sys.stdout.flush()
        raise


def _give_up_output() -> None:
    """What is still in the buffer of standard output goes nowhere, so that leaving does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, code: int) -> None:
    from rlcheck.report.wording import clean

    line = clean(" ".join(message.split()))
    print(line if len(line) <= _ERROR_LIMIT else line[:_ERROR_LIMIT] + " …", file=sys.stderr)  # noqa: T201
    raise SystemExit(code)
