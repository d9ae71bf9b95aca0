"""The command `rltrain`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trainer import __version__
from trainer.errors import RunFailure, UserError

FAILED, MISUSE = 1, 2

RECIPES = "toy-ppo, toy-grpo, gsm8k-ppo, gsm8k-grpo"

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


class Preflight(str, Enum):
    """How much of rlcheck's chain of checks goes before a run."""

    QUICK = "quick"
    FULL = "full"


ConfigArgument = Annotated[str, typer.Argument(metavar="CONFIG", help=f"A recipe ({RECIPES}) or a YAML file.")]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Values that replace those of CONFIG: trainer.seed=7. ~KEY removes one."
    ),
]
OverridesOfRun = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace those of the run's config.")
]
CheckpointArgument = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint of a run: RUN_DIR/checkpoints/global_step_N.")
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
        bool,
        typer.Option(
            "--dry-run", help="Print config, placement, batch arithmetic and memory. Needs no GPU and no Ray."
        ),
    ] = False,
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", metavar="GPU", help="With --dry-run: the GPU to plan for, H200 or 80GiB; else this machine's."
        ),
    ] = "",
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="ID", help="A check that must not stop the run; may be given several times."),
    ] = None,
    skip_checks: Annotated[
        bool,
        typer.Option("--skip-checks", help="Do not check the machine: what is wrong then shows late, on held GPUs."),
    ] = False,
    preflight: Annotated[
        Preflight, typer.Option("--preflight", help="full: also collectives, the engine and one step (minutes).")
    ] = Preflight.QUICK,
) -> None:
    """Check this machine and CONFIG, then train.

    Everything that the run writes goes to trainer.default_local_dir.
    """
    from trainer.run import RunOptions, run_training

    full = preflight is Preflight.FULL
    options = RunOptions(config, tuple(overrides or ()), dry_run, gpu, tuple(ignore or ()), skip_checks, full)
    raise typer.Exit(run_training(options))


@app.command("eval", short_help="Score a checkpoint on the validation prompts.")
def evaluate(
    checkpoint: CheckpointArgument,
    overrides: OverridesOfRun = None,
    n: Annotated[
        int, typer.Option("--n", min=1, metavar="N", help="Answers per prompt: 1 is greedy, more are sampled.")
    ] = 1,
    k: Annotated[
        list[int] | None, typer.Option("--k", metavar="K", help="Print pass@K; may be given several times. Default: 1.")
    ] = None,
    passing: Annotated[
        float, typer.Option("--pass", metavar="REWARD", help="The least reward that counts as right.")
    ] = 1.0,
) -> None:
    """Score a checkpoint on the validation prompts of its run: mean reward and pass@k, each with its 95 % interval."""
    _expect_checkpoint(checkpoint)
    from trainer.eval_command import evaluate_checkpoint

    raise typer.Exit(evaluate_checkpoint(checkpoint, tuple(overrides or ()), n, tuple(k or (1,)), passing))


@app.command(short_help="Write a checkpoint's model in Hugging Face layout.")
def export(
    checkpoint: CheckpointArgument,
    output: Annotated[Path, typer.Argument(metavar="DIR", help="Where the model goes: a new or empty directory.")],
) -> None:
    """Write the actor of a checkpoint as safetensors, for AutoModelForCausalLM.from_pretrained."""
    _expect_checkpoint(checkpoint)
    _expect_path(output)
    from trainer.export_command import export_checkpoint

    raise typer.Exit(export_checkpoint(checkpoint, output))


@app.command(short_help="Write a commented config to start from.")
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")] = Path(
        "rltrain.yaml"
    ),
) -> None:
    """Write a config to start from: every key, its default and what it does."""
    _expect_path(path)
    from trainer.init_config import write_config

    write_config(path)
    typer.echo(f"Wrote {path}. Next: rltrain run {path} --dry-run")


def _expect_checkpoint(path: Path) -> None:
    """A wrong path is told at once, not after the seconds that torch takes to load."""
    _expect_path(path)
    from trainer.checkpoints import at

    at(path.expanduser().absolute())


def _expect_path(path: Path) -> None:
    """A name that no file system takes is told in a line, before something trips over it."""
    from trainer.config.paths import unusable

    if (why := unusable(path)) is not None:
        raise UserError(why)
    try:
        path.expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: {error}") from None


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
