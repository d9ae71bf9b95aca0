"""The command `rltrain`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainer import __version__
from trainer.errors import RunFailure, UserError

FAILED, MISUSE = 1, 2

app = typer.Typer(
    add_completion=True, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, help=__doc__
)

ConfigArgument = Annotated[str, typer.Argument(metavar="CONFIG", help="A recipe (such as toy-ppo) or a YAML file.")]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace those of CONFIG.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rltrain {__version__}")
        raise typer.Exit


@app.callback()
def rltrain(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Train language models by reinforcement learning: PPO, GRPO and relatives, on Ray, FSDP2 and vLLM."""


@app.command()
def run(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print config, placement, batch arithmetic and memory, and stop.")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="ID", help="Preflight check that must not stop the run.")
    ] = None,
    skip_checks: Annotated[
        bool,
        typer.Option("--skip-checks", help="No preflight: what would have been found now may cost hours of GPU time."),
    ] = False,
) -> None:
    """Check this machine and CONFIG, then train."""
    from trainer.run import RunOptions, run_training

    options = RunOptions(config, tuple(overrides or ()), dry_run, tuple(ignore or ()), skip_checks)
    raise typer.Exit(run_training(options))


@app.command("eval")
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A global_step_N directory of a run.")],
    overrides: OverridesArgument = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Answers per prompt; 1 is greedy.")] = 1,
    k: Annotated[list[int] | None, typer.Option("--k", help="A k of pass@k; may be given several times.")] = None,
    passing: Annotated[float, typer.Option("--pass", help="The least reward that counts as right.")] = 1.0,
) -> None:
    """Score a checkpoint on validation prompts: the mean reward with its 95 % interval, and pass@k."""
    from trainer.eval_command import evaluate_checkpoint

    raise typer.Exit(evaluate_checkpoint(checkpoint, tuple(overrides or ()), n, tuple(k or (1,)), passing))


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A global_step_N directory of a run.")],
    output: Annotated[Path, typer.Argument(metavar="DIR", help="Where the Hugging Face model goes.")],
) -> None:
    """Write the actor of a checkpoint as safetensors that `AutoModelForCausalLM.from_pretrained` loads."""
    from trainer.export_command import export_checkpoint

    raise typer.Exit(export_checkpoint(checkpoint, output))


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where the config goes.")] = Path("rltrain.yaml"),
) -> None:
    """Write a commented config to start from."""
    from trainer.init_config import write_config

    write_config(path)
    typer.echo(f"Wrote {path}. Next: rltrain run {path} --dry-run")


def main() -> None:
    """Entry point of the command."""
    try:
        app(prog_name="rltrain", standalone_mode=True)
    except UserError as error:
        _fail(str(error), MISUSE)
    except RunFailure as error:
        _fail(str(error), FAILED)


def _fail(message: str, code: int) -> None:
    print(f"rltrain: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
